"""Limits the wrong API keys of one address, before the database looks one up.

Each process counts in its own memory.
"""

from __future__ import annotations

import ipaddress
import math
import time

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from app.errors import RateLimited

#: most wrong keys of one address in a minute
MOST_WRONG_KEYS = RateLimitItemPerMinute(30)

#: most addresses that are counted at once; above it, all counters are reset
ADDRESSES = 20_000


class FailedKeys:
    """A sliding window for each address that recently sent a wrong key."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._window = SlidingWindowCounterRateLimiter(self._storage)

    async def check(self, address: str) -> None:
        """Raises RateLimited if this address has sent too many wrong keys."""
        network = _network(address)
        if await self._window.test(MOST_WRONG_KEYS, network):
            return
        ends = (await self._window.get_window_stats(MOST_WRONG_KEYS, network)).reset_time
        raise RateLimited(
            f"This address sent more than {MOST_WRONG_KEYS.amount} wrong API keys in a minute. "
            "Send a valid key, or wait.",
            retry_after_s=max(1, math.ceil(ends - time.time())),
            limit=MOST_WRONG_KEYS.amount,
        )

    async def count(self, address: str) -> None:
        """Counts a wrong key."""
        if len(self._storage.storage) >= ADDRESSES:
            await self._storage.reset()
        await self._window.hit(MOST_WRONG_KEYS, _network(address))


def _network(address: str) -> str:
    """Returns the IPv4 address, or the IPv6 network, as one client has 2^64 IPv6 addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
