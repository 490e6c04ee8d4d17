"""Qdrant's engine itself in this process, without a server: one shard in one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from app.errors import InvalidRequest, StoreChanged
from app.stores.base import (
    Capabilities,
    Hits,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.qdrant.client import hits_of
from app.stores.qdrant.engine import (
    CollectionForm,
    DenseForm,
    Having,
    NearestQuery,
    QdrantEngine,
    StoredPoint,
    checked_name,
    named,
    point_id,
)
from app.stores.qdrant.faults import qdrant_faults
from app.stores.qdrant.pool import leave_folder, share_folder
from app.stores.qdrant.store import QdrantStore

#: file in the shard's folder that notes what a collection's metadata notes elsewhere
EDGE_METADATA = "anchorage.json"


class EdgeEngine(QdrantEngine):
    """A shard. The name of the collection is that of its folder."""

    def __init__(self, url: str, collection: str) -> None:
        root = Path(url.removeprefix("file://")).resolve()
        self.where = repr(collection)
        self.folder = root / checked_name(collection)
        if self.folder.resolve().parent != root:
            raise InvalidRequest(
                f"{collection!r} is a link that leaves the address. Name a folder of the address.",
                field="collection",
            )

    def _shard(self) -> Any:
        return share_folder(str(self.folder), id(self), lambda: load_shard(str(self.folder)))

    def close(self) -> None:
        with qdrant_faults(self.where):
            leave_folder(str(self.folder), id(self))

    # --- the collection ---------------------------------------------------------------------------

    def form(self, name: str) -> CollectionForm:
        with qdrant_faults(self.where):
            shard = self._shard()
            config = json.loads((self.folder / "edge_config.json").read_text())
            with shard.lock:
                indexed = bool(shard.handle.info().indexed_vectors_count)
        return CollectionForm(
            name=name,
            dense={each: _dense_form(value) for each, value in config.get("vectors", {}).items()},
            sparse=frozenset(config.get("sparse_vectors", {})),
            indexed=indexed,
            metadata=self._metadata(),
        )

    def can_add_vectors(self) -> bool:
        return True

    def _metadata(self) -> dict[str, Any]:
        path = self.folder / EDGE_METADATA
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def set_metadata(self, name: str, changes: Mapping[str, Any]) -> None:
        with qdrant_faults(self.where), self._shard().lock:
            merged = {**self._metadata(), **changes}
            kept = {each: value for each, value in merged.items() if value is not None}
            path = self.folder / EDGE_METADATA
            if not kept:
                path.unlink(missing_ok=True)
                return
            part = path.with_suffix(".part")
            with part.open("w") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)

    def add_vector(self, name: str, vector: str, like: DenseForm, size: int) -> None:
        self._update(
            edge.UpdateOperation.create_dense_vector(
                vector,
                size,
                getattr(edge.Distance, like.distance),
                datatype=getattr(edge.VectorStorageDatatype, like.dtype.capitalize()),
            )
        )

    def drop_vector(self, name: str, vector: str) -> None:
        self._update(edge.UpdateOperation.delete_vector_name(vector))

    def wait_for_index(self, name: str) -> None:
        with qdrant_faults(self.where):
            shard = self._shard()
            with shard.lock:
                # optimize() holds the interpreter's lock, which would stop the whole service
                shard.handle.flush()

    # --- points -----------------------------------------------------------------------------------

    def scroll(
        self,
        name: str,
        offset: StoreId | None,
        limit: int,
        *,
        having: Having | None = None,
        vectors: bool | Sequence[str] = False,
        payload: bool = False,
    ) -> tuple[list[StoredPoint], StoreId | None]:
        with qdrant_faults(self.where):
            request = edge.ScrollRequest(
                offset=offset,
                limit=limit,
                filter=_having_filter(having),
                with_payload=payload,
                with_vector=_selector(vectors),
            )
            shard = self._shard()
            with shard.lock:
                records, following = shard.handle.scroll(request)
        return [_stored(each) for each in records], (
            None if following is None else point_id(following)
        )

    def retrieve(
        self,
        name: str,
        ids: Sequence[StoreId],
        *,
        vectors: bool | Sequence[str] = False,
        payload: bool | Sequence[str] = False,
    ) -> dict[StoreId, StoredPoint]:
        with qdrant_faults(self.where):
            shard = self._shard()
            with shard.lock:
                records = shard.handle.retrieve(
                    list(ids),
                    payload if isinstance(payload, bool) else list(payload),
                    _selector(vectors),
                )
        return {point.id: point for point in map(_stored, records)}

    def count(self, name: str, having: Having | None = None) -> int:
        with qdrant_faults(self.where):
            request = edge.CountRequest(exact=True, filter=_having_filter(having))
            shard = self._shard()
            with shard.lock:
                return int(shard.handle.count(request))

    def sample(self, name: str, using: str, count: int) -> list[StoredPoint]:
        with qdrant_faults(self.where):
            request = edge.QueryRequest(
                limit=count,
                query=edge.Sample.Random,
                with_vector=[using],
                filter=_having_filter(Having(present=using)),
            )
            shard = self._shard()
            with shard.lock:
                return [_stored(each) for each in shard.handle.query(request)]

    def nearest(self, name: str, queries: StoreVectors, query: NearestQuery) -> list[Hits]:
        with qdrant_faults(self.where):
            requests = [
                edge.QueryRequest(
                    limit=query.k,
                    query=edge.Query.Nearest(each.tolist(), using=query.using),
                    with_vector=[query.using] if query.vectors else False,
                    with_payload=query.payload,
                    params=edge.SearchParams(exact=query.exact),
                )
                for each in queries
            ]
            shard = self._shard()
            with shard.lock:
                answers = [shard.handle.query(request) for request in requests]
        return [hits_of(each, query, queries.shape[1]) for each in answers]

    def set_vectors(
        self,
        name: str,
        vector: str,
        ids: Sequence[StoreId],
        values: StoreVectors,
        *,
        replace: bool,
    ) -> None:
        with qdrant_faults(self.where), self._shard().lock:
            there = self.retrieve(name, ids)
            points = [
                edge.PointVectors(each, {vector: row.tolist()})
                for each, row in zip(ids, values, strict=True)
                if each in there
            ]
            if points:
                condition = None if replace else _having_filter(Having(absent=vector))
                self._update(edge.UpdateOperation.update_vectors(points, condition))

    def _update(self, operation: Any) -> None:
        with qdrant_faults(self.where):
            shard = self._shard()
            with shard.lock:
                shard.handle.update(operation)


EDGE_INDEX = StoreNote(
    "edge-index",
    "Anchorage does not build the index of the new vectors in a shard, because the engine's "
    "optimiser stops all threads of the process. Searches are exact until your application calls "
    "`shard.optimize()`.",
)


class QdrantEdgeStore(QdrantStore):
    """A shard of Qdrant Edge: it has no aliases, and its filters are objects, not JSON."""

    capabilities = Capabilities(
        strategies=("named-vector",),
        atomic_cutover=True,
        keeps_lengths=False,
        filters=False,
    )

    def facts(self) -> StoreFacts:
        facts = super().facts()
        return replace(facts, notes=(*facts.notes, EDGE_INDEX))

    def _engine(self, location: StoreLocation) -> QdrantEngine:
        return EdgeEngine(location.url, location.collection)


def load_shard(folder: str) -> Any:
    """Open a shard. Raises StoreChanged if the folder holds none."""
    if not (Path(folder) / "edge_config.json").is_file():
        raise StoreChanged(
            f"{Path(folder).name!r} is not a shard of Qdrant Edge: it has no edge_config.json. "
            "Compare `collection` with the folders of the address."
        )
    return edge.EdgeShard.load(folder)


def _stored(record: Any) -> StoredPoint:
    number = point_id(record.id)
    assert number is not None
    return StoredPoint(number, named(record.vector), record.payload or {})


def _selector(vectors: bool | Sequence[str]) -> bool | list[str]:
    return vectors if isinstance(vectors, bool) else list(vectors)


def _having_filter(having: Having | None) -> Any:
    if having is None:
        return None
    return edge.Filter(must=_has(having.present), must_not=_has(having.absent))


def _has(vector: str | None) -> list[Any] | None:
    return None if vector is None else [edge.HasVectorCondition(vector)]


def _dense_form(params: Mapping[str, Any]) -> DenseForm:
    return DenseForm(
        size=int(params["size"]),
        distance=str(params["distance"]),
        dtype=str(params.get("datatype") or "float32"),
        plain=params.get("multivector_config") is None,
    )
