"""Translations measured on items that were not their anchors, with and without CSLS.

They are compared with other queries for the same items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.quality.hubness import CosineBlockFunction, csls, skewness
from app.maths.quality.metrics import (
    ItemMetrics,
    SearchResult,
    compare_results,
    cosine_blocks,
    jaccard,
    search,
    shared_count,
    unit,
)


@dataclass(frozen=True, eq=False)
class CslsQuality:
    """Metrics of a search by CSLS, each (n,), as in `ItemMetrics`; compared with the native
    queries' search by plain cosine.
    """

    reciprocal_rank: Float64[Tensor, " n"]
    recall: Float64[Tensor, " n"]
    recall_1: Float64[Tensor, " n"]
    jaccard_target: Float64[Tensor, " n"]
    skewness: float


@dataclass(frozen=True, eq=False)
class QueryEvaluation:
    """The evaluation of one kind of query.

    items     the metrics of each item
    skewness  of N_k, the number of times that each row of the index is found
    csls      the same, by CSLS; None if not requested
    """

    items: ItemMetrics
    skewness: float
    csls: CslsQuality | None


def evaluate(
    queries: Mapping[str, Float[Tensor, "n d"]],
    native: Float[Tensor, "n d"],
    k: int,
    *,
    corpus: Float[Tensor, "m d"] | None = None,
    csls_neighbours: int | None = None,
    cosines: CosineBlockFunction = cosine_blocks,
) -> dict[str, QueryEvaluation]:
    """Evaluate each kind of query (n, d) against the native vectors of the same n items; all
    centred on the target's anchors.

    k                in 1..m; without a corpus in 1..n-1
    corpus           (m, d) the index; None: the native vectors, each item left out of its list of
                     neighbours
    csls_neighbours  in 1..min(n, m): also correct the cosines by this many neighbours; None: do not
    cosines          computes the blocks of cosines; every cosine comes from it

    With a corpus, the metrics of `ItemMetrics` change: the rank is that of the row that the native
    query finds first; recall, recall_1 and jaccard_target compare the rows that both queries find
    in the corpus; jaccard_own compares neighbours among the queries, min(k, n - 1).
    CSLS is compared with the native queries' search by plain cosine, which is today's search with
    native vectors. So CSLS lowers the native queries' numbers too, and the result shows by how
    much.
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
        csls_quality = None
        if csls_neighbours is not None:
            blocks = csls(unit_queries, index, csls_neighbours, cosines=cosines)
            csls_quality = _csls_quality(
                search(blocks, k, own=own, targets=targets), native_results, len(index)
            )
        items = compare_results(
            unit_queries,
            truth,
            results=results,
            native_results=native_results,
            own=near,
            native_own=native_neighbours,
        )
        evaluations[name] = QueryEvaluation(items, skewness(results.near, len(index)), csls_quality)
    return evaluations


def cosine_count(kinds: int, n: int, corpus: int | None, *, corrected: bool) -> int:
    """The number of cosines that `evaluate` computes, for n items and this many kinds of queries,
    the native ones included.
    """
    if corpus is None:
        return (2 * kinds - 1 + (2 * kinds if corrected else 0)) * n * n
    return kinds * (n * n + n * corpus + (2 * n * corpus if corrected else 0))


def _own_neighbours(
    queries: Float64[Tensor, "n d"], k: int, cosines: CosineBlockFunction
) -> Int64[Tensor, "n j"]:
    """The nearest other queries of each unit query."""
    return search(cosines(queries, queries), min(k, len(queries) - 1), own=True).near


def _csls_quality(results: SearchResult, native_results: SearchResult, size: int) -> CslsQuality:
    return CslsQuality(
        reciprocal_rank=1.0 / results.ranks.double(),
        recall=shared_count(results.near, native_results.near).double() / results.near.shape[1],
        recall_1=(results.near[:, 0] == native_results.near[:, 0]).double(),
        jaccard_target=jaccard(results.with_own, native_results.with_own),
        skewness=skewness(results.near, size),
    )
