"""Qdrant as a Store: the new vectors are in a second collection, and a cutover moves an alias.

The aliases `anchorage-TAG-old` and `anchorage-TAG-new` mark both collections of a migration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
from pydantic import BaseModel, ValidationError
from qdrant_client import models

from app.errors import InvalidFilter, InvalidRequest, StoreChanged, StoreUnsupported
from app.stores.answers import read_parts, rows_a_read
from app.stores.common import as_json, row_number
from app.stores.port import (
    Capabilities,
    Cursor,
    Hits,
    Metric,
    Page,
    Search,
    Side,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.qdrant.client import CollectionForm, QdrantEngine
from app.stores.second_collection import PairedStore
from app.stores.sides import Sides, StoredRow, stack_rows

#: name of the metric of each distance that the connector reads
METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclidean"}

#: a name that every Qdrant server allows
COLLECTION_NAME = re.compile(r'(?!\.{1,2}$)[^<>:"/\\|?*\x00\x1f]{1,255}')

TAGGED_ALIAS = re.compile(r"anchorage-([0-9a-f]{8})-(old|new)")

#: points of one request that deletes, and of one that writes
POINTS_PER_DELETION = 1000
POINTS_PER_WRITE = 500

#: most numbers of one request: 10 bytes each in JSON, below the server's 32 MB
NUMBERS_PER_REQUEST = 1_000_000

#: settings that a copy has from the old collection as they are
COPIED_SETTINGS = (
    "shard_number",
    "replication_factor",
    "write_consistency_factor",
    "on_disk_payload",
    "payload",
    "id_tracker",
)

LENGTHS_LOST = StoreNote(
    "lengths-lost",
    "A Cosine collection stores unit vectors. The lengths of the vectors are lost, so `keep_norms` "
    "cannot be used.",
)

VECTORS_NOT_COMPARED = StoreNote(
    "vectors-not-compared",
    "Writes are found by comparing ids, payloads and other vectors, with `sync` and `verify` and "
    "at a cutover. A write that changes only the vector is not found.",
)


@dataclass(frozen=True, eq=False)
class QdrantPlace:
    """A vector of a collection. The unnamed one has the name ''."""

    form: CollectionForm
    vector: str

    @property
    def name(self) -> str:
        return self.form.name

    @property
    def dim(self) -> int:
        return self.form.dense[self.vector].size

    def rows_a_read(self, vectors: bool, content: bool) -> int:
        """Return how many points one call may read; with `content`, with all their vectors."""
        width = sum(each.size for each in self.form.dense.values()) if content else self.dim
        return rows_a_read(width if vectors or content else 1)


class QdrantStore(PairedStore):
    """A collection. keeps_lengths is False until `facts` finds that it is not a Cosine one."""

    capabilities = Capabilities(atomic_cutover=True, keeps_lengths=False, filters=True)

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self.location = location
        self.engine = QdrantEngine(location.url, repr(checked_name(location.collection)))

    def close(self) -> None:
        self.engine.close()

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        form = self.engine.form(self.location.collection)
        vector = _vector(form, self.location)
        marked: dict[str, dict[str, str]] = {}
        for alias, target in form.aliases.items():
            if match := TAGGED_ALIAS.fullmatch(alias):
                marked.setdefault(match[1], {})[match[2]] = target
        for each, names in sorted(marked.items()):
            if form.name in names.values() and tag in (None, each):
                forms = {
                    side: form if name == form.name else self.engine.form(name)
                    for side, name in names.items()
                }
                old, new = (
                    QdrantPlace(forms[side], vector) if side in forms else None
                    for side in ("old", "new")
                )
                return Sides("cut" if form.name == names.get("new") else "open", each, old, new)
        return Sides("none", None, QdrantPlace(form, vector))

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        old: QdrantPlace = sides.old
        if problem := copy_problem(old.form, self.location):
            raise StoreUnsupported(problem.detail, field="store")
        name = re.sub(r"-[0-9a-f]{8}$", "", old.name) + f"-{tag}"
        with self.engine.session() as client:
            if not client.collection_exists(name):
                client.create_collection(name, **copied_config(old, dim))
            for field, index in old.form.info.payload_schema.items():
                client.create_payload_index(name, field, index.params or index.data_type)
            marks = {"new": name, "old": old.name}
            client.update_collection_aliases(
                [_create_alias(_mark(tag, side), target) for side, target in marks.items()]
            )

    def read_page(
        self,
        place: QdrantPlace,
        cursor: Cursor | None,
        limit: int,
        *,
        vectors: bool,
        content: bool,
    ) -> tuple[list[StoredRow], Cursor | None]:
        rows: list[StoredRow] = []
        after = cursor

        def read(_first: int, count: int) -> Any:
            nonlocal after
            with self.engine.session() as client:
                records, after = client.scroll(
                    place.name,
                    limit=count,
                    offset=after,
                    with_payload=content,
                    with_vectors=_selector(place, vectors, content),
                )
            return records

        step = place.rows_a_read(vectors, content)
        for _, records in read_parts(limit, step, read, lambda _: point_id(after), is_page=True):
            rows += [_row(record, place, content) for record in records]
            if after is None:
                break
        return rows, point_id(after)

    def read_rows(
        self, place: QdrantPlace, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> dict[StoreId, StoredRow]:
        def read(first: int, count: int) -> Any:
            with self.engine.session() as client:
                return client.retrieve(
                    place.name,
                    list(ids[first : first + count]),
                    with_payload=content,
                    with_vectors=_selector(place, vectors, content),
                )

        rows: list[StoredRow] = []
        step = place.rows_a_read(vectors, content)
        for _, records in read_parts(len(ids), step, read, lambda first: ids[first]):
            rows += [_row(record, place, content) for record in records]
        return {row.id: row for row in rows}

    def row_id(self, id: Any) -> StoreId | None:
        return point_id(id)

    def count_rows(self, place: QdrantPlace) -> int:
        with self.engine.session() as client:
            return int(client.count(place.name, count_filter=_having(place), exact=True).count)

    def dim_of(self, place: QdrantPlace) -> int:
        dense = place.form.dense[place.vector]
        metric_of(dense, place.vector)
        return dense.size

    def write_rows(
        self, place: QdrantPlace, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        width = 1 if vectors is None else max(1, vectors.shape[1])
        step = max(1, min(POINTS_PER_WRITE, NUMBERS_PER_REQUEST // width))
        for first in range(0, len(rows), step):
            points = []
            for number, row in enumerate(rows[first : first + step], first):
                named = dict(row.others)
                if vectors is not None:
                    named[place.vector] = vectors[number].tolist()
                bare = named[""] if set(named) == {""} else named
                points.append(models.PointStruct(id=row.id, vector=bare, payload=dict(row.payload)))
            with self.engine.session() as client:
                client.upsert(place.name, points)

    def delete_rows(self, place: QdrantPlace, ids: Sequence[StoreId]) -> None:
        for first in range(0, len(ids), POINTS_PER_DELETION):
            part = list(ids[first : first + POINTS_PER_DELETION])
            with self.engine.session() as client:
                client.delete(place.name, models.PointIdsList(points=part))

    def complete(self, sides: Sides) -> None:
        self.engine.wait_for_index(sides.new.name)

    def swap(self, sides: Sides, visible: Side) -> float:
        old, new = sides.old, sides.new
        sizes = [
            {name: dense.size for name, dense in place.form.dense.items() if name != place.vector}
            for place in (old, new)
        ]
        if sizes[0] != sizes[1] or old.form.sparse != new.form.sparse:
            raise StoreChanged(
                f"The vectors of {old.name!r} and {new.name!r} are no longer of the same form, "
                "because a client added or removed one. Abandon the migration, and plan a new one."
            )
        alias = self.location.collection
        with self.engine.session() as client:
            client.update_collection_aliases(
                [_delete_alias(alias), _create_alias(alias, sides.place(visible).name)]
            )
        return 0.0

    def drop(self, sides: Sides, side: Side) -> None:
        place = sides.old if side == "old" else sides.new
        with self.engine.session() as client:
            if place is not None:
                client.delete_collection(place.name)
            there = {each.alias_name for each in client.get_aliases().aliases}
            marks = [_mark(str(sides.tag), each) for each in ("old", "new")]
            client.update_collection_aliases(
                [_delete_alias(each) for each in marks if each in there]
            )

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        place: QdrantPlace = self.find_sides().visible
        dense = place.form.dense[place.vector]
        metric = metric_of(dense, place.vector)
        dtype = (dense.datatype or models.Datatype.FLOAT32).value
        self.capabilities = replace(type(self).capabilities, keeps_lengths=metric != "cosine")
        rows = self.count_rows(place)
        problem = copy_problem(place.form, self.location)
        notes = [VECTORS_NOT_COMPARED if problem is None else problem]
        if metric == "cosine":
            notes.append(LENGTHS_LOST)
        return StoreFacts(
            rows=rows,
            dim=dense.size,
            metric=metric,
            dtype=dtype,
            indexed=bool(place.form.info.indexed_vectors_count),
            can_migrate=problem is None,
            vector_bytes=rows * dense.size * (2 if dtype == "float16" else 4),
            notes=tuple(notes),
        )

    def sample(self, count: int, seed: int = 0) -> Page:
        place: QdrantPlace = self.find_sides().place("old")
        with self.engine.session() as client:
            answer = client.query_points(
                place.name,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                query_filter=_having(place),
                limit=count,
                with_payload=False,
            )
        return self.fetch([each.id for each in answer.points])

    def search_place(self, place: Any, wanted: Search) -> list[Hits]:
        request: dict[str, Any] = {
            "using": place.vector,
            "filter": read_filter(wanted.filter),
            "limit": wanted.k,
            "with_payload": wanted.payload,
            "with_vector": _selector(place, wanted.vectors, False),
        }
        if self.engine.remote and wanted.exact:  # local mode is always exact
            request["params"] = models.SearchParams(exact=True)
        requests = [models.QueryRequest(query=each.tolist(), **request) for each in wanted.queries]
        with self.engine.session(filtered=wanted.filter is not None) as client:
            answers = client.query_batch_points(place.name, requests)
        metric = metric_of(place.form.dense[place.vector], place.vector)
        sign = -1.0 if metric == "euclidean" else 1.0  # Qdrant answers distances
        hits = []
        for answer in answers:
            rows = [_row(each, place, False) for each in answer.points]
            hits.append(
                Hits(
                    [row.id for row in rows],
                    [sign * float(each.score) for each in answer.points],
                    stack_rows(rows, place.dim) if wanted.vectors else None,
                    [dict(each.payload or {}) for each in answer.points]
                    if wanted.payload
                    else None,
                )
            )
        return hits


def _having(place: QdrantPlace) -> models.Filter:
    """Return the filter of points that have the vector."""
    return models.Filter(must=[models.HasVectorCondition(has_vector=place.vector)])


def _selector(place: QdrantPlace, vectors: bool, content: bool) -> bool | list[str]:
    """Return which vectors to read; the unnamed one cannot be selected, so all are read."""
    return [place.vector] if vectors and place.vector and not content else vectors or content


def point_id(value: Any) -> StoreId | None:
    """Return an id as Qdrant writes it; None for one that no point can have."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value) if 0 <= value < 2**64 else None
    try:
        return str(UUID(str(value)))
    except ValueError:
        return None


