"""Translations measured on items that were not their anchors.

They are compared with other queries for the same items, also by their hubs: index rows that appear
in far too many neighbour lists (Radovanovic et al. 2010).

The similarity of two encoders' spaces, before any translation.

Moschella et al. 2023, section 4.2: the mean cosine of relative vectors to those of a good model
measures how good a model is, without labels. A translator made from relative vectors can keep no
more than the two spaces share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import Space, normalise
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    ItemMetrics,
    ScoreBlocks,
    cka,
    compare_results,
    cosine_blocks,
    row_cosines,
    search,
    unit,
)
from app.maths.quality.metrics import (
    jaccard as overlap,
)


@dataclass(frozen=True, eq=False)
class QueryEvaluation:
    """The evaluation of one kind of query.

    items     the metrics of each item
    skewness  of N_k, the number of times that each row of the index is found
    """

    items: ItemMetrics
    skewness: float


def evaluate(
    queries: Mapping[str, Float[Tensor, "n d"]],
    native: Float[Tensor, "n d"],
    k: int,
    *,
    corpus: Float[Tensor, "m d"] | None = None,
    cosines: CosineBlockFunction = cosine_blocks,
    mean: Float64[Tensor, " d"] | float = 0.0,
) -> dict[str, QueryEvaluation]:
    """Evaluate each kind of query (n, d) against the native vectors of the same n items; all
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
        items = compare_results(
            (unit_queries * truth).sum(dim=1),
            row_cosines(vectors + mean, native + mean),
            results=results,
            native_results=native_results,
            own=near,
            native_own=native_neighbours,
        )
        evaluations[name] = QueryEvaluation(items, skewness(results.near, len(index)))
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


def skewness(near: Int64[Tensor, "n k"], size: int) -> float:
    """The hubness of an index: the skewness of N_k over its rows, where N_k(y) counts the lists (n,
    k) that contain row y.

    size  m, the rows of the index
    E (N_k - mu)^3 / sigma^3: 0 where all rows are found equally often, above 1 where few rows are
    found very often; dimensionless. Sparse lists are skewed by themselves: N_k of random lists has
    1 / sqrt(n k / m). Source: Radovanovic et al. 2010, equation 1.
    """
    counts = torch.bincount(near.flatten(), minlength=size).double()
    deviation = counts - counts.mean()
    variance = deviation.square().mean()
    return float(deviation.pow(3).mean() / variance**1.5) if variance > 0 else 0.0


#: With fewer items there is no debiased CKA.
FEWEST_FOR_CKA = 4


@dataclass(frozen=True, eq=False)
class Similarity:
    """Similarity of two spaces over n items, dimensionless. Spaces that are equal up to rotation
    and scale have 1 everywhere.

    k        neighbours of `jaccard`
    cosine   (n,) cosine of item i's relative vector in one space to that in the other, in [-1, 1];
             unrelated spaces: 0 on average
    jaccard  (n,) |A & B| / |A | B| of the k items whose relative vectors are nearest to item i's,
             in each space among its own
    cka      debiased linear CKA of the items' vectors themselves; None below FEWEST_FOR_CKA items
    """

    k: int
    cosine: Float64[Tensor, " n"]
    jaccard: Float64[Tensor, " n"]
    cka: float | None


def relative_similarity(
    source: Space,
    target: Space,
    vectors: Float[Tensor, "n dx"],
    native: Float[Tensor, "n dy"],
    k: int | None = None,
    *,
    of_anchors: bool = False,
    cosines: CosineBlockFunction = cosine_blocks,
) -> Similarity:
    """The similarity of two spaces over n items, from vectors (n, d_x) of one encoder and (n, d_y)
    of the other.

    source, target   the spaces of one anchor set with k' anchors
    vectors, native  the same n >= 2 items in the encoders' own units, row i the same item
    k                neighbours, at most n - 1; None: min(10, n - 1)
    of_anchors       the items are the anchors, in their order: each one's similarity to itself,
                     which is 1 in any space, is then left out of its cosine
    cosines          computes the blocks of the neighbour search
    Relative vectors R = n(X) U^T (n, k') are never computed: R_x,i . R_y,i = n(x_i) (U_x^T U_y)
    n(y_i)^T, and likewise within one space. A vector at its anchors' mean has a relative vector of
    zeros, and cosine 0.
    """
    k = min(DEFAULT_NEIGHBOURS, len(vectors) - 1) if k is None else k
    (x, _), (y, _) = (
        normalise(vectors.double(), source.mean),
        normalise(native.double(), target.mean),
    )
    common = ((x @ (source.unit.T @ target.unit)) * y).sum(dim=1)
    (x_images, x_squared), (y_images, y_squared) = (
        _relative_images(x, source),
        _relative_images(y, target),
    )
    near_x = _neighbours(x, x_images, x_squared, k, cosines)
    near_y = _neighbours(y, y_images, y_squared, k, cosines)
    if of_anchors:
        x_own, y_own = (x * source.unit).sum(dim=1), (y * target.unit).sum(dim=1)
        common = common - x_own * y_own
        x_squared, y_squared = x_squared - x_own.square(), y_squared - y_own.square()
    return Similarity(
        k=k,
        cosine=(common * _inverse_root(x_squared) * _inverse_root(y_squared)).clamp(-1.0, 1.0),
        jaccard=overlap(near_x, near_y),
        cka=cka(vectors, native) if len(vectors) >= FEWEST_FOR_CKA else None,
    )


def _relative_images(
    unit: Float64[Tensor, "n d"], space: Space
) -> tuple[Float64[Tensor, "n d"], Float64[Tensor, " n"]]:
    """N(X) U^T U, whose product with any n(x) is that of relative vectors; and the relative
    vectors' squared lengths.
    """
    images = unit @ (space.unit.T @ space.unit)
    return images, (images * unit).sum(dim=1)


def _neighbours(
    unit: Float64[Tensor, "n d"],
    images: Float64[Tensor, "n d"],
    squared: Float64[Tensor, " n"],
    k: int,
    cosines: CosineBlockFunction,
) -> Int64[Tensor, "n k"]:
    """The k items (n, d) with the largest cosine of relative vectors, the item itself left out."""
    shorter = _inverse_root(squared)[:, None]
    return search(cosines(images * shorter, unit * shorter), k, own=True).near


def _inverse_root(squared: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """1 / length, or 0 for lengths within the rounding of a difference of such squares."""
    return torch.where(squared > 1e-12, squared.clamp_min(1e-12).rsqrt(), 0.0)
