"""The weight of the new encoder's scores in a fusion: by judgements, and without."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import draw_rows, fit_space
from app.maths.quality.metrics import row_cosines
from app.maths.translators import methods
from app.maths.translators.translator import apply

#: The weight of translated scores is the square of the held-out cosine times one of these factors:
#: the careful one where the encoders were not compared, else the other one.
CAREFUL_FACTOR, WEIGHT_FACTOR = 0.9, 1.5

#: Weight of native scores, the old ones have the rest: where the encoders are equally good, and the
#: careful one where they were not compared. Of .3, .5 and .7, .5 gains most in the mean of six
#: collections, and loses more than .01 in 20 of 216 cells, .3 in 2, .4 in 4 (benchmarks/search).
NATIVE_WEIGHT, CAREFUL_NATIVE = 0.5, 0.4

#: How weights follow the difference of the encoders; that of native scores, up to MAX_DIFFERENCE.
#: Chosen on Cranfield, MED and TIME; benchmarks/search has other collections.
FUSE_SLOPE, NATIVE_SLOPE, MAX_DIFFERENCE = 4.5, 3.5, 0.1

#: The share of the anchors whose cosine is measured, one in HELD_OUT_PERIOD; fewer anchors than
#: FEWEST_MEASURED get the weight 0.
HELD_OUT_PERIOD, FEWEST_MEASURED = 5, 10

#: The weights to choose among. 0 is the old encoder's order of the candidates, 1 the new one's.
WEIGHT_GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

#: Folds of a choice that is measured on other queries.
WEIGHT_FOLDS = 5


def default_weight(held_out: float, difference: float | None = None) -> float:
    """The weight of translated scores without judgements, from 0 to 1, with two decimals:

    0.9 c^2 where the encoders were not compared, else 1.5 c^2 (1 + 4.5 d).

    held_out    c of `held_out_cosine`, in [-1, 1]; a negative one counts as 0
    difference  d, the new encoder's MRR less the old one's, by `cloze`; None: not known
    """
    square = max(held_out, 0.0) ** 2
    if difference is None:
        return round(CAREFUL_FACTOR * square, 2)
    factor = WEIGHT_FACTOR * (1.0 + FUSE_SLOPE * difference)
    return round(min(max(factor * square, 0.0), 1.0), 2)


def native_weight(difference: float | None = None) -> float:
    """The weight of native scores without judgements: 0.4 where the encoders were not compared,
    else 0.5 + 3.5 d, from .15 to .85, with two decimals.

    difference  d, as in `default_weight`
    """
    if difference is None:
        return CAREFUL_NATIVE
    return round(NATIVE_WEIGHT + NATIVE_SLOPE * cut_difference(difference), 2)


def trust_of(translated: float, native: float) -> float:
    """The factor r, at most 1, by which native scores of weight w_n count as translated ones of
    weight w_t: r w_n / (1 - w_n) = w_t / (1 - w_t).

    translated, native  w_t and w_n, from 0 to 1
    """
    if translated >= 1.0 or not 0.0 < native < 1.0:
        return 1.0
    return min(translated / (1.0 - translated) * (1.0 - native) / native, 1.0)


def cut_difference(difference: float | None) -> float:
    """The difference as it counts: 0 if it is not known, and at most MAX_DIFFERENCE."""
    return min(max(difference or 0.0, -MAX_DIFFERENCE), MAX_DIFFERENCE)


def held_out_cosine(x: Float[Tensor, "k dx"], y: Float[Tensor, "k dy"]) -> float:
    """The mean cosine of translated and native vectors over a fifth of the anchors, drawn at
    random, that the graded method with its defaults was not fitted to; centred on the others' mean.

    x, y  (k, d_x), (k, d_y), row i is the same item. Returns 0 below FEWEST_MEASURED anchors
    """
    k = len(x)
    if k < FEWEST_MEASURED:
        return 0.0
    order = draw_rows(k)
    held, known = order[: k // HELD_OUT_PERIOD], order[k // HELD_OUT_PERIOD :]
    source, target = fit_space(x[known]), fit_space(y[known])
    options = methods.resolve("graded", {}, anchors=len(known))
    translated = apply(methods.fit("graded", source, target, options), x[held]).vectors
    native = y[held].double() - target.mean
    return float(row_cosines(translated.double() - target.mean, native).mean())


def choose_weight(
    values: Float64[Tensor, "n w"], *, usual: int = 0
) -> tuple[int, Int64[Tensor, " n"]] | None:
    """The place of the weight with the best mean over all queries, and for each query (n,) that of
    the best over the other folds.

    values  (n, w) a measure of each query by each weight, in ascending order of the weights
    usual   the place of the weight without judgements; of equal means, the nearest to it is chosen
    Returns None for a single query, which leaves no other to choose on.
    """
    n, values = len(values), values.cpu()
    if n < 2:
        return None
    total = values.sum(dim=0)
    folds = draw_rows(n) % min(WEIGHT_FOLDS, n)
    held_out = torch.empty(n, dtype=torch.int64)
    for fold in torch.unique(folds).tolist():
        inside = folds == fold
        held_out[inside] = _best(total - values[inside].sum(dim=0), usual)
    return _best(total, usual), held_out


def _best(totals: Float64[Tensor, " w"], usual: int) -> int:
    """Of the weights that are best, up to rounding, the place nearest to the usual one."""
    margin = totals.abs().amax() * 1e-12
    best = (totals >= totals.amax() - margin).nonzero().flatten()
    return int(best[(best - usual).abs().argmin()])


def weights_with(weight: float) -> tuple[float, ...]:
    """The grid and one more weight, in ascending order."""
    return tuple(sorted({*WEIGHT_GRID, weight}))
