"""A progress bar, or a line of text where rich is not installed."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class ProgressBar:
    """Shows on stderr how much is done; if not enabled, it shows nothing."""

    def __init__(self, what: str, *, enabled: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._plain = what if enabled else ""
        if enabled:
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ImportError:
                return
            self._plain = ""
            self._bar = Progress(console=Console(stderr=True))
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
        elif self._plain:
            print(file=sys.stderr)

    def update(self, done: float | None, total: float | None) -> None:
        """Show that `done` of `total` is done."""
        if done is None:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif self._plain:
            share = f"{done / total:.0%}" if total else f"{done:,.0f}"
            print(f"\r{self._plain}: {share}", end="", file=sys.stderr, flush=True)
