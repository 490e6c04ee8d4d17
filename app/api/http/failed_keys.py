"""How many wrong API keys one address may try: counted in this process's memory, before any of them is looked up."""

from __future__ import annotations

import ipaddress
import math
import time

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from app.errors import RateLimited

#: wrong keys of one address in a minute
MOST = RateLimitItemPerMinute(30)

#: counters kept at once: above this, all begin anew
ADDRESSES = 20_000


class FailedKeys:
    """A sliding window for each address that has sent a wrong key lately."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._window = SlidingWindowCounterRateLimiter(self._storage)

    async def check(self, address: str) -> None:
        """Raises RateLimited when this address has sent too many wrong keys."""
        network = _network(address)
        if await self._window.test(MOST, network):
            return
        ends = (await self._window.get_window_stats(MOST, network)).reset_time
        raise RateLimited(
            f"more than {MOST.amount} wrong API keys in a minute from this address; send a key that works, or try again later",
            retry_after_s=max(1, math.ceil(ends - time.time())),
            limit=MOST.amount,
        )

    async def count(self, address: str) -> None:
        """Note a wrong key."""
        if len(self._storage.storage) >= ADDRESSES:
            await self._storage.reset()
        await self._window.hit(MOST, _network(address))


def _network(address: str) -> str:
    """Who an address belongs to: of IPv6, one client has 2^64 of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
