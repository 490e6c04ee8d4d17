"""Rows of a Chroma collection: reading, writing, digests, and searches by index or exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.stores.base import Hits, Metric, StoreVectors
from app.stores.common import as_json, row_number

#: most ids in one call
IDS_A_CALL = 1000

#: the members of a payload that are no metadata; Chroma reserves names that begin so
DOCUMENT, RESOURCE = "chroma:document", "chroma:uri"


@dataclass(frozen=True, eq=False)
class ChromaRow:
    """One record. `payload` is all but the vector: metadata, document and URI."""

    id: str
    vector: StoreVectors | None
    document: str | None
    metadata: Mapping[str, Any] | None
    uri: str | None

    @property
    def payload(self) -> dict[str, Any]:
        extra = {DOCUMENT: self.document, RESOURCE: self.uri}
        return dict(self.metadata or {}) | {k: v for k, v in extra.items() if v is not None}

    def digest(self) -> str:
        """Return 16 hexadecimal digits that depend on everything that the record holds."""
        vector = b"" if self.vector is None else np.ascontiguousarray(self.vector).tobytes()
        return hashlib.blake2b(vector + as_json(self.payload), digest_size=8).hexdigest()

    def number(self) -> int:
        """Return a number that depends on the id and the payload."""
        return row_number(as_json(self.id), as_json(self.payload))


def read_rows(
    collection: Any, *, vectors: bool = True, payload: bool = True, **choice: Any
) -> list[ChromaRow]:
    """Return the records of a `get` with the arguments `choice`, in the collection's order."""
    include = ["embeddings"] * vectors + ["documents", "metadatas", "uris"] * payload
    answer = collection.get(include=include, **choice)
    ids = answer["ids"]
    empty = [None] * len(ids)
    found = np.asarray(answer["embeddings"], np.float32) if vectors and ids else empty
    return [
        ChromaRow(id, vector, document, metadata or None, uri)
        for id, vector, document, metadata, uri in zip(
            ids,
            found,
            answer["documents"] if payload else empty,
            answer["metadatas"] if payload else empty,
            answer["uris"] if payload else empty,
            strict=True,
        )
    ]


def read_ids(collection: Any, ids: Sequence[str], **include: bool) -> dict[str, ChromaRow]:
    """Return the records of these ids that exist."""
    found: dict[str, ChromaRow] = {}
    for start in range(0, len(ids), IDS_A_CALL):
        part = list(ids[start : start + IDS_A_CALL])
        found |= {row.id: row for row in read_rows(collection, ids=part, **include)}
    return found


def read_all(collection: Any, start: int = 0, **choice: Any) -> Iterator[list[ChromaRow]]:
    """Yield all records from the position `start` on, in pages."""
    while page := read_rows(collection, limit=IDS_A_CALL, offset=start, **choice):
        yield page
        start += len(page)


def all_ids(collection: Any) -> list[str]:
    """Return all ids in the collection's order."""
    ids: list[str] = collection.get(include=[])["ids"]
    return ids


def add_rows(collection: Any, rows: Sequence[ChromaRow], vectors: StoreVectors) -> None:
    """Add records with these vectors (n, d); those that exist stay as they are."""
    for start in range(0, len(rows), IDS_A_CALL):
        part = rows[start : start + IDS_A_CALL]
        collection.add(
            ids=[row.id for row in part],
            embeddings=np.asarray(vectors[start : start + IDS_A_CALL], np.float32),
            documents=[row.document for row in part],
            metadatas=[row.metadata for row in part],
            uris=[row.uri for row in part],
        )


def delete_rows(collection: Any, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), IDS_A_CALL):
        collection.delete(ids=list(ids[start : start + IDS_A_CALL]))


def _scores(distances: Any, metric: Metric) -> NDArray[np.float64]:
    """Return scores of Chroma's distances: larger is nearer."""
    found = np.asarray(distances, np.float64)
    return -found if metric == "euclidean" else 1 - found


def rank_with_index(
    collection: Any,
    queries: StoreVectors,
    k: int,
    metric: Metric,
    choice: Mapping[str, Any],
    vectors: bool,
    payload: bool,
) -> Sequence[Hits]:
    """Return the k nearest rows of each query by the collection's index."""
    include = ["distances"] + ["embeddings"] * vectors
    include += ["documents", "metadatas", "uris"] * payload
    answer = collection.query(
        query_embeddings=np.asarray(queries, np.float32), n_results=k, include=include, **choice
    )
    return [_hits_of(answer, each, metric) for each in range(len(queries))]


def _hits_of(answer: Mapping[str, Any], query: int, metric: Metric) -> Hits:
    ids = answer["ids"][query]
    embeddings, metadatas = answer["embeddings"], answer["metadatas"]
    payloads = metadatas and [
        ChromaRow(id, None, document, metadata, uri).payload
        for id, document, metadata, uri in zip(
            ids, answer["documents"][query], metadatas[query], answer["uris"][query], strict=True
        )
    ]
    return Hits(
        ids,
        _scores(answer["distances"][query], metric).tolist(),
        np.asarray(embeddings[query], np.float32) if embeddings is not None else None,
        payloads if metadatas is not None else None,
    )


def rank_exactly(
    collection: Any,
    queries: StoreVectors,
    k: int,
    metric: Metric,
    choice: Mapping[str, Any],
    vectors: bool,
    payload: bool,
) -> Sequence[Hits]:
    """Return the k nearest rows of each query, after reading every vector once."""
    ids: list[list[str]] = [[] for _ in queries]
    scores: list[NDArray[np.float64]] = [np.zeros(0) for _ in queries]
    for page in read_all(collection, payload=False, **choice):
        found = _score_page(queries, np.stack([row.vector for row in page]), metric)  # type: ignore[misc]
        for each in range(len(queries)):
            together = np.concatenate([scores[each], found[each]])
            best = np.argsort(-together, kind="stable")[:k]
            known = ids[each] + [row.id for row in page]
            ids[each], scores[each] = [known[place] for place in best], together[best]
    wanted = sorted({id for part in ids for id in part}) if vectors or payload else []
    rows = read_ids(collection, wanted, vectors=vectors, payload=payload)
    return [
        Hits(
            part,
            found.tolist(),
            np.stack([rows[id].vector for id in part]) if vectors and part else None,  # type: ignore[misc]
            [rows[id].payload for id in part] if payload else None,
        )
        for part, found in zip(ids, scores, strict=True)
    ]


def _score_page(queries: StoreVectors, found: StoreVectors, metric: Metric) -> NDArray[np.float64]:
    """Return the scores (q, n) that Chroma's distances have."""
    q, x = np.asarray(queries, np.float64), np.asarray(found, np.float64)
    if metric == "euclidean":
        squares = (q**2).sum(1)[:, None] - 2 * q @ x.T + (x**2).sum(1)
        return np.asarray(-np.maximum(squares, 0))
    if metric == "cosine":
        q, x = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-30) for v in (q, x))
    return np.asarray(q @ x.T)