def read_filter(filter: Any) -> models.Filter | None:
    """Return a filter from Qdrant's JSON."""
    try:
        return None if filter is None else models.Filter.model_validate(filter)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidFilter(
            f"`filter` is not a filter of Qdrant: {first['msg']} at `{place}`. Send an object with "
            "`must`, `should` or `must_not`, as Qdrant's documentation describes it.",
            field="filter",
        ) from None


def _row(record: Any, place: QdrantPlace, content: bool) -> StoredRow:
    id = point_id(record.id)
    assert id is not None
    named = record.vector if isinstance(record.vector, Mapping) else {"": record.vector}
    named = {name: each for name, each in named.items() if each is not None}
    value = named.pop(place.vector, None)
    vector = None if value is None else np.asarray(value, np.float32)
    if not content:
        return StoredRow(id, vector)
    # Of other Cosine vectors only the presence counts: a copy scales them to unit length again,
    # which can change the last bit.
    parts = [as_json(id), as_json(record.payload or {}), as_json(vector is not None)]
    for name, each in sorted(named.items()):
        parts.append(name.encode() + b"\0")
        if name in place.form.sparse:
            parts.append(as_json(sorted(zip(each.indices, each.values, strict=True))))
        elif place.form.dense[name].distance != models.Distance.COSINE:
            parts.append(np.asarray(each, np.float32).tobytes())
    return StoredRow(id, vector, record.payload or {}, named, row_number(*parts))


