"""Measures of a translation: cosine, MRR and recall@k.

Everywhere, `translated` (n, d) are translated vectors and `native` (n, d) the true vectors of the
same items, in the target encoder's units. The caller centres both on the target's anchors, because
the mean that they share carries no information. Neighbours are ranked by cosine. Ties count against
the translation. Every result is dimensionless.

Bootstrap intervals of means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import NormalDist
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS, row_norms, unit_rows

#: Cosines of query rows to the whole index that are stored at a time, 8 bytes each.
MAX_COSINES = 2**24

#: Neighbours of recall.
DEFAULT_NEIGHBOURS = 10


class IntervalEstimate(NamedTuple):
    """A number, and the ends of its interval."""

    value: float
    low: float
    high: float


class SearchResult(NamedTuple):
    """Rows that n queries find in an index of m rows, best first.

    near   (n, k) rows, without the query's own item
    ranks  (n,) the 1-based rank of the wanted row in the whole index; a tie counts against it
    """

    near: Int64[Tensor, "n k"]
    ranks: Int64[Tensor, " n"]


#: Scores of queries for a whole index, as (first query, block (c, m)); the consumer may overwrite a
#: block.
ScoreBlocks = Iterator[tuple[int, Float64[Tensor, "c m"]]]

#: Computes the cosines of unit queries (n, d) to a unit index (m, d), like `cosine_blocks`.
CosineBlockFunction = Callable[[Float64[Tensor, "n d"], Float64[Tensor, "m d"]], ScoreBlocks]


def unit(vectors: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
    """Rows (n, d) scaled to length 1 in float64; a zero row stays zero."""
    vectors = vectors.double()
    return unit_rows(vectors, row_norms(vectors))


def row_cosines(first: Float[Tensor, "n d"], second: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
    """cos(first_i, second_i) of each row, in [-1, 1]."""
    return (unit(first) * unit(second)).sum(dim=1)


def cosine_blocks(queries: Float64[Tensor, "n d"], index: Float64[Tensor, "m d"]) -> ScoreBlocks:
    """Cosines of unit queries (n, d) to a unit index (m, d), as (first row, block of at most
    COSINE_ROWS rows).
    """
    step = max(1, min(COSINE_ROWS, MAX_COSINES // index.shape[0]))
    for start in range(0, queries.shape[0], step):
        yield start, queries[start : start + step] @ index.T


def search(
    blocks: ScoreBlocks, k: int, *, own: bool, targets: Int64[Tensor, " n"] | None = None
) -> SearchResult:
    """The rows that queries find by their scores, in one pass over the blocks.

    k       in 1..m, or 1..m-1 where the queries' own items are in the index
    own     whether row i of the index is the item of query i; that row is then the answer, and left
            out of `near`
    targets  (n,) the wanted row of each query if `own` is false; None: the row that the query finds
            first
    """
    near, ranks = [], []
    for start, block in blocks:
        stop = start + block.shape[0]
        best = None if own else block.topk(k, dim=1).indices
        target_rows = (
            torch.arange(start, stop, device=block.device)
            if best is None
            else best[:, 0]
            if targets is None
            else targets[start:stop]
        )
        ranks.append((block >= block.gather(1, target_rows[:, None])).sum(dim=1))
        if best is None:
            best = block.scatter_(1, target_rows[:, None], -torch.inf).topk(k, dim=1).indices
        near.append(best)
    return SearchResult(torch.cat(near), torch.cat(ranks))


def shared_count(first: Int64[Tensor, "n k"], second: Int64[Tensor, "n k"]) -> Int64[Tensor, " n"]:
    """The number of common members of two neighbour lists (n, k), row by row."""
    steps = [slice(start, start + COSINE_ROWS) for start in range(0, len(first), COSINE_ROWS)]
    return torch.cat(
        [(first[rows, :, None] == second[rows, None, :]).sum(dim=(1, 2)) for rows in steps]
    )


def evaluate(
    queries: Mapping[str, Float[Tensor, "n d"]],
    native: Float[Tensor, "n d"],
    k: int,
    *,
    corpus: Float[Tensor, "m d"] | None = None,
    cosines: CosineBlockFunction = cosine_blocks,
) -> dict[str, dict[str, Float64[Tensor, " n"]]]:
    """The measures of each item, by each kind of query (n, d), against the native vectors of the
    same n items; all centred on the target's anchors.

    k        in 1..m; without a corpus in 1..n-1
    corpus   (m, d) the index; None: the native vectors, each item left out of its list of
             neighbours
    cosines  computes the blocks of cosines; every cosine between two items comes from it

    cosine  cos(translated_i, native_i)
    mrr     1 / rank of native_i in the whole index
    recall  share of the native query's k items that the translated query finds too
    With a corpus, the rank is that of the row that the native query finds first, and recall
    compares the rows that both queries find in the corpus.
    """
    truth = unit(native)
    index = truth if corpus is None else unit(corpus)
    own = corpus is None
    wanted = search(cosines(truth, index), k, own=own)
    targets = None if own else wanted.near[:, 0]
    measures = {}
    for name, vectors in queries.items():
        made = unit(vectors)
        found = search(cosines(made, index), k, own=own, targets=targets)
        measures[name] = {
            "cosine": (made * truth).sum(dim=1),
            "mrr": 1.0 / found.ranks.double(),
            "recall": shared_count(found.near, wanted.near).double() / k,
        }
    return measures


def do_nothing(source: Float[Tensor, "n dx"], dim: int) -> Float[Tensor, "n dy"]:
    """The baseline without translation: source vectors (n, d_x) in a d_y-dimensional index, cut or
    padded with zeros.
    """
    if source.shape[1] >= dim:
        return source[:, :dim]
    return torch.nn.functional.pad(source, (0, dim - source.shape[1]))


#: Counts (resamples x items) that are stored at a time, 8 bytes each.
MAX_COUNTS = 1 << 21
#: Draws of the items, and the coverage of an interval.
RESAMPLES, LEVEL = 1000, 0.95


def bootstrap_interval(
    values: Float[Tensor, "n ..."],
) -> tuple[Float64[Tensor, " ..."], Float64[Tensor, " ..."]]:
    """The expanded percentile bootstrap interval of the mean over n items by RESAMPLES draws of n
    items with replacement: (low, high), each () or (m,), in the values' unit, on the CPU.

    values  (n,) or (n, m): m numbers of each of n >= 1 items that were drawn independently; the
            columns share their resamples
    The quantiles of the resampled means are taken at Phi(-+ sqrt(n / (n-1)) t), t the quantile of
    Student's distribution with n-1 degrees of freedom: plain percentiles are too narrow by that for
    few items. Below about ten items these are still slightly too narrow. The interval stays within
    the range of the values. It reflects the choice of items only, not that of the fits and the
    index.
    Sources: Efron and Tibshirani 1993, chapter 13; Hesterberg 2015, "What Teachers Should Know
    About the Bootstrap".
    """
    n = values.shape[0]
    table = values.double().reshape(n, -1).cpu()  # whose draws are equal on every device
    tail = _tail(n)
    ends = _resampled_means(table).quantile(
        torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0
    )
    low, high = ends.clamp(*table.aminmax(dim=0))  # the rounding of a mean could leave the range
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def _resampled_means(table: Float64[Tensor, "n m"]) -> Float64[Tensor, "resamples m"]:
    """Means of resampled rows of (n, m): the count of each row, times the rows, over n."""
    n = table.shape[0]
    generator = torch.Generator().manual_seed(0)
    step = max(1, MAX_COUNTS // n)
    means = []
    for start in range(0, RESAMPLES, step):
        draws = torch.randint(n, (min(step, RESAMPLES - start), n), generator=generator)
        counts = torch.zeros(draws.shape, dtype=torch.float64).scatter_add_(
            1, draws, torch.ones((1, 1), dtype=torch.float64).expand(draws.shape)
        )
        means.append(counts @ table / n)
    return torch.cat(means)


def _tail(n: int) -> float:
    """The part of the resampled means to leave out on each side, Phi(-sqrt(n / (n-1)) t); 0 for a
    single item.
    """
    if n == 1:
        return 0.0
    z, freedom = NormalDist().inv_cdf((1 + LEVEL) / 2), n - 1
    # Student's quantile by its Cornish-Fisher series (Abramowitz and Stegun 26.7.5), accurate
    # enough for tails that are not close to 0.
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return NormalDist().cdf(-math.sqrt(n / freedom) * t)
