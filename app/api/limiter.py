"""How many requests a key may send: counted in Redis for all API processes, or in memory. Constant memory a key."""

from __future__ import annotations

import logging
import math
import time
from functools import lru_cache

import limits
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.exceptions import RedisError

from app.errors import RateLimited

log = logging.getLogger("anchorage.limiter")

#: after a failed call Redis is left alone for so long; this process counts by itself meanwhile
AWAY_S = 2.0
ANSWER_S = 0.5


class RateLimiter:
    """A sliding window for each caller; `default` is the rate of callers without one of their own."""

    def __init__(self, default: str | None, redis_url: str | None, prefix: str) -> None:
        self._default = default
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._common: SlidingWindowCounterRateLimiter | None = None
        self._away_until = 0.0
        if redis_url is not None:
            storage = RedisStorage(
                f"async+{redis_url}",
                implementation="redispy",
                key_prefix=f"{prefix}:rate",
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
            )
            self._common = SlidingWindowCounterRateLimiter(storage)

    async def count(self, caller: str, rate: str | None) -> None:
        """Count one request. Raises RateLimited when there were too many."""
        rate = rate or self._default
        if rate is None:
            return
        if self._common is not None and time.monotonic() >= self._away_until:
            try:
                await _count(self._common, caller, rate)
            except (RedisError, OSError) as error:
                self._away_until = time.monotonic() + AWAY_S
                log.warning("rates are counted by this process alone, Redis does not answer: %s", error)
            else:
                return
        await _count(self._own, caller, rate)


async def _count(strategy: SlidingWindowCounterRateLimiter, caller: str, rate: str) -> None:
    for item in _parsed(rate):
        if not await strategy.hit(item, caller):
            window = await strategy.get_window_stats(item, caller)
            pause_s = max(1, math.ceil(window.reset_time - time.time()))
            raise RateLimited(f"more than {item}", retry_after_s=pause_s, limit=item.amount)


@lru_cache(maxsize=1024)
def _parsed(rate: str) -> list[limits.RateLimitItem]:
    return limits.parse_many(rate)