def copy_problem(form: CollectionForm, location: StoreLocation) -> StoreNote | None:
    """Return why a collection cannot be replaced by a second one; None if it can."""
    if location.collection not in form.aliases:
        return StoreNote(
            "no-alias",
            f"Clients use the collection {form.name!r} by its own name, which Qdrant cannot give "
            "to another collection. For a migration, create an alias, let all clients use it, "
            "and register the store with the alias as `collection`.",
        )
    if form.info.config.params.sharding_method == models.ShardingMethod.CUSTOM:
        return StoreNote(
            "custom-sharding",
            "The collection has shard keys, which a copy would not have, so it cannot be "
            "migrated. Searches work.",
        )
    return None


def copied_config(place: QdrantPlace, dim: int) -> dict[str, Any]:
    """Return the arguments that create a collection like the old one, with `dim` dimensions."""
    config = place.form.info.config
    params = config.params
    if isinstance(params.vectors, models.VectorParams):
        vectors: Any = params.vectors.model_copy(update={"size": dim})
    else:
        vectors = dict(params.vectors)
        vectors[place.vector] = vectors[place.vector].model_copy(update={"size": dim})
    strict = getattr(config, "strict_mode_config", None)
    arguments = {name: getattr(params, name, None) for name in COPIED_SETTINGS} | {
        "vectors_config": vectors,
        "sparse_vectors_config": params.sparse_vectors,
        "hnsw_config": _as(models.HnswConfigDiff, config.hnsw_config),
        "optimizers_config": _as(models.OptimizersConfigDiff, config.optimizer_config),
        "wal_config": _as(models.WalConfigDiff, config.wal_config),
        "quantization_config": config.quantization_config,
        "strict_mode_config": strict and _as(models.StrictModeConfig, strict),
        "metadata": getattr(config, "metadata", None) or None,
    }
    return {key: value for key, value in arguments.items() if value is not None}


