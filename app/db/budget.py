"""Counts of texts that a project may have embedded: in Redis for all processes, or in memory.

Redis that is away counts nothing: this process then counts what it sees itself.
"""

from __future__ import annotations

import logging

from limits import RateLimitItemPerDay, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import FixedWindowRateLimiter

from app.db.redis import AWAY_S, Circuit

log = logging.getLogger("anchorage.budget")

#: most texts of one project in a day
TEXTS_A_DAY = 500_000

#: how long a count waits for Redis; after that, this process counts for AWAY_S
COUNT_S = 0.5


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
        self._own = self._common = FixedWindowRateLimiter(MemoryStorage())
        self._circuit = Circuit()
        if redis_url is not None:
            storage = RedisStorage(
                redis_url,
                key_prefix=f"{prefix}:texts",
                socket_timeout=COUNT_S,
                socket_connect_timeout=COUNT_S,
                protocol=2,
            )
            self._common = FixedWindowRateLimiter(storage)

    def spend(self, project: str, count: int) -> int:
        """Return how many of `count` texts the project may have embedded now, and count them."""
        if self._common is not self._own and self._circuit.admits():
            try:
                granted = self._spend(self._common, project, count)
            except Exception as error:  # any server may answer at Redis's address
                self._circuit.failed()
                log.warning("Redis failed and is not called for %.0f s: %r", AWAY_S, error)
            else:
                self._circuit.worked()
                return granted
        return self._spend(self._own, project, count)

    def _spend(self, counter: FixedWindowRateLimiter, project: str, count: int) -> int:
        for window in self._windows:
            count = min(count, counter.get_window_stats(window, project).remaining)
        # Of two requests at once that want the rest, one gets it: a window counts beyond its end.
        hits = [count > 0 and counter.hit(window, project, cost=count) for window in self._windows]
        return count if all(hits) else 0
