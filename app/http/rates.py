"""Limits the rate of requests of one key, or of one address where callers need no key.

Redis counts the requests of all API processes, or memory those of one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import lru_cache

import limits
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from app.db.redis import AWAY_S, Circuit
from app.errors import RateLimited

log = logging.getLogger("anchorage.limiter")

#: how long a request waits for Redis to count it; after that, this process counts for AWAY_S
REDIS_COUNT_S = 0.5


class RateLimiter:
    """A sliding window for each caller.

    default  the rate of callers that have no other; None: no limit
    """

    def __init__(self, default: str | None, redis_url: str | None, prefix: str) -> None:
        self.default = default
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._common: SlidingWindowCounterRateLimiter | None = None
        self._circuit = Circuit()
        if redis_url is not None:
            storage = RedisStorage(
                f"async+{redis_url}",
                implementation="redispy",
                key_prefix=f"{prefix}:rate",
                socket_timeout=REDIS_COUNT_S,
                socket_connect_timeout=REDIS_COUNT_S,
                protocol=2,
            )
            self._common = SlidingWindowCounterRateLimiter(storage)

    async def count(self, caller: str, rate: str) -> None:
        """Counts one request."""
        if self._common is not None and self._circuit.admits():
            try:
                async with asyncio.timeout(REDIS_COUNT_S):
                    refusal = await _refusal(self._common, caller, rate)
            except Exception as error:  # any server may answer at Redis's address
                self._circuit.failed()
                log.warning(
                    "Redis failed, and this process counts its own rates for %.0f s: %s",
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
    """Counts one request and returns the error if it is above the rate."""
    for item in _parsed(rate):
        if not await strategy.hit(item, caller):
            window = await strategy.get_window_stats(item, caller)
            if window.remaining >= item.amount:  # the window has just ended, or Redis is away
                continue
            pause_s = min(max(1, math.ceil(window.reset_time - time.time())), item.get_expiry())
            detail = f"The rate limit is {item}. Try again in {pause_s} s."
            return RateLimited(detail, retry_after_s=pause_s, limit=item.amount)
    return None


@lru_cache(maxsize=1024)
def _parsed(rate: str) -> list[limits.RateLimitItem]:
    return limits.parse_many(rate)
