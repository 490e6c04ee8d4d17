"""Translations measured on items that were not their anchors, and compared with other queries for
the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.quality.metrics import (
    ItemMetrics,
    ScoreBlocks,
    compare_results,
    cosine_blocks,
    row_cosines,
    search,
    unit,
)


def evaluate(
    queries: Mapping[str, Float[Tensor, "n d"]],
    native: Float[Tensor, "n d"],
    k: int,
    *,
    corpus: Float[Tensor, "m d"] | None = None,
    cosines: CosineBlockFunction = cosine_blocks,
    mean: Float64[Tensor, " d"] | float = 0.0,
) -> dict[str, ItemMetrics]:
    """The metrics of each kind of query (n, d) against the native vectors of the same n items; all
    centred on the target's anchors.

    k        in 1..m; without a corpus in 1..n-1
    corpus   (m, d) the index; None: the native vectors, each item left out of its list of
             neighbours
    cosines  computes the blocks of cosines; every cosine between two items comes from it
    mean     (d,) what the vectors were centred on

    With a corpus, the metrics of `ItemMetrics` change: the rank is that of the row that the native
    query finds first; recall, recall_1 and jaccard_target compare the rows that both queries find
    in the corpus; jaccard_own compares neighbours among the queries, min(k, n - 1).
    """
    truth = unit(native)
    index = truth if corpus is None else unit(corpus)
    own = corpus is None
    native_results = search(cosines(truth, index), k, own=own)
    native_neighbours = native_results.near if own else _own_neighbours(truth, k, cosines)
    targets = None if own else native_results.near[:, 0]
    evaluations = {}
    for name, vectors in queries.items():
        unit_queries = truth if vectors is native else unit(vectors)
        results = (
            native_results
            if vectors is native
            else search(cosines(unit_queries, index), k, own=own, targets=targets)
        )
        near = native_neighbours if vectors is native else _own_neighbours(unit_queries, k, cosines)
        evaluations[name] = compare_results(
            (unit_queries * truth).sum(dim=1),
            row_cosines(vectors + mean, native + mean),
            results=results,
            native_results=native_results,
            own=near,
            native_own=native_neighbours,
        )
    return evaluations


def cosine_count(kinds: int, n: int, corpus: int | None) -> int:
    """The number of cosines that `evaluate` computes, for n items and this many kinds of queries,
    the native ones included.
    """
    if corpus is None:
        return (2 * kinds - 1) * n * n
    return kinds * (n * n + n * corpus)


def _own_neighbours(
    queries: Float64[Tensor, "n d"], k: int, cosines: CosineBlockFunction
) -> Int64[Tensor, "n j"]:
    """The nearest other queries of each unit query."""
    return search(cosines(queries, queries), min(k, len(queries) - 1), own=True).near


#: Computes blocks of cosines of unit queries (n, d) to a unit index (m, d), like `cosine_blocks`.
CosineBlockFunction = Callable[[Float64[Tensor, "n d"], Float64[Tensor, "m d"]], ScoreBlocks]
