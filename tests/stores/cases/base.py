"""What the contract suite needs of each kind of store: to fill a collection, and to write to it.

A case writes as other clients of the store do: with the store's own library, not by the connector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.stores.port import StoreId, StoreLocation


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a collection. payloads: JSON objects, each with a member `text`."""

    ids: Sequence[StoreId]
    vectors: np.ndarray
    payloads: Sequence[Mapping[str, Any]]


class StoreCase(ABC):
    """One kind of store."""

    #: kind of the connector
    kind: str
    #: type of the ids that `fill` and `insert` write
    id_type: type[int] | type[str] = int
    #: whether rows hold more than an id and a vector
    has_payloads = True
    #: a migration takes seconds, most of which the store waits
    is_slow = False

    def ids(self, *numbers: int) -> list[StoreId]:
        """Return the ids of the rows with these numbers."""
        return [self.id_type(each) for each in numbers]

    @abstractmethod
    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        """Create a collection with an index of cosines, and return its location."""

    @abstractmethod
    def insert(self, location: StoreLocation, rows: Rows) -> None:
        """Insert rows, or replace those of the same ids, as the store's clients do."""

    @abstractmethod
    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        """Delete rows, as the store's clients do."""

    @abstractmethod
    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        """Return the vector and the payload of each row, as the store's clients read them."""

    def contents(self, location: StoreLocation) -> dict[StoreId, dict[str, Any]]:
        """Return the payload of each row."""
        return {id: payload for id, (_, payload) in self.read(location).items()}

    def remove(self, location: StoreLocation) -> None:  # noqa: B027 (most lie in a temporary folder)
        """Delete the collection."""


class LiveStoreCase(StoreCase):
    """A kind of store with a cutover."""

    @abstractmethod
    def change_text(self, location: StoreLocation, id: StoreId, text: str) -> None:
        """Change only the text of a row, as the store's clients do."""
