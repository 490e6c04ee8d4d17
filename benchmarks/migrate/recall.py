"""Recall of the index after the cutover: how many of a query's native neighbours it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.migrate.rows import Collection, Numbers
from benchmarks.migrate.table import SEARCH
from benchmarks.migrate.truth import Expected
from benchmarks.migrate.vectors import Vectors
from benchmarks.migrate.workload import NEAREST

BLOCK = 20_000


def nearest(queries: Vectors, ids: Numbers, block: Callable[[slice], Vectors]) -> Numbers:
    """Ids (q, NEAREST) of the rows with the largest cosines, searched exactly, block by block."""
    best = np.full((len(queries), NEAREST), -np.inf, dtype=np.float32)
    found = np.full((len(queries), NEAREST), -1, dtype=np.int64)
    for start in range(0, len(ids), BLOCK):
        some = slice(start, start + BLOCK)
        scores = np.concatenate([best, queries @ block(some).T], axis=1)
        labels = np.concatenate(
            [found, np.broadcast_to(ids[some], (len(queries), len(ids[some])))], 1
        )
        top = np.argpartition(-scores, NEAREST, axis=1)[:, :NEAREST]
        best, found = np.take_along_axis(scores, top, 1), np.take_along_axis(labels, top, 1)
    order = np.argsort(-best, axis=1)
    return np.take_along_axis(found, order, 1)


def search(connection: Any, queries: Vectors) -> Numbers:
    """Ids that clients find, by the index."""
    found = [[row[0] for row in connection.execute(SEARCH, (query,))] for query in queries]
    return np.array(found, dtype=np.int64)


def overlap(found: Numbers, true: Numbers) -> float:
    """Share of the true neighbours that were found, averaged over the queries."""
    return float(
        np.mean([len(np.intersect1d(a, b)) / NEAREST for a, b in zip(found, true, strict=True)])
    )


def measure(
    rows: Collection,
    encoder: str,
    expected: Expected,
    table: tuple[Numbers, Vectors],
    found: Numbers,
    count: int,
) -> dict[str, float]:
    """Recall@10 of the index and of an exact search of the same vectors, against native vectors of
    all rows.
    """
    ids, vectors = table
    queries = rows.vectors[encoder][rows.queries[:count]]
    sources = np.array([expected.source.get(int(each), int(each)) for each in ids])
    native = nearest(queries, ids, lambda some: rows.embed(encoder, sources[some]))
    exact = nearest(queries, ids, lambda some: _unit(vectors[some]))
    return {
        "queries": len(queries),
        "found": overlap(found, native),
        "found_exact": overlap(exact, native),
        "index_of_exact": overlap(found, exact),
    }


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)
