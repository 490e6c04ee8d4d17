"""A Qdrant collection as it is read: on a server, or in a folder of local mode.

Where the old and the new vectors are, is found by what a reindexing left in the collection.
Strategy `collection`: the aliases `anchorage-TAG-old` and `anchorage-TAG-new` name the
collections.
Strategy `named-vector`: the metadata `anchorage_TAG` names both vectors, and `anchorage_vectors`
names the vector that clients pass as `using`.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qdrant_client import models

from app.errors import InvalidRequest, StoreChanged, StoreUnsupported
from app.stores.base import (
    Capabilities,
    Cursor,
    Hits,
    Metric,
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
from app.stores.common import rows_checksum
from app.stores.qdrant.catch_up import digest
from app.stores.qdrant.client import (
    POINTS_PER_READ,
    CollectionForm,
    DenseForm,
    QdrantEngine,
    StoredPoint,
    VectorPlace,
    having,
    point_id,
    stack,
)

#: name of the metric of each distance that the connector reads
METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclidean"}

#: characters that no Qdrant server allows in the name of a collection
FORBIDDEN_IN_COLLECTIONS = frozenset('<>:"/\\|?*\0\x1f')

#: member of the metadata that maps each replaced vector to the live one
LIVE_VECTORS = "anchorage_vectors"

TAGGED_ALIAS = re.compile(r"anchorage-([0-9a-f]{8})-(old|new)")
TAGGED_METADATA = re.compile(r"anchorage_([0-9a-f]{8})")


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


@dataclass(frozen=True)
class QdrantLayout:
    """The collection of a store and the reindexing in it.

    form      the collection that clients see
    field     name of the vector in the location, or that of the first vector
    tag       tag of the reindexing; None: there is none
    old       the old vectors; None: they are deleted
    new       the new vectors; None: there are none
    """

    form: CollectionForm
    field: str
    strategy: str | None
    tag: str | None
    old: VectorPlace | None
    new: VectorPlace | None
    cut_over: bool

    @property
    def live(self) -> VectorPlace:
        """The vectors that clients see."""
        place = self.new if self.cut_over else self.old
        assert place is not None
        return place

    def side(self, side: Side) -> VectorPlace:
        """Return one side. Raises StoreChanged if it is not there."""
        place = self.old if side == "old" else self.new
        if place is None:
            raise StoreChanged(
                f"{self.form.name!r} has no {side} vectors of a reindexing. Begin a new plan."
            )
        return place


class QdrantCollection(Store, ABC):
    """A collection. keeps_lengths is False until `facts` finds that it is not a Cosine one."""

    capabilities = Capabilities(
        strategies=("collection", "named-vector"),
        atomic_cutover=True,
        keeps_lengths=False,
        filters=True,
    )

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.engine = QdrantEngine(location.url, repr(checked_name(location.collection)))

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
        rows = self.engine.count(place.collection, having(present=place.vector))
        strategies, notes = self._strategies(form)
        if metric == "cosine":
            notes.append(LENGTHS_LOST)
        if not place.vector and not self.engine.remote:
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
        layout = self.layout()
        place = layout.side(side)
        hits = self.engine.nearest(
            place.collection,
            place.vector,
            queries,
            k,
            filter=filter,
            exact=exact,
            vectors=vectors,
            payload=payload,
        )
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
        points = self.engine.every_point(place.collection, payload=True, vectors=others or False)
        return rows_checksum(digest(point, others, layout.form) for point in points)


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


def copy_problem(form: CollectionForm, location: StoreLocation) -> StoreNote | None:
    """Return why a collection cannot be replaced by a second one; None if it can."""
    if location.collection not in form.aliases:
        return StoreNote(
            "no-alias",
            f"Clients use the collection {form.name!r} by its own name, which Qdrant cannot give "
            "to another collection. For the strategy `collection`, create an alias, let all "
            "clients use it, and register the store with the alias as `collection`.",
        )
    if form.config.config.params.sharding_method == models.ShardingMethod.CUSTOM:
        return StoreNote(
            "custom-sharding",
            "The collection has shard keys, which the strategy `collection` does not copy. "
            "Use `named-vector`.",
        )
    return None


def alias_of(tag: str, side: Side) -> str:
    """Return the alias that marks one side of a reindexing."""
    return f"anchorage-{tag}-{side}"


def metadata_of(tag: str) -> str:
    """Return the member of the metadata that notes a reindexing."""
    return f"anchorage_{tag}"


def find_layout(engine: QdrantEngine, location: StoreLocation) -> QdrantLayout:
    """Return the layout as it is now. Raises StoreChanged and StoreUnsupported."""
    form = engine.form(location.collection)
    return _by_aliases(form, location) or _by_metadata(form, location) or _plain(form, location)


def _by_aliases(form: CollectionForm, location: StoreLocation) -> QdrantLayout | None:
    places: dict[str, dict[str, str]] = {}
    for alias, target in form.aliases.items():
        if match := TAGGED_ALIAS.fullmatch(alias):
            places.setdefault(match[1], {})[match[2]] = target
    for tag, sides in places.items():
        if form.name in sides.values():
            field, vector = _vector(form, location)
            old, new = (
                VectorPlace(sides[side], vector) if side in sides else None
                for side in ("old", "new")
            )
            return QdrantLayout(
                form, field, "collection", tag, old, new, form.name == sides.get("new")
            )
    return None


def _by_metadata(form: CollectionForm, location: StoreLocation) -> QdrantLayout | None:
    live = form.metadata.get(LIVE_VECTORS) or {}
    for member, entry in form.metadata.items():
        match = TAGGED_METADATA.fullmatch(member)
        if match is None or location.vector_field not in (None, entry["field"]):
            continue
        old, new = (
            VectorPlace(form.name, entry[side]) if entry[side] in form.dense else None
            for side in ("old", "new")
        )
        cut_over = live.get(entry["field"]) == entry["new"]
        if (new if cut_over else old) is None:
            raise StoreChanged(
                f"{form.name!r} has lost a vector of the reindexing {match[1]}. Look at the "
                "collection; its metadata names the vectors."
            )
        return QdrantLayout(form, entry["field"], "named-vector", match[1], old, new, cut_over)
    return None


def _plain(form: CollectionForm, location: StoreLocation) -> QdrantLayout:
    field, vector = _vector(form, location)
    return QdrantLayout(form, field, None, None, VectorPlace(form.name, vector), None, False)


def _vector(form: CollectionForm, location: StoreLocation) -> tuple[str, str]:
    """Return the name in the location and the name of the live vector."""
    live: dict[str, Any] = form.metadata.get(LIVE_VECTORS) or {}
    field = location.vector_field
    if field is None:
        if len(form.dense) != 1:
            raise StoreUnsupported(
                _choose(form, "has several dense vectors or none"), field="vector_field"
            )
        [vector] = form.dense
        field = next((each for each, name in live.items() if name == vector), vector)
        return field, vector
    vector = live.get(field, field)
    if vector not in form.dense:
        raise StoreUnsupported(
            _choose(form, f"has no dense vector {field!r}"), field="vector_field"
        )
    return field, vector


def _choose(form: CollectionForm, problem: str) -> str:
    names = ", ".join(repr(each) for each in sorted(form.dense)) or "none"
    return f"{form.name!r} {problem}. Name one in `vector_field`; its dense vectors are: {names}."


def checked_name(collection: str) -> str:
    """Return the name of a collection. Raises InvalidRequest if it could leave the address."""
    if (
        collection in ("", ".", "..")
        or len(collection) > 255
        or FORBIDDEN_IN_COLLECTIONS & set(collection)
    ):
        raise InvalidRequest(
            f"{collection!r} is not the name of a Qdrant collection. A name has 1 to 255 "
            'characters, without any of < > : " / \\ | ? *. Send such a name.',
            field="collection",
        )
    return collection


def metric_of(form: DenseForm, vector: str) -> Metric:
    """Return the metric. Raises StoreUnsupported for vectors that cannot be translated."""
    if not form.plain:
        problem = "holds several vectors per point (a multivector)"
    elif form.dtype not in ("float32", "float16"):
        problem = f"stores numbers of type {form.dtype}"
    elif form.distance not in METRICS:
        problem = f"has the distance {form.distance}"
    else:
        return METRICS[form.distance]
    raise StoreUnsupported(
        f"The vector {vector!r} {problem}. Anchorage reads single vectors of float32 or float16 "
        "with the distances Cosine, Dot and Euclid. Choose another vector in `vector_field`.",
        field="vector_field",
    )
