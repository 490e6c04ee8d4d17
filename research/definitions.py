"""Plain definitions of what the product computes in other, faster ways; tests and benchmarks
compare with them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import Space, check_vectors, normalise
from app.maths.quality.evaluation import evaluate
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    ItemMetrics,
    Quality,
    cosine_blocks,
    mean_quality,
    shared_count,
    unit,
)
from app.maths.quality.metrics import jaccard as overlap
from app.maths.translators.linear import Pair


def relative(vectors: Float[Tensor, "n d"], space: Space) -> Float64[Tensor, "n k"]:
    """The k cosines of x to the anchors, both centred on the anchors' mean: n(x) U^T.

    vectors  (n, d), the encoder's own units
    Returns (n, k), dimensionless, each in [-1, 1]. Invariant to a rotation and to a positive
    scaling of the encoder's space.
    Raises as `check_vectors`. Source: Moschella et al. 2023, equation 2; centred as in Maiorca et
    al. 2024.
    """
    check_vectors(vectors, dim=space.dim)
    unit, _ = normalise(vectors.double(), space.mean)
    return unit @ space.unit.T


def pair_of(source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]) -> Pair:
    """A pair of unit anchors (k, d_x) and (k, d_y) as they are: about zero, of scale 1."""
    sides = (
        Space(unit.new_zeros(unit.shape[1]), 1.0, unit, unit.norm(dim=1))
        for unit in (source, target)
    )
    return Pair(*sides)


def ranks(translated: Float[Tensor, "n d"], native: Float[Tensor, "n d"]) -> Int64[Tensor, " n"]:
    """The 1-based rank of native_i among all native rows by cosine to translated_i; ties count
    against it.
    """
    queries, index = unit(translated), unit(native)
    found = []
    for start, block in cosine_blocks(queries, index):
        own = block.gather(1, torch.arange(start, start + block.shape[0])[:, None])
        found.append((block >= own).sum(dim=1))
    return torch.cat(found)


def mrr(translated: Float[Tensor, "n d"], native: Float[Tensor, "n d"]) -> float:
    """Mean over i of 1 / rank of native_i in the whole index, not cut at any k; in (0, 1]."""
    return float((1.0 / ranks(translated, native).double()).mean())


def neighbours(
    queries: Float[Tensor, "n d"], index: Float[Tensor, "n d"], k: int, *, self_included: bool
) -> Int64[Tensor, "n k"]:
    """The k rows of `index` (n, d) with the largest cosine to each query (n, d).

    k              in 1..n, or 1..n-1 without the query's own item (row i of both is one item)
    self_included  whether item i may be its own neighbour
    """
    found = []
    for start, block in cosine_blocks(unit(queries), unit(index)):
        if not self_included:
            block.scatter_(1, torch.arange(start, start + block.shape[0])[:, None], -torch.inf)
        found.append(block.topk(k, dim=1).indices)
    return torch.cat(found)


def recall(
    translated: Float[Tensor, "n d"], native: Float[Tensor, "n d"], k: int = DEFAULT_NEIGHBOURS
) -> float:
    """recall@k: of the k items that a native query finds in the native index, the share that a
    translated query finds, too.

    The item itself is left out of both lists, because a search has it not in the index. In [0, 1];
    k <= n - 1.
    """
    ours = neighbours(translated, native, k, self_included=False)
    truth = neighbours(native, native, k, self_included=False)
    return float(shared_count(ours, truth).double().mean() / k)


def jaccard(
    translated: Float[Tensor, "n d"],
    native: Float[Tensor, "n d"],
    k: int = DEFAULT_NEIGHBOURS,
    *,
    own_space: bool = False,
) -> float:
    """Mean of |A & B| / |A | B| of two lists of k neighbours, in [0, 1].

    own_space=False  "target": both are searched among the native vectors, the item itself included,
                     as in the reference code of Moschella et al. 2023 and Cannistraci et al. 2023
                     (Table 1). k <= n.
    own_space=True   "own": each is searched among its own vectors, without the item itself (ReSi).
                     k <= n - 1. Measures whether the translated cloud keeps its own
                     neighbourhoods, wherever it is.
    """
    index = translated if own_space else native
    ours = neighbours(translated, index, k, self_included=not own_space)
    truth = neighbours(native, native, k, self_included=not own_space)
    return float(overlap(ours, truth).mean())


def item_metrics(
    translated: Float[Tensor, "n d"], native: Float[Tensor, "n d"], k: int | None = None
) -> ItemMetrics:
    """Every metric of every item, at k neighbours; None: min(10, n - 1). Needs n >= 2 and centred
    vectors.
    """
    k = min(DEFAULT_NEIGHBOURS, len(translated) - 1) if k is None else k
    return evaluate({"translated": translated}, native, k)["translated"]


def measure(translated: Float[Tensor, "n d"], native: Float[Tensor, "n d"]) -> Quality:
    """All measures at once, at min(10, n - 1) neighbours. Needs n >= 2 and centred vectors, see the
    module.
    """
    return mean_quality(item_metrics(translated, native))
