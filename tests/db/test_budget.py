"""Counts of what a caller may have in a time."""

from __future__ import annotations

import time
from threading import Event

import anyio
from anyio import CapacityLimiter
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, RateLimiter

from app.db.budget import COUNT_S, Counter


def test_a_count_that_redis_delays_is_made_by_the_process_until_redis_is_asked_again() -> None:
    counter, ended = Counter(FixedWindowRateLimiter, "redis://127.0.0.1:1", "count"), Event()

    def who(strategy: RateLimiter) -> str:
        if isinstance(strategy.storage, MemoryStorage):
            return "own"
        time.sleep(COUNT_S + 0.2)
        ended.set()
        return "common"

    async def ask() -> tuple[str, float]:
        began = time.monotonic()
        return await counter.ask_soon(who, CapacityLimiter(1)), time.monotonic() - began

    who_counted, took_s = anyio.run(ask)
    assert (who_counted, took_s < 2) == ("own", True)
    assert ended.wait(10)
    time.sleep(0.05)  # the thread returns: its late answer is no reason to ask Redis again
    assert counter.ask(who) == "own" == anyio.run(ask)[0]
