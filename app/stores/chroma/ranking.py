"""Searches in a Chroma collection: by its index, or exactly by reading every vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.stores.base import Hits, Metric, StoreVectors
from app.stores.chroma.rows import ChromaRow, read_all, read_ids


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
