"""What both strategies of Qdrant share: a layout that knows the reindexing, and no capture."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from app.errors import StoreUnsupported
from app.stores.base import Beside, Changes, StoreLocation, StoreVectors
from app.stores.qdrant.engine import Having, QdrantEngine
from app.stores.qdrant.layout import QdrantLayout, find_layout

Engine = TypeVar("Engine", bound=QdrantEngine)


class QdrantBeside(Beside, Generic[Engine]):
    """New vectors in Qdrant, which reports no writes of its clients."""

    def __init__(self, engine: Engine, location: StoreLocation, tag: str, dim: int) -> None:
        self._engine, self._location, self._tag, self._dim = engine, location, tag, dim

    def _layout(self) -> QdrantLayout | None:
        """Return the layout; None if this reindexing is not in the collection."""
        layout = find_layout(self._engine, self._location)
        return layout if layout.tag == self._tag else None

    def count(self) -> int:
        layout = self._layout()
        if layout is None or layout.new is None:
            return 0
        return self._engine.count(layout.new.collection, Having(present=layout.new.vector))

    def changes(self, limit: int) -> Changes:
        return Changes([], np.empty((0, self._dim), np.float32))

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        if len(changes):
            raise StoreUnsupported("Qdrant captures no writes, so there are no changes to apply.")