def _as(kind: type[BaseModel], value: BaseModel | None) -> BaseModel | None:
    """Return the settings that the server reports as those that it takes."""
    if value is None:
        return None
    known = value.model_dump(exclude_none=True, include=set(kind.model_fields))
    return kind.model_validate(known)


def _mark(tag: str, side: str) -> str:
    """Return the alias that marks one side of a migration."""
    return f"anchorage-{tag}-{side}"


def _create_alias(alias: str, collection: str) -> models.CreateAliasOperation:
    return models.CreateAliasOperation(
        create_alias=models.CreateAlias(alias_name=alias, collection_name=collection)
    )


def _delete_alias(alias: str) -> models.DeleteAliasOperation:
    return models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))


def _vector(form: CollectionForm, location: StoreLocation) -> str:
    """Return the name of the vector. Raises StoreUnsupported if it is not clear."""
    if location.vector_field in form.dense:
        return str(location.vector_field)
    if location.vector_field is None and len(form.dense) == 1:
        return next(iter(form.dense))
    problem = "has several dense vectors or none"
    if location.vector_field is not None:
        problem = f"has no dense vector {location.vector_field!r}"
    names = ", ".join(repr(each) for each in sorted(form.dense)) or "none"
    raise StoreUnsupported(
        f"{form.name!r} {problem}. Name one in `vector_field`; its dense vectors are: {names}.",
        field="vector_field",
    )


def checked_name(collection: str) -> str:
    """Return the name of a collection. Raises InvalidRequest if it could leave the address."""
    if not COLLECTION_NAME.fullmatch(collection):
        raise InvalidRequest(
            f"{collection!r} is not the name of a Qdrant collection. A name has 1 to 255 "
            'characters, without any of < > : " / \\ | ? *. Send such a name.',
            field="collection",
        )
    return collection


def metric_of(params: models.VectorParams, vector: str) -> Metric:
    """Return the metric. Raises StoreUnsupported for vectors that cannot be translated."""
    dtype = (params.datatype or models.Datatype.FLOAT32).value
    if params.multivector_config is not None:
        problem = "holds several vectors per point (a multivector)"
    elif dtype not in ("float32", "float16"):
        problem = f"stores numbers of type {dtype}"
    elif params.distance.value not in METRICS:
        problem = f"has the distance {params.distance.value}"
    else:
        return METRICS[params.distance.value]
    raise StoreUnsupported(
        f"The vector {vector!r} {problem}. Anchorage reads single vectors of float32 or float16 "
        "with the distances Cosine, Dot and Euclid. Choose another vector in `vector_field`.",
        field="vector_field",
    )
