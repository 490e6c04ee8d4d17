"""One embedded process a data folder: a second one would take the first one's running jobs for abandoned."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderHeld(Exception):
    """Another process has the folder."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder until the end, or raise FolderHeld when another process does; a dead process holds nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderHeld(f"another process serves the data dir {folder}") from None
        yield
