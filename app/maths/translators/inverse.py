"""Decoders from relative coordinates, made from the target's anchors alone.

Source: "Inverse Relative Projection" (Maiorca et al. 2024), sections 3.2 and 3.3: anchor pruning
(equations 3 and 4) and anchor subspaces (equation 5).
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption
from app.maths.geometry.space import draw_rows
from app.maths.geometry.spectrum import rank_tolerance

#: The most anchors that are pruned: their k x k table of cosines is stored, and with more of them
#: a step costs fifty times as much.
MAX_PRUNED = 4096


#: The usual delta, and the usual limit of a subset: one anchor for this many dimensions, but at
#: least LEAST_KEPT. A subset of about as many anchors as there are dimensions is nearly singular,
#: and its inverse is mostly noise: on abstracts, 1,000 anchors keep 540 to 620 at .6, with a mean
#: cosine of .07 to .38, and .42 to .52 within the limit.
USUAL_DELTA, DIMENSIONS_PER_ANCHOR, LEAST_KEPT = 0.6, 8, 8


def most_kept(dim: int) -> int:
    """The usual limit of a subset of anchors with `dim` dimensions."""
    return max(LEAST_KEPT, dim // DIMENSIONS_PER_ANCHOR)


def farthest_points(
    unit: Float64[Tensor, "k d"], *, delta: float, start: int, limit: int | None = None
) -> list[int]:
    """Greedy farthest point sampling by 1 - |cos|; it starts at `start` and ends when the next
    point is nearer than delta, or with `limit` points.

    unit   (k, d), rows of norm 1, or 0 for an anchor that equals the mean: such a row is never
           chosen
    delta  in [0, 1], dimensionless: 0 keeps every anchor, 1 only mutually orthogonal ones
    start  the index of the first point, a row of norm 1
    Returns the chosen indices in the order of choice, each at most once. Raises InvalidOption.
    Source: Maiorca et al. 2024, equations 3 and 4 (|cos|, so that opposite anchors count as near).
    """
    if not (math.isfinite(delta) and 0.0 <= delta <= 1.0):
        raise InvalidOption(f"`delta` must lie in [0, 1], got {delta}.", field="options.delta")
    gram = unit @ unit.T

    def distances_to(index: int) -> Float64[Tensor, " k"]:
        return (1.0 - gram[index].abs()).clamp_min(0.0)

    # Mask zero rows: their |cos| to every row, itself included, is 0, so one would stay the
    # farthest point forever.
    open_ = unit.abs().amax(dim=1) > 0
    chosen = [start]
    open_[start] = False
    nearest = distances_to(start)
    while bool(open_.any()) and len(chosen) != limit:
        candidate = int(torch.where(open_, nearest, -1.0).argmax())
        if float(nearest[candidate]) < delta:
            break
        chosen.append(candidate)
        open_[candidate] = False
        nearest = torch.minimum(nearest, distances_to(candidate))
    return chosen


def irp(
    unit: Float64[Tensor, "k d"],
    *,
    delta: float | None,
    omega: int,
    seed: int,
    noise: float = 0.0,
) -> Float64[Tensor, "k d"]:
    """The paper's decoder: D = 1/omega * sum_i P_i^T pinv(S_i^T), where S_i = P_i U are the anchors
    kept in subspace i.

    unit   (k, d_y), the target's unit anchors
    delta  in [0, 1], the pruning threshold; None: 0.6, and at most max(8, d_y / 8) anchors of each
           subspace, so that its inverse is well posed
    omega  in 1..k, the number of subspaces: more starts than anchors could only repeat them. Their
           starts are a permutation of the usable anchors, by `seed`
    noise  as in `kept_svd`: a direction that is only rounding would fill the whole translation
    Returns D (k, d_y): relative(x) D is the mean of the omega reconstructions of x's direction in
    the target space.
    Raises InvalidOption. Source: Maiorca et al. 2024, equation 5.
    """
    k = unit.shape[0]
    if not 1 <= omega <= k:
        raise InvalidOption(
            f"`omega` must lie between 1 and the number of anchors, {k}; got {omega}.",
            field="options.omega",
        )
    limit = None
    if delta is None:
        delta, limit = USUAL_DELTA, most_kept(unit.shape[1])
    usable = (unit.abs().amax(dim=1) > 0).nonzero().flatten()
    order = usable[draw_rows(len(usable), seed=seed)].tolist()
    starts = [order[i % len(order)] for i in range(omega)]
    kept = [
        tuple(sorted(farthest_points(unit, delta=delta, start=start, limit=limit)))
        for start in starts
    ]
    decoder = torch.zeros_like(unit)
    # Subsets that several starts share are inverted once, and weighted.
    for rows, count in Counter(kept).items():
        index = torch.tensor(rows)
        rtol = rank_tolerance(unit[index].shape, 1.0)
        inverse = torch.linalg.pinv(unit[index].T, atol=noise, rtol=rtol)
        decoder[index] += (count / omega) * inverse
    return decoder
