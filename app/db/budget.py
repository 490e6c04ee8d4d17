"""Counts of what a caller may have in a time: in Redis for all processes, or in memory.

Redis that is away counts nothing: this process then counts what it sees itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, move_on_after, to_thread
from limits import RateLimitItemPerDay, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import FixedWindowRateLimiter, RateLimiter

from app.db.redis import AWAY_S, Circuit

log = logging.getLogger("anchorage.budget")

Answer = TypeVar("Answer")

#: most texts of one project in a day
TEXTS_A_DAY = 500_000

#: how long a count waits for Redis; after that, this process counts for AWAY_S
COUNT_S = 0.5


class Counter:
    """Windows of one strategy.

    is_shared  whether Redis counts, which takes a round trip
    """

    def __init__(self, strategy: type[RateLimiter], redis_url: str | None, prefix: str) -> None:
        self.is_shared = redis_url is not None
        self._own = self._common = strategy(MemoryStorage())
        self._circuit = Circuit()
        if redis_url is not None:
            storage = RedisStorage(
                redis_url,
                key_prefix=prefix,
                socket_timeout=COUNT_S,
                socket_connect_timeout=COUNT_S,
                protocol=2,
            )
            self._common = strategy(storage)

    def ask(self, question: Callable[[RateLimiter], Answer]) -> Answer:
        """Return the answer of the common counter, or of the own one while Redis is away."""
        if self.is_shared and self._circuit.admits():
            try:
                answer = question(self._common)
            except Exception as error:  # any server may answer at Redis's address
                return self.ask_own(question, error)
            self._circuit.worked()
            return answer
        return question(self._own)

    async def ask_soon(
        self, question: Callable[[RateLimiter], Answer], threads: CapacityLimiter
    ) -> Answer:
        """Return the same on an event loop: a common counter has COUNT_S in all to answer."""
        if not (self.is_shared and self._circuit.admits()):
            return question(self._own)
        failure: object = "no answer in time"
        with move_on_after(COUNT_S):
            try:
                # Only the count: a thread that is given up must not report that Redis works.
                answer = await to_thread.run_sync(
                    question, self._common, limiter=threads, abandon_on_cancel=True
                )
            except Exception as error:  # any server may answer at Redis's address
                failure = error
            else:
                self._circuit.worked()
                return answer
        return self.ask_own(question, failure)

    def ask_own(self, question: Callable[[RateLimiter], Answer], error: object) -> Answer:
        """Return the answer of the own counter, which counts until Redis is asked again."""
        self._circuit.failed()
        log.warning("Redis failed and is not called for %.0f s: %r", AWAY_S, error)
        return question(self._own)


class TextBudget:
    """The texts that a project may have embedded in a minute and in a day."""

    def __init__(
        self,
        a_minute: int = 6_000,
        redis_url: str | None = None,
        prefix: str = "",
        *,
        a_day: int = TEXTS_A_DAY,
    ) -> None:
        self.a_minute, self.a_day = a_minute, a_day
        self._windows = (RateLimitItemPerMinute(a_minute), RateLimitItemPerDay(a_day))
        self._counter = Counter(FixedWindowRateLimiter, redis_url, f"{prefix}:texts")

    def spend(self, project: str, count: int) -> int:
        """Return how many of `count` texts the project may have embedded now, and count them."""
        return self._counter.ask(lambda counter: self._spend(counter, project, count))

    def _spend(self, counter: RateLimiter, project: str, count: int) -> int:
        for window in self._windows:
            count = min(count, counter.get_window_stats(window, project).remaining)
        # Of two requests at once that want the rest, one gets it: a window counts beyond its end.
        hits = [count > 0 and counter.hit(window, project, cost=count) for window in self._windows]
        return count if all(hits) else 0
