"""A lock on the data folder: a second process would take the first one's jobs for lost."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderHeld(Exception):
    """Another process holds the folder."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder while the context is open. Raises FolderHeld when another process holds it.

    The lock ends with its process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderHeld(f"another process uses the data folder {folder}") from None
        yield
