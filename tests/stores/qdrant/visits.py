"""Clients of Qdrant's folders, which share the one handle of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.stores.qdrant.client import leave_folder, share_folder


@contextmanager
def visit_folder(path: str, load: Callable[[], Any]) -> Iterator[Any]:
    """Yield the handle for one block."""
    marker = object()
    folder = share_folder(path, id(marker), load)
    try:
        with folder.lock:
            yield folder.handle
    finally:
        leave_folder(path, id(marker))
