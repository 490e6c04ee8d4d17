"""Limits the rate of requests of one key, or of one address where callers need no key."""

from __future__ import annotations

import math
import time
from functools import lru_cache

import limits
from anyio import CapacityLimiter
from limits.strategies import RateLimiter, SlidingWindowCounterRateLimiter

from app.db.budget import Counter
from app.errors import RateLimited

#: requests that wait for Redis at once
THREADS = 16


class Rates:
    """A sliding window for each caller.

    default  the rate of callers that have no other; None: no limit
    """

    def __init__(self, default: str | None, redis_url: str | None, prefix: str) -> None:
        self.default = default
        self._counter = Counter(SlidingWindowCounterRateLimiter, redis_url, f"{prefix}:rate")
        self._threads = CapacityLimiter(THREADS)

    async def count(self, caller: str, rate: str) -> None:
        """Counts one request. Raises RateLimited."""

        def hit(counter: RateLimiter) -> RateLimited | None:
            return _refusal(counter, caller, rate)

        refusal = await self._counter.ask_soon(hit, self._threads)
        if refusal is not None:
            raise refusal


def _refusal(strategy: RateLimiter, caller: str, rate: str) -> RateLimited | None:
    """Counts one request and returns the error if it is above the rate."""
    for item in _parsed(rate):
        if not strategy.hit(item, caller):
            window = strategy.get_window_stats(item, caller)
            if window.remaining >= item.amount:  # the window has just ended, or Redis is away
                continue
            pause_s = min(max(1, math.ceil(window.reset_time - time.time())), item.get_expiry())
            detail = f"The rate limit is {item}. Try again in {pause_s} s."
            return RateLimited(detail, retry_after_s=pause_s, limit=item.amount)
    return None


@lru_cache(maxsize=1024)
def _parsed(rate: str) -> list[limits.RateLimitItem]:
    return limits.parse_many(rate)
