"""One translation measured on items that were not its anchors, beside other queries for the same, with and without CSLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.quality.hubness import CosineBlockFunction, csls, skewness
from app.maths.quality.metrics import SearchResult, ItemMetrics, compare_results, jaccard, search, shared_count, cosine_blocks, unit


@dataclass(frozen=True, eq=False)
class CslsQuality:
    """What queries find by CSLS, each (n,): as in `PerItem`, beside what the native queries find by plain cosine."""

    reciprocal_rank: Float64[Tensor, " n"]
    recall: Float64[Tensor, " n"]
    recall_1: Float64[Tensor, " n"]
    jaccard_target: Float64[Tensor, " n"]
    skewness: float


@dataclass(frozen=True, eq=False)
class QueryEvaluation:
    """items     the numbers of each item
    skewness  of N_k, how often each row of the index is found
    csls      the same, found by CSLS; None where that was not asked for
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
    """Each kind of query (n, d) measured against the native vectors of the same n items; all centred on the target's anchors.

    k                in 1..m; without a corpus in 1..n-1
    corpus           (m, d) the index that is searched; None: the native vectors, each item left out of its own neighbours
    csls_neighbours  in 1..min(n, m): correct the cosines by so many, too; None: do not
    cosines          makes the blocks, all of which are asked of it

    With a corpus, of the numbers of `PerItem`: the rank is that of the row that the native query finds first; recall, recall_1
    and jaccard_target compare what both find in the corpus; jaccard_own compares neighbours among the queries, min(k, n - 1).
    CSLS is measured against what native queries find by plain cosine: what a search with native vectors finds today. So it costs
    the native queries something, and says what.
    """
    truth = unit(native)
    index = truth if corpus is None else unit(corpus)
    own = corpus is None
    wanted = search(cosines(truth, index), k, own=own)
    own_wanted = wanted.near if own else _own_neighbours(truth, k, cosines)
    sought = None if own else wanted.near[:, 0]
    made = {}
    for name, vectors in queries.items():
        ours = truth if vectors is native else unit(vectors)
        found = (
            wanted if vectors is native else search(cosines(ours, index), k, own=own, sought=sought)
        )
        near = own_wanted if vectors is native else _own_neighbours(ours, k, cosines)
        corrected = None
        if csls_neighbours is not None:
            blocks = csls(ours, index, csls_neighbours, cosines=cosines)
            corrected = _csls_quality(search(blocks, k, own=own, sought=sought), wanted, len(index))
        items = compare_results(ours, truth, found=found, wanted=wanted, own=near, own_wanted=own_wanted)
        made[name] = QueryEvaluation(items, skewness(found.near, len(index)), corrected)
    return made


def cosine_count(kinds: int, n: int, corpus: int | None, *, corrected: bool) -> int:
    """How many cosines `evaluate` asks for: n items by so many kinds of queries, the native ones among them."""
    if corpus is None:
        return (2 * kinds - 1 + (2 * kinds if corrected else 0)) * n * n
    return kinds * (n * n + n * corpus + (2 * n * corpus if corrected else 0))


def _own_neighbours(
    queries: Float64[Tensor, "n d"], k: int, cosines: CosineBlockFunction
) -> Int64[Tensor, "n j"]:
    """Each unit query's nearest others."""
    return search(cosines(queries, queries), min(k, len(queries) - 1), own=True).near


def _csls_quality(found: SearchResult, wanted: SearchResult, size: int) -> CslsQuality:
    return CslsQuality(
        reciprocal_rank=1.0 / found.ranks.double(),
        recall=shared_count(found.near, wanted.near).double() / found.near.shape[1],
        recall_1=(found.near[:, 0] == wanted.near[:, 0]).double(),
        jaccard_target=jaccard(found.with_own, wanted.with_own),
        skewness=skewness(found.near, size),
    )
