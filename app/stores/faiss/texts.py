"""The file of texts next to an index, and errors of files that cannot be read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import AnchorageError, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.base import StoreId

#: age of a file that no client is in the middle of writing
SETTLED_S = 2.0

#: the smallest id
FIRST = -(2**63)


class JsonLines:
    """A file of JSON objects by an integer id. The last line of an id counts."""

    def __init__(self, path: Path, id_field: str) -> None:
        self._path, self._id_field = path, id_field
        self._places: dict[int, int] = {}
        place = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                row = _parse(line) if line.strip() else {id_field: FIRST}
                if type(row.get(id_field)) is not int:
                    raise unreadable(
                        path,
                        f"Line {number} of `{path.name}` is no JSON object with an integer "
                        f"`{id_field}`. Correct it.",
                    )
                self._places[row[id_field]] = place
                place += len(line)

    def has_any(self, ids: NDArray[np.int64]) -> bool:
        """Return whether the file has a row of one of these ids (n,)."""
        return not self._places.keys().isdisjoint(ids.tolist())

    def row(self, id: StoreId) -> dict[str, Any]:
        """Return all but the id of a row; an empty object if the file lacks it."""
        place = self._places.get(id) if isinstance(id, int) else None
        if place is None:
            return {}
        with self._path.open("rb") as file:
            file.seek(place)
            row = _parse(file.readline())
        if row.pop(self._id_field, None) != id:
            raise StoreChanged("A client rewrote the file of texts while it was read. Repeat.")
        return row


def is_settled(path: Path) -> bool:
    """Return whether no client is in the middle of writing a file."""
    return time.time() - path.stat().st_mtime > SETTLED_S


def unreadable(path: Path, detail: str) -> AnchorageError:
    """Return the error of a file that cannot be read, which is final where no client writes it."""
    if is_settled(path):
        return StoreUnsupported(detail, field="collection")
    return StoreUnavailable(
        f"{detail} If a client is writing it, try again; clients should write another file and "
        "rename it."
    )


def _parse(line: bytes) -> dict[str, Any]:
    """Return the object of a line; an empty one for anything else."""
    try:
        row = json.loads(line, parse_constant=lambda name: None)  # JSON has no NaN
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
