"""A Qdrant collection: on a server, in a folder of local mode, or a shard of the edge engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.errors import StoreUnsupported
from app.stores.base import (
    Beside,
    Capabilities,
    Cursor,
    Hits,
    Page,
    RowsChecksum,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.qdrant.catch_up import digest
from app.stores.qdrant.client import ClientEngine
from app.stores.qdrant.engine import (
    CollectionForm,
    Having,
    NearestQuery,
    QdrantEngine,
    StoredPoint,
    checked_name,
    metric_of,
    point_id,
    stack,
)
from app.stores.qdrant.layout import QdrantLayout, VectorPlace, find_layout
from app.stores.qdrant.named_vector import NamedVectorBeside
from app.stores.qdrant.second_collection import SecondCollectionBeside, copy_problem

#: points of one request of a checksum
POINTS_PER_READ = 1000

LENGTHS_LOST = StoreNote(
    "lengths-lost",
    "A Cosine collection stores unit vectors. The lengths of the vectors are lost, so `keep_norms` "
    "cannot be used.",
)


UNNAMED_LOCAL = StoreNote(
    "unnamed-vector",
    "The collection's vector has no name. With the strategy `named-vector`, local mode refuses "
    "points whose vector is a plain list; clients must send an object with the name ''. "
    "Qdrant's engine accepts both.",
)

#: names of payload fields that the service reads texts from
PAYLOAD_PATH = re.compile(r"[\w-][\w .\[\]-]*")


class QdrantStore(Store):
    """A collection. keeps_lengths is False until `facts` finds that it is not a Cosine one."""

    capabilities = Capabilities(
        strategies=("collection", "named-vector"),
        atomic_cutover=True,
        keeps_lengths=False,
        filters=True,
    )

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.engine = self._engine(location)

    def _engine(self, location: StoreLocation) -> QdrantEngine:
        return ClientEngine(location.url, repr(checked_name(location.collection)))

    def layout(self) -> QdrantLayout:
        """Return where the vectors are now."""
        return find_layout(self.engine, self.location)

    def close(self) -> None:
        self.engine.close()

    # --- facts ------------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        layout = self.layout()
        place = layout.live
        form = layout.form
        dense = form.dense[place.vector]
        metric = metric_of(dense, place.vector)
        self.capabilities = replace(type(self).capabilities, keeps_lengths=metric != "cosine")
        rows = self.engine.count(place.collection, Having(present=place.vector))
        strategies, notes = self._strategies(form)
        if metric == "cosine":
            notes.append(LENGTHS_LOST)
        if not place.vector and isinstance(self.engine, ClientEngine) and not self.engine.remote:
            notes.append(UNNAMED_LOCAL)
        return StoreFacts(
            rows=rows,
            dim=dense.size,
            metric=metric,
            dtype=dense.dtype,
            indexed=form.indexed,
            strategies=tuple(strategies),
            vector_bytes=rows * dense.size * (2 if dense.dtype == "float16" else 4),
            notes=tuple(notes),
        )

    def _strategies(self, form: CollectionForm) -> tuple[list[str], list[StoreNote]]:
        strategies, notes = [], []
        if "collection" in self.capabilities.strategies:
            problem = copy_problem(form, self.location)
            if problem is None:
                strategies.append("collection")
            else:
                notes.append(problem)
        if self.engine.can_add_vectors():
            strategies.append("named-vector")
        else:
            notes.append(
                StoreNote(
                    "no-named-vector",
                    "Qdrant adds named vectors to a collection from version 1.18 on. This server "
                    "is older, so the strategy `named-vector` is not possible.",
                )
            )
        return strategies, notes

    # --- rows -------------------------------------------------------------------------------------

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        layout = self.layout()
        place = layout.side(side)
        dim = self._dim(layout, place)
        while True:
            points, cursor = self.engine.scroll(
                place.collection, cursor, limit, vectors=[place.vector]
            )
            points = [point for point in points if place.vector in point.vectors]
            if points or cursor is None:
                return _page(points, place.vector, dim, cursor)

    def sample(self, count: int, seed: int = 0) -> Page:
        layout = self.layout()
        place = layout.side("old")
        points = self.engine.sample(place.collection, place.vector, count)
        return _page(points, place.vector, self._dim(layout, place))

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        layout = self.layout()
        place = layout.side(side)
        found = self._retrieve(place.collection, ids, vectors=[place.vector])
        points = [point for point in found if point and place.vector in point.vectors]
        return Page(
            [
                each
                for each, point in zip(ids, found, strict=True)
                if point and place.vector in point.vectors
            ],
            stack(points, place.vector, self._dim(layout, place)),
        )

    def texts(self, ids: Sequence[StoreId]) -> Sequence[str | None]:
        field = self.location.text_field
        if field is None:
            raise StoreUnsupported(
                "The store was registered without `text_field`, so there are no texts. Register "
                "it again with the payload field that holds the text.",
                field="text_field",
            )
        if not PAYLOAD_PATH.fullmatch(field):
            raise StoreUnsupported(
                f"`text_field` is {field!r}, which is not the path of a payload field. Use "
                "letters, digits, `_`, `-`, spaces, and dots between nested fields.",
                field="text_field",
            )
        place = self.layout().live
        found = self._retrieve(place.collection, ids, payload=[field])
        return [_text(point.payload, field) if point else None for point in found]

    def _retrieve(
        self, collection: str, ids: Sequence[StoreId], **what: Any
    ) -> list[StoredPoint | None]:
        """Return the point of each id; None where there is none."""
        numbers = [point_id(each) for each in ids]
        known = list(dict.fromkeys(each for each in numbers if each is not None))
        found: dict[StoreId, StoredPoint] = {}
        for first in range(0, len(known), POINTS_PER_READ):
            part = known[first : first + POINTS_PER_READ]
            found |= self.engine.retrieve(collection, part, **what)
        return [None if each is None else found.get(each) for each in numbers]

    def _dim(self, layout: QdrantLayout, place: VectorPlace) -> int:
        form = layout.form
        if place.collection != form.name:
            form = self.engine.form(place.collection)
        metric_of(form.dense[place.vector], place.vector)
        return form.dense[place.vector].size

    # --- searches and checks ----------------------------------------------------------------------

    def search(
        self,
        queries: StoreVectors,
        k: int,
        *,
        filter: Any = None,
        side: Side = "old",
        exact: bool = False,
        vectors: bool = False,
        payload: bool = False,
    ) -> Sequence[Hits]:
        if filter is not None and not self.capabilities.filters:
            raise StoreUnsupported(
                "This kind of store takes no filter. Remove `filter`.", field="filter"
            )
        layout = self.layout()
        place = layout.side(side)
        query = NearestQuery(place.vector, k, filter, exact, vectors, payload)
        hits = self.engine.nearest(place.collection, queries, query)
        form = layout.form if place.collection == layout.form.name else None
        dense = (form or self.engine.form(place.collection)).dense[place.vector]
        if metric_of(dense, place.vector) != "euclidean":
            return hits
        # Qdrant answers distances: the smallest is nearest
        return [
            Hits(each.ids, [-score for score in each.scores], each.vectors, each.payloads)
            for each in hits
        ]

    def checksum(self) -> RowsChecksum:
        layout = self.layout()
        place = layout.live
        mine = {each.vector for each in (layout.old, layout.new) if each}
        others = [each for each in [*layout.form.dense, *layout.form.sparse] if each not in mine]
        rows, total, offset = 0, 0, None
        while True:
            points, offset = self.engine.scroll(
                place.collection, offset, POINTS_PER_READ, payload=True, vectors=others or False
            )
            for point in points:
                total += digest(point, others, layout.form)
            rows += len(points)
            if offset is None:
                return RowsChecksum(rows, f"{total % 2**128:032x}")

    def beside(self, tag: str, dim: int, strategy: str | None = None) -> Beside:
        strategy = strategy or self.capabilities.strategies[0]
        if strategy not in self.capabilities.strategies:
            raise StoreUnsupported(
                f"Qdrant has no strategy {strategy!r}. It has "
                f"{', '.join(self.capabilities.strategies)}.",
                field="strategy",
            )
        if strategy == "named-vector":
            return NamedVectorBeside(self.engine, self.location, tag, dim)
        assert isinstance(self.engine, ClientEngine)
        return SecondCollectionBeside(self.engine, self.location, tag, dim)


def _page(
    points: Sequence[StoredPoint], vector: str, dim: int, cursor: Cursor | None = None
) -> Page:
    return Page([point.id for point in points], stack(points, vector, dim), cursor)


def _text(payload: Mapping[str, Any], field: str) -> str | None:
    """Return a payload field, whose name may have dots for nested objects."""
    if field in payload:
        value: Any = payload[field]
    else:
        value = payload
        for part in field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None
