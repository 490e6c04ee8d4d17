"""How many requests a key may send: counted in Redis for all API processes, or in memory. Constant memory a key."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import lru_cache

import limits
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from app.errors import RateLimited
from app.storage.redis import AWAY_S, Circuit

log = logging.getLogger("anchorage.limiter")

#: how long a request waits for Redis to count it; then this process counts by itself for a while
PATIENCE_S = 0.5


class RateLimiter:
    """A sliding window for each caller; `default` is the rate of callers without one of their own."""

    def __init__(self, default: str | None, redis_url: str | None, prefix: str) -> None:
        self._default = default
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._common: SlidingWindowCounterRateLimiter | None = None
        self._circuit = Circuit()
        if redis_url is not None:
            storage = RedisStorage(
                f"async+{redis_url}",
                implementation="redispy",
                key_prefix=f"{prefix}:rate",
                socket_timeout=PATIENCE_S,
                socket_connect_timeout=PATIENCE_S,
                protocol=2,
            )
            self._common = SlidingWindowCounterRateLimiter(storage)

    async def count(self, caller: str, rate: str | None) -> None:
        """Count one request. Raises RateLimited when there were too many."""
        rate = rate or self._default
        if rate is None:
            return
        if self._common is not None and self._circuit.admits():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    refusal = await _refusal(self._common, caller, rate)
            except Exception as error:  # what answers at Redis's address may be anything
                self._circuit.failed()
                log.warning(
                    "this process counts rates alone for %.0f s, Redis failed: %s",
                    AWAY_S,
                    type(error).__name__,
                )
                refusal = await _refusal(self._own, caller, rate)
            else:
                self._circuit.worked()
        else:
            refusal = await _refusal(self._own, caller, rate)
        if refusal is not None:
            raise refusal


async def _refusal(
    strategy: SlidingWindowCounterRateLimiter, caller: str, rate: str
) -> RateLimited | None:
    """Count one request; returns the error for one too many."""
    for item in _parsed(rate):
        if not await strategy.hit(item, caller):
            window = await strategy.get_window_stats(item, caller)
            if (
                window.remaining >= item.amount
            ):  # nothing is counted: the window has just ended, or no Redis answered
                continue
            pause_s = min(max(1, math.ceil(window.reset_time - time.time())), item.get_expiry())
            return RateLimited(f"more than {item}", retry_after_s=pause_s, limit=item.amount)
    return None


@lru_cache(maxsize=1024)
def _parsed(rate: str) -> list[limits.RateLimitItem]:
    return limits.parse_many(rate)
