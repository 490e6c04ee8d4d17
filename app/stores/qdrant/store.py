"""Qdrant as a Store: the new vectors are in a second collection, and a cutover moves an alias.

The aliases `anchorage-TAG-old` and `anchorage-TAG-new` mark both collections of a migration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
from pydantic import BaseModel, ValidationError
from qdrant_client import models

from app.errors import InvalidFilter, StoreChanged, StoreUnsupported, did_you_mean
from app.stores import port as base
from app.stores.answers import rows_a_read
from app.stores.common import as_json, row_number
from app.stores.paired_store import PairedStore, Sides, StoredRow, choose_vector
from app.stores.port import Cursor, Hits, Search, Side, StoreId, StoreVectors
from app.stores.qdrant.client import QdrantConnection
from app.stores.second_collection import SecondCollection

#: name of the metric of each distance that the connector reads
METRICS: dict[str, base.Metric] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclidean"}

TAGGED_ALIAS = re.compile(r"anchorage-([0-9a-f]{8})-(old|new)")

#: settings that a copy has from the old collection as they are
COPIED_SETTINGS = (
    "shard_number",
    "replication_factor",
    "write_consistency_factor",
    "on_disk_payload",
    "payload",
    "id_tracker",
)

#: largest difference from 1 of the length of a unit vector, which a server may keep as float16
ROUNDED_LENGTH = 1e-3


@dataclass(frozen=True, eq=False)
class QdrantPlace:
    """A vector of a collection; the unnamed one has the name ''.

    name    the collection's own name, where the location may have an alias
    info    configuration and state as the client reports them
    wanted  name of the vector; None: the unnamed one, or the only one
    """

    name: str
    info: Any
    wanted: str | None

    @property
    def vector(self) -> str:
        """The name. Raises StoreUnsupported if it is not clear, which stops no `abandon`."""
        return choose_vector(self.name, self.dense, self.wanted)

    @property
    def dense(self) -> dict[str, models.VectorParams]:
        """The dense vectors by name."""
        vectors = self.info.config.params.vectors or {}
        return {"": vectors} if isinstance(vectors, models.VectorParams) else dict(vectors)

    @property
    def sparse(self) -> set[str]:
        return set(self.info.config.params.sparse_vectors or {})


class QdrantStore(PairedStore):
    """A collection. keeps_lengths is False until `facts` finds that it is not a Cosine one."""

    capabilities = base.Capabilities(atomic_cutover=True, keeps_lengths=False, filters=True)

    def __init__(self, location: base.StoreLocation) -> None:
        super().__init__(location, QdrantConnection(location.url, repr(location.collection)))
        self._call = self.connection.call

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        answer = self._call("get_aliases")
        aliases = {each.alias_name: each.collection_name for each in answer.aliases}
        name = self.location.collection
        try:
            here = self._place(aliases.get(name, name))
        except StoreChanged:
            there = [*aliases, *(each.name for each in self._call("get_collections").collections)]
            raise StoreChanged(f"Qdrant has no `{name}`.{did_you_mean(name, there)}") from None
        marked: dict[str, dict[str, str]] = {}
        for alias, target in aliases.items():
            if match := TAGGED_ALIAS.fullmatch(alias):
                marked.setdefault(match[1], {})[match[2]] = target
        for each, names in sorted(marked.items()):
            if here.name in names.values() and tag in (None, each):
                old, new = (
                    self._place(names[side]) if side in names else None for side in ("old", "new")
                )
                return Sides("cut" if here.name == names.get("new") else "open", each, old, new)
        return Sides("none", None, here)

    def _place(self, name: str) -> QdrantPlace:
        return QdrantPlace(name, self._call("get_collection", name), self.location.vector_field)

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        old: QdrantPlace = sides.old
        name = re.sub(r"-[0-9a-f]{8}$", "", old.name) + f"-{tag}"
        if not self._call("collection_exists", name):
            self._call("create_collection", name, **copied_config(old, dim))
        for field, index in old.info.payload_schema.items():
            self._call("create_payload_index", name, field, index.params or index.data_type)
        marks = {"new": name, "old": old.name}
        operations = [_create_alias(_mark(tag, side), target) for side, target in marks.items()]
        self._call("update_collection_aliases", operations)

    def rows_a_call(self, place: Any, *, whole: bool) -> int:
        return rows_a_read(sum(each.size for each in place.dense.values()) if whole else 1)

    def read_page(
        self, place: Any, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        chosen = _selector(place, vectors, content)
        records, after = self._call(
            "scroll",
            place.name,
            limit=limit,
            offset=cursor,
            with_payload=content,
            with_vectors=chosen,
        )
        return [_row(record, place, content) for record in records], point_id(after)

    def read_rows(
        self, place: Any, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> list[StoredRow]:
        chosen = _selector(place, vectors, content)
        options = {"with_payload": content, "with_vectors": chosen}
        records = self._call("retrieve", place.name, ids, **options)
        return [_row(record, place, content) for record in records]

    def row_id(self, id: Any) -> StoreId | None:
        return point_id(id)

    def count_rows(self, place: QdrantPlace) -> int:
        return int(self._call("count", place.name, count_filter=_having(place), exact=True).count)

    def dim_of(self, place: QdrantPlace) -> int:
        metric_of(place)
        return place.dense[place.vector].size

    def write_rows(
        self, place: QdrantPlace, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        points = []
        for number, row in enumerate(rows):
            named = dict(row.others)
            if vectors is not None:
                named[place.vector] = vectors[number].tolist()
            bare = named[""] if set(named) == {""} else named
            points.append(models.PointStruct(id=row.id, vector=bare, payload=dict(row.payload)))
        self._call("upsert", place.name, points)

    def write_vectors(
        self, place: QdrantPlace, rows: Sequence[StoredRow], vectors: StoreVectors
    ) -> None:
        points = [
            models.PointVectors(
                id=row.id, vector={place.vector: each.tolist()} if place.vector else each.tolist()
            )
            for row, each in zip(rows, vectors, strict=True)
        ]
        self._call("update_vectors", place.name, points)

    def delete_rows(self, place: QdrantPlace, ids: Sequence[StoreId]) -> None:
        self._call("delete", place.name, models.PointIdsList(points=list(ids)))

    def index_state(self, place: QdrantPlace) -> tuple[str, bool] | None:
        info = self._call("get_collection", place.name)
        if info.status == models.CollectionStatus.GREEN:
            return None
        state = f"{info.status.value}, and its optimiser says {info.optimizer_status}"
        return state, info.status == models.CollectionStatus.RED

    def swap(self, sides: Sides, visible: Side) -> float:
        old, new = sides.old, sides.new
        sizes = [
            {name: dense.size for name, dense in place.dense.items() if name != place.vector}
            for place in (old, new)
        ]
        if sizes[0] != sizes[1] or old.sparse != new.sparse:
            raise StoreChanged(
                f"The vectors of {old.name!r} and {new.name!r} are no longer of the same form, "
                "because a client added or removed one. Abandon the migration, and plan a new one."
            )
        alias = self.location.collection
        operations = [_delete_alias(alias), _create_alias(alias, sides.place(visible).name)]
        self._call("update_collection_aliases", operations)
        return 0.0

    def drop(self, sides: Sides, side: Side) -> None:
        place = sides.old if side == "old" else sides.new
        if place is not None:
            self._call("delete_collection", place.name)
        there = {each.alias_name for each in self._call("get_aliases").aliases}
        marks = [_mark(str(sides.tag), each) for each in ("old", "new")]
        gone = [_delete_alias(each) for each in marks if each in there]
        self._call("update_collection_aliases", gone)

    # --- reading ------------------------------------------------------------------------------

    def facts_of(self, place: QdrantPlace) -> base.StoreFacts:
        dense, metric = place.dense[place.vector], metric_of(place)
        dtype = (dense.datatype or models.Datatype.FLOAT32).value
        self.capabilities = replace(type(self).capabilities, keeps_lengths=metric != "cosine")
        return base.StoreFacts(
            rows=self.count_rows(place),
            dim=dense.size,
            metric=metric,
            dtype=dtype,
            indexed=bool(place.info.indexed_vectors_count),
            vector_field=place.vector or None,
        )

    def copy_problem(self, place: QdrantPlace) -> base.StoreNote | None:
        if self.location.collection == place.name:
            return base.StoreNote(
                "no-alias",
                f"Clients use the collection {place.name!r} by its own name, which Qdrant cannot "
                "give to another collection. For a migration, create an alias, let all clients use "
                "it, and register the store with the alias as `collection`.",
            )
        if place.info.config.params.sharding_method == models.ShardingMethod.CUSTOM:
            return base.StoreNote(
                "custom-sharding",
                "The collection has shard keys, which a copy would not have, so it cannot be "
                "migrated. Searches work.",
            )
        return None

    def sample_ids(self, place: QdrantPlace, count: int, seed: int) -> Iterable[StoreId]:
        answer = self._call(
            "query_points",
            place.name,
            query=models.SampleQuery(sample=models.Sample.RANDOM),
            query_filter=_having(place),
            limit=count,
            with_payload=False,
        )
        return [each.id for each in answer.points]

    def migration(self, tag: str, dim: int) -> SecondCollection:
        return SecondCollection(self, tag, dim)

    def search_advice(self) -> str:
        return (
            "Give it more `ef_construct`, and call `verify` again once Qdrant has built the graph: "
            f"PATCH /collections/{self.find_sides().new.name} "
            '{"hnsw_config": {"ef_construct": 256, "m": 32}}'
        )

    def search_place(self, place: Any, wanted: Search) -> list[Hits]:
        request = {"using": place.vector, "filter": read_filter(wanted.filter), "limit": wanted.k}
        if self.connection.remote and wanted.exact:  # local mode is always exact
            request["params"] = models.SearchParams(exact=True)
        requests = [models.QueryRequest(query=each.tolist(), **request) for each in wanted.queries]
        filtered = wanted.filter is not None
        answers = self._call("query_batch_points", place.name, requests, filtered=filtered)
        sign = -1.0 if metric_of(place) == "euclidean" else 1.0  # Qdrant answers distances
        return [
            Hits(
                [id for each in answer.points if (id := point_id(each.id)) is not None],
                [sign * float(each.score) for each in answer.points],
            )
            for answer in answers
        ]


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
    if vector is not None and place.dense[place.vector].distance == models.Distance.COSINE:
        # As a server stores it. A search in local mode changes what the next read returns.
        length = float(np.linalg.norm(vector))
        vector = vector / length if abs(length - 1.0) > ROUNDED_LENGTH and length else vector
    if not content:
        return StoredRow(id, vector)
    # Of other Cosine vectors only the presence counts: a copy scales them to unit length again,
    # which can change the last bit.
    parts = [as_json(id), as_json(record.payload or {}), as_json(vector is not None)]
    for name, each in sorted(named.items()):
        parts.append(name.encode() + b"\0")
        if name in place.sparse:
            parts.append(as_json(sorted(zip(each.indices, each.values, strict=True))))
        elif place.dense[name].distance != models.Distance.COSINE:
            parts.append(np.asarray(each, np.float32).tobytes())
    return StoredRow(id, vector, record.payload or {}, named, row_number(*parts))


def copied_config(place: QdrantPlace, dim: int) -> dict[str, Any]:
    """Return the arguments that create a collection like the old one, with `dim` dimensions."""
    config = place.info.config
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


def metric_of(place: QdrantPlace) -> base.Metric:
    """Return the metric. Raises StoreUnsupported for vectors that cannot be translated."""
    params = place.dense[place.vector]
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
        f"The vector {place.vector!r} {problem}. Anchorage reads single vectors of float32 or "
        "float16 with the distances Cosine, Dot and Euclid. Choose another in `vector_field`.",
        field="vector_field",
    )
