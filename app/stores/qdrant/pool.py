"""Folders that this process has open: Qdrant lets one handle in, which all stores share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any


@dataclass(eq=False)
class OpenFolder:
    """One handle on a folder. users: keys of the engines that use it; lock: serialises calls."""

    handle: Any
    users: set[int] = field(default_factory=set)
    lock: RLock = field(default_factory=RLock)


_FOLDERS: dict[str, OpenFolder] = {}
_LOCK = RLock()


def share_folder(path: str, user: int, load: Callable[[], Any]) -> OpenFolder:
    """Return the handle of a folder; `load` opens it if this process has not."""
    with _LOCK:
        folder = _FOLDERS.get(path)
        if folder is None:
            folder = _FOLDERS[path] = OpenFolder(load())
        folder.users.add(user)
        return folder


def leave_folder(path: str, user: int) -> None:
    """Close the handle when its last user leaves."""
    with _LOCK:
        folder = _FOLDERS.get(path)
        if folder is None:
            return
        folder.users.discard(user)
        if not folder.users:
            del _FOLDERS[path]
            with folder.lock:
                folder.handle.close()
