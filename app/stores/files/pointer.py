"""What the file store notes of itself: which file is live, and its reindexing.

`NAME.live.json` has `file`, the file that readers open, and `reindexing`, a tag or null.
Without it, NAME itself is live.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from app.errors import StoreChanged
from app.stores.files.folder import VectorFolder, checked_path

TAG_PATTERN = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class LiveFile:
    """The file that readers open, and the tag of the reindexing; None: there is none."""

    name: str
    tag: str | None = None


@dataclass(frozen=True)
class FilePlan:
    """What `prepare` found: the old file, its fingerprint and its rows; and what it will write."""

    tag: str
    old: str
    new: str
    fingerprint: str
    rows: int
    dim: int


def pointer_of(collection: str) -> str:
    """Return the name of the pointer file."""
    return f"{collection}.live.json"


def parts_of(collection: str, tag: str) -> str:
    """Return the name of the folder of a reindexing."""
    return f"{collection}.{tag}"


def new_name(collection: str, tag: str) -> str:
    """Return the name of the new file: the tag stands before the ending."""
    stem, _, ending = collection.rpartition(".")
    return f"{stem}.{tag}.{ending}"


def read_live(folder: VectorFolder, collection: str) -> LiveFile:
    """Return the live file. Raises StoreChanged for a damaged pointer."""
    pointer = folder.read_json(pointer_of(collection))
    if pointer is None:
        return LiveFile(collection)
    name, tag = pointer.get("file"), pointer.get("reindexing")
    right = tag is None or (isinstance(tag, str) and TAG_PATTERN.fullmatch(tag) is not None)
    place = collection.rpartition("/")[0]
    if not right or not isinstance(name, str) or name.rpartition("/")[0] != place:
        raise StoreChanged(
            f"{pointer_of(collection)!r} does not name a file in its folder. Restore or delete it."
        )
    return LiveFile(checked_path(name), tag)


def write_live(folder: VectorFolder, collection: str, live: LiveFile) -> None:
    """Make a file live for readers, in one step."""
    if live == LiveFile(collection):
        folder.delete(pointer_of(collection))
        return
    value: dict[str, Any] = {"file": live.name, "reindexing": live.tag}
    folder.write_json(pointer_of(collection), value)


def read_plan(folder: VectorFolder, collection: str, tag: str) -> FilePlan | None:
    """Return the plan of a reindexing; None if it has none."""
    value = folder.read_json(f"{parts_of(collection, tag)}/reindexing.json")
    if value is None:
        return None
    try:
        plan = FilePlan(**value)
    except TypeError:
        raise StoreChanged(
            f"{parts_of(collection, tag)}/reindexing.json is damaged. Abandon the reindexing by "
            f"deleting {pointer_of(collection)!r} and this folder."
        ) from None
    checked_path(plan.old)
    checked_path(plan.new)
    return plan
