"""A progress bar, where rich is installed."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class ProgressBar:
    """Shows how much is done; without the package rich, or if not enabled, it shows nothing."""

    def __init__(self, what: str, *, enabled: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        if enabled:
            try:
                from rich.progress import Progress
            except ImportError:
                return
            self._bar = Progress()
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

    def update(self, done: float | None, total: float | None) -> None:
        """Show that `done` of `total` is done."""
        if self._bar is not None and done is not None:
            self._bar.update(self._task, completed=done, total=total)
