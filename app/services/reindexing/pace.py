"""The pace of a run: a limit of rows a second, and slower while the store answers slowly."""

from __future__ import annotations

#: the share of its time that a run works: halved by a slow answer of the store, and raised by a
#: quick one
LEAST_SHARE = 1 / 64
SHARE_STEP = 0.05


class Pace:
    """Says how long a run waits after each batch.

    rows_per_second  most rows a second; None: without a limit
    most_latency_ms  time of a search above which the run slows down; None: it never does
    """

    def __init__(
        self, rows_per_second: float | None = None, most_latency_ms: float | None = None
    ) -> None:
        self._rows_per_second = rows_per_second
        self._most_latency_ms = most_latency_ms
        self.share = 1.0

    @property
    def measures_latency(self) -> bool:
        """Return whether the latency of the store matters."""
        return self._most_latency_ms is not None

    def record_latency(self, latency_ms: float) -> None:
        """Slow down or speed up by the time that a search took."""
        if self._most_latency_ms is None:
            return
        if latency_ms > self._most_latency_ms:
            self.share = max(LEAST_SHARE, self.share / 2)
        else:
            self.share = min(1.0, self.share + SHARE_STEP)

    def pause_s(self, rows: int, seconds: float) -> float:
        """Return how long to wait after a batch of `rows` that took `seconds`."""
        pause = seconds * (1 / self.share - 1)
        if self._rows_per_second is not None:
            pause = max(pause, rows / self._rows_per_second - seconds)
        return pause
