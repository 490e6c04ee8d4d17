"""Counts of what a caller may have in a time."""

from __future__ import annotations

import time

import anyio
from anyio import CapacityLimiter
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, RateLimiter

from app.db.budget import Counter


def test_a_count_that_redis_delays_is_made_by_the_process() -> None:
    counter = Counter(FixedWindowRateLimiter, "redis://127.0.0.1:1", "count")

    def who(strategy: RateLimiter) -> str:
        if isinstance(strategy.storage, MemoryStorage):
            return "own"
        time.sleep(3)  # as a name server that does not answer
        return "common"

    async def ask() -> tuple[str, float]:
        began = time.monotonic()
        return await counter.ask_soon(who, CapacityLimiter(1)), time.monotonic() - began

    who_counted, took_s = anyio.run(ask)
    assert (who_counted, took_s < 2) == ("own", True)
    assert counter.ask(who) == "own"  # Redis is not asked again at once
