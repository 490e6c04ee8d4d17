"""Strategy `named-vector`: the new vectors are another named vector of the same points.

Payloads, ids and other vectors stay where they are. The collection's metadata names the vector that
clients pass as `using`: the cutover is one change of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.errors import ReindexingActive, StoreChanged, StoreUnsupported, WrongState
from app.stores.base import StoreId, StoreVectors, Switch, TranslateRows
from app.stores.qdrant.beside import QdrantBeside
from app.stores.qdrant.engine import Having, QdrantEngine, stack
from app.stores.qdrant.layout import (
    LIVE_VECTORS,
    QdrantLayout,
    VectorPlace,
    find_layout,
    metadata_of,
)

#: points of one request that catches up
POINTS_PER_CATCH_UP = 500


class NamedVectorBeside(QdrantBeside[QdrantEngine]):
    """New vectors under another name in the same collection."""

    def _prepared(self) -> QdrantLayout:
        layout = self._layout()
        if layout is None or layout.new is None or layout.old is None:
            raise StoreChanged(
                f"{self._location.collection!r} no longer has both vectors of the reindexing "
                f"{self._tag}. Look at the collection, then begin a new plan."
            )
        size = layout.form.dense[layout.new.vector].size
        if size != self._dim:
            raise StoreChanged(
                f"The vector {layout.new.vector!r} has {size} dimensions, and the reindexing "
                f"writes {self._dim}. Another client replaced it. Begin a new plan."
            )
        return layout

    def prepare(self) -> None:
        layout = find_layout(self._engine, self._location)
        if layout.tag not in (None, self._tag):
            raise ReindexingActive(
                f"The collection has another reindexing, {layout.tag}. Finish or abandon it first."
            )
        if not self._engine.can_add_vectors():
            raise StoreUnsupported(
                "Qdrant adds named vectors to a collection from version 1.18 on, and this server "
                "is older. Choose the strategy `collection`.",
                field="strategy",
            )
        name = layout.form.name
        if layout.tag is None:
            entry = {
                "field": layout.field,
                "old": layout.live.vector,
                "new": _new_name(layout.live.vector, self._tag),
            }
            self._engine.set_metadata(name, {metadata_of(self._tag): entry})
        else:
            entry = layout.form.metadata[metadata_of(self._tag)]
        if entry["new"] not in layout.form.dense:
            like = layout.form.dense[entry["old"]]
            self._engine.add_vector(name, entry["new"], like, self._dim)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        new = self._prepared().side("new")
        self._engine.set_vectors(new.collection, new.vector, ids, vectors, replace=replace)

    def build_index(self) -> None:
        self._engine.wait_for_index(self._prepared().form.name)

    def cutover(self, translate: TranslateRows) -> Switch:
        layout = self._prepared()
        old, new = layout.side("old"), layout.side("new")
        if not layout.cut_over:
            self._fill(old, new, translate)
            self._show(layout, new.vector)
        self._fill(old, new, translate)  # of clients that had not seen the switch
        return Switch(0.0)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        layout = self._prepared()
        if layout.cut_over:
            old, new = layout.side("old"), layout.side("new")
            self._fill(new, old, translate_back)
            self._show(layout, old.vector)
            self._fill(new, old, translate_back)  # of clients that had not seen the switch
        return Switch(0.0)

    def _fill(self, source: VectorPlace, target: VectorPlace, translate: TranslateRows) -> None:
        """Write the vectors of points that a client wrote meanwhile with one of both vectors."""
        size = find_layout(self._engine, self._location).form.dense[source.vector].size
        having = Having(present=source.vector, absent=target.vector)
        offset: StoreId | None = None
        while True:
            points, offset = self._engine.scroll(
                source.collection,
                offset,
                POINTS_PER_CATCH_UP,
                having=having,
                vectors=[source.vector],
            )
            if points:
                ids = [point.id for point in points]
                vectors = translate(ids, stack(points, source.vector, size))
                self._engine.set_vectors(
                    target.collection, target.vector, ids, vectors, replace=False
                )
            if offset is None:
                return

    def _show(self, layout: QdrantLayout, vector: str) -> None:
        live = {**(layout.form.metadata.get(LIVE_VECTORS) or {}), layout.field: vector}
        if vector == layout.field:
            del live[layout.field]
        self._engine.set_metadata(layout.form.name, {LIVE_VECTORS: live or None})

    def finish(self) -> None:
        layout = self._layout()
        if layout is None:
            return
        if not layout.cut_over:
            raise WrongState("The old vectors are in use. Cut over before you finish.")
        if layout.old is not None:
            self._engine.drop_vector(layout.old.collection, layout.old.vector)
        self._engine.set_metadata(layout.form.name, {metadata_of(self._tag): None})

    def abandon(self) -> None:
        layout = self._layout()
        if layout is None:
            return
        if layout.cut_over:
            raise WrongState("The new vectors are in use. Roll back before you abandon.")
        if layout.new is not None:
            self._engine.drop_vector(layout.new.collection, layout.new.vector)
        self._engine.set_metadata(layout.form.name, {metadata_of(self._tag): None})


def _new_name(old: str, tag: str) -> str:
    """Return the name of the new vector: the old one without an earlier tag, and the tag."""
    base = re.sub(r"-[0-9a-f]{8}$", "", old) or "anchorage"
    return f"{base}-{tag}"
