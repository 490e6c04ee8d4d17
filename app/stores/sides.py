"""The two collections of a migration, and the rows that are compared and copied between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.errors import StoreChanged
from app.stores.port import Side, StoreId, StoreVectors

#: none: there is no migration; open: clients see the old vectors; between: a crash left the
#: collection without its name, in the middle of a swap; cut: clients see the new vectors
Phase = Literal["none", "open", "between", "cut"]


@dataclass(frozen=True, eq=False)
class StoredRow:
    """One row of a collection.

    vector   None: it has none, or it was not read
    payload  what clients see of it besides its vectors; others: its other vectors, by their names
    digest   a number of what a copy of the row must follow: its id, its payload and `others`

    Without its content only the id and the vector were read.
    """

    id: StoreId
    vector: StoreVectors | None
    payload: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    digest: int = 0


@dataclass(frozen=True, eq=False)
class Sides:
    """Where the old and the new vectors are, and the tag of the migration; None: there is none.

    A place is the connector's own: a collection, its name, or a column.
    """

    phase: Phase
    tag: str | None
    old: Any
    new: Any = None

    @property
    def visible(self) -> Any:
        """The place that clients see; in the middle of a swap, the old one."""
        return self.new if self.phase == "cut" else self.old

    def place(self, side: Side) -> Any:
        """Return the place of a side. Raises StoreChanged if there is none."""
        found = self.old if side == "old" else self.new
        if found is None:
            raise StoreChanged(
                f"The store has no {side} vectors of a migration. Plan a migration first."
            )
        return found


def opposite(side: Side) -> Side:
    return "new" if side == "old" else "old"


def stack_rows(rows: Sequence[StoredRow], dim: int) -> StoreVectors:
    """Return the vectors (n, dim) of rows that all have one."""
    if not rows:
        return np.zeros((0, dim), np.float32)
    return np.ascontiguousarray([row.vector for row in rows], np.float32)


def fingerprint(id: StoreId, digest: int | None) -> int:
    """Return a number below 2^64 of a row as it was read."""
    text = f"{id!r} {digest}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def contains(sorted_numbers: NDArray[np.uint64], number: int) -> bool:
    place = int(np.searchsorted(sorted_numbers, np.uint64(number)))
    return place < len(sorted_numbers) and int(sorted_numbers[place]) == number
