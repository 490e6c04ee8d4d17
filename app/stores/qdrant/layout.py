"""Where the old and the new vectors are, by what a reindexing left in the collection.

Strategy `collection`: the aliases `anchorage-TAG-old` and `anchorage-TAG-new` name the
collections.
Strategy `named-vector`: the metadata `anchorage_TAG` names both vectors, and `anchorage_vectors`
names the vector that clients pass as `using`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidRequest, StoreChanged, StoreUnsupported
from app.stores.base import Metric, Side, StoreLocation
from app.stores.qdrant.client import CollectionForm, DenseForm, QdrantEngine

#: name of the metric of each distance that the connector reads
METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclidean"}

#: characters that no Qdrant server allows in the name of a collection
FORBIDDEN_IN_COLLECTIONS = frozenset('<>:"/\\|?*\0\x1f')

#: member of the metadata that maps each replaced vector to the live one
LIVE_VECTORS = "anchorage_vectors"

TAGGED_ALIAS = re.compile(r"anchorage-([0-9a-f]{8})-(old|new)")
TAGGED_METADATA = re.compile(r"anchorage_([0-9a-f]{8})")


@dataclass(frozen=True)
class VectorPlace:
    """A named vector of a collection."""

    collection: str
    vector: str


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
