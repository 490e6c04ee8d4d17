"""A progress bar; a line of text where rich is not installed, lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

#: the pause between two lines where stderr is no terminal, unless the phase changes
LINE_S = 10.0

#: phases of a migration's jobs whose names a person does not know
PHASES = {
    "prepare": "begins",
    "checksum": "compares all but the vectors",
    "anchors": "first rows",
    "sweep": "new vectors",
    "changes": "rows that clients wrote",
    "sync": "rows that clients wrote",
    "filled": "done",
}


def describe(made: Mapping[str, Any]) -> str:
    """Return a job's phase, what it waits for, its speed, and the money that it spent."""
    speed, spent, away = made.get("rows_per_second"), made.get("spent"), made.get("waiting")
    parts = [
        PHASES.get(phase := str(made.get("phase") or ""), phase),
        describe_absence(away) if away else "",
        f"{speed:,.0f} rows/s" if speed else "",
        "" if spent is None else f"{money(spent)} spent",
    ]
    return ", ".join(filter(None, parts))


def describe_absence(away: Mapping[str, Any]) -> str:
    """Return why a migration waits, when it asks again, and when it pauses."""
    again, pauses = duration(away["again_s"]), duration(away["pauses_s"])
    return f"{away['detail']} Asks again in {again}, pauses after {pauses} without an answer"


def money(value: float) -> str:
    """Return a price to the cent, and below .1 with two digits."""
    digits = 2 if value >= 0.1 or value == 0 else min(8, 1 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """Return a duration as people say it: 40 s, 12 min, 3.5 h, 2.1 days."""
    for most, unit, size in ((100, "s", 1), (100 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < most:
            return f"{seconds / size:.{1 if unit == 'h' else 0}f} {unit}"
    return f"{seconds / 86_400:.1f} days"


class ProgressBar:
    """Shows on stderr how much is done; if not enabled, it shows nothing."""

    def __init__(self, what: str, *, enabled: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._what, self._enabled = what, enabled
        self._terminal = enabled and sys.stderr.isatty()
        self._shown: tuple[str, float] | None = None
        if enabled:
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ImportError:
                return
            console = Console(stderr=True)
            if console.is_terminal or console.is_jupyter:
                self._bar = Progress(console=console)
                self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._enabled and self._terminal:
            print(file=sys.stderr)

    def update(
        self,
        done: float | None,
        total: float | None,
        phase: str = "",
        left: float | None = None,
    ) -> None:
        """Show that `done` of `total` is done, the phase of the work or what delays it, and the
        seconds left; rich estimates these itself.
        """
        if total is not None and done == total - 1:  # a job that does not know its end
            done = total = None
        if self._bar is not None:
            what = f"{self._what}: {phase}" if phase else self._what
            self._bar.update(self._task, completed=done, total=total, description=what)
        elif self._enabled:
            share = "" if done is None else f"{done / total:.0%}" if total else f"{done:,.0f}"
            share += "" if left is None else f", {duration(left)} left"
            line = ": ".join(filter(None, (self._what, phase, share)))
            if self._terminal:
                print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
            elif self._is_due(phase.partition(",")[0]):
                print(line, file=sys.stderr, flush=True)

    def _is_due(self, phase: str) -> bool:
        now = time.monotonic()
        if self._shown and self._shown[0] == phase and now < self._shown[1] + LINE_S:
            return False
        self._shown = (phase, now)
        return True
