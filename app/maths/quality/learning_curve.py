"""What a translator gains from all of its anchors over the fits that are measured, by a curve
through fits with fewer anchors.

The anchors are cut into folds as in `app/maths/quality/crossfit.py`. Fits on a quarter, a half and
all of the other folds translate each held-out fold, and all three are searched in the same index:
that fold itself. Anchors that a fit has seen stay out of the index, because they
are translated better than any other item. There are more of them in larger fits, so with them in
the index the curve would rise faster than the quality of the service. Then, for each measure,

    m(n) = a - b g(n),    b >= 0,    g(n) = n^-c,

by least squares weighted by n, through the three means. The c are fixed, because so few points
hardly distinguish them: see EXPONENTS.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.quality.crossfit import (
    HELD_OUT_FOLDS,
    SMALLEST_FOLD,
    HeldOutTranslations,
    translate_by,
)
from app.maths.quality.index_curves import overlap_to_y
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    cosine_blocks,
    search,
    shared_count,
    unit,
)
from app.maths.translators.methods import Options

#: The shares of the anchors outside a fold that the smaller fits use.
FIT_SHARES = (0.25, 0.5)

#: c of recall and of MRR: the one of 0, .25, .5, .75 and 1 that best predicted the gain of more
#: anchors, over six kinds of embeddings.
EXPONENTS = (0.25, 0.5)

#: Limits of the time: the most anchors with a curve, and how many of them it holds out at most.
MAX_CURVE_ANCHORS = 2048
CURVE_HELD_OUT = 600


def gains_of_all_anchors(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    held_out: HeldOutTranslations,
) -> dict[str, float]:
    """The gains of the served fit over held-out numbers, whose fits use 4/5 of the anchors, in the
    y of recall and of MRR (`index_curves`): there, m rises by b (g(4/5 k) - g(k)).

    held_out  `hold_out` of the other arguments, by fits to all other folds
    Returns {} where a fold would contain fewer than SMALLEST_FOLD distinct anchors, where a quarter
    of the rest is all one vector, and where k exceeds MAX_CURVE_ANCHORS. Raises InvalidOption.
    Sources: curves of inverse powers, and their fit by least squares: Cortes et al. 1993; Viering
    and Loog 2023, section 3.
    """
    source, target = source.double(), target.double()
    first, fold_of = held_out.first, held_out.fold_of
    anchors, distinct = len(source), int(first.sum())
    if anchors > MAX_CURVE_ANCHORS or distinct < SMALLEST_FOLD * HELD_OUT_FOLDS:
        return {}
    generator = torch.Generator().manual_seed(0)
    looked_at = min(HELD_OUT_FOLDS, math.ceil(CURVE_HELD_OUT * HELD_OUT_FOLDS / distinct))
    neighbours = min(DEFAULT_NEIGHBOURS, (distinct // HELD_OUT_FOLDS - 1) // 2)
    mean = target.mean(dim=0)
    values, sizes = [], []
    try:
        for fold in range(looked_at):
            rest = (fold_of != fold).nonzero().flatten()
            rest = rest[torch.randperm(len(rest), generator=generator)]
            held = ((fold_of == fold) & first).nonzero().flatten()
            fits = [rest[: max(1, round(share * len(rest)))] for share in FIT_SHARES]
            made = [translate_by(name, source, target, options, rows, held) for rows in fits]
            translations = [each - mean for each in (*made, held_out.translated[held])]
            values.append(measure_fits(translations, target[held] - mean, neighbours))
            sizes.append([*map(len, fits), len(rest)])
    except DegenerateAnchors:
        return {}
    means = torch.cat(values).mean(dim=0).cpu()
    mean_sizes = torch.tensor(sizes, dtype=torch.float64).mean(dim=0)
    start = float(mean_sizes[-1])
    recall_gain, mrr_gain = (
        slope_of(column, mean_sizes, c) * (start**-c - anchors**-c)
        for column, c in zip(means.unbind(dim=1), EXPONENTS, strict=True)
    )
    recall, mrr = means[-1].tolist()
    others = sum(map(len, values)) / looked_at - 1
    share = torch.tensor([min(0.5, neighbours / others)] * 2, dtype=torch.float64)
    before, after = overlap_to_y(
        torch.tensor([recall, min(recall + recall_gain, 1.0)], dtype=torch.float64), share
    ).tolist()
    return {"recall": after - before, "mrr": mrr_gain / max(mrr * (1.0 - mrr), 0.01)}


def slope_of(means: Float64[Tensor, " s"], sizes: Float64[Tensor, " s"], exponent: float) -> float:
    """B of the curve through the means (s,) of a measure by fits to `sizes` (s,) anchors, at least
    0.

    With weights w = n / (sum of n) and centred h = g - sum of w g: b = -(sum of w h m) / (sum of w
    h^2).
    """
    weights = sizes / sizes.sum()
    decays = sizes**-exponent
    centred = decays - weights @ decays
    return max(0.0, -float(means @ (weights * centred) / (weights @ centred.square())))


def measure_fits(
    translations: list[Float64[Tensor, "h dy"]],
    native: Float64[Tensor, "h dy"],
    neighbours: int,
) -> Float64[Tensor, "h s 2"]:
    """Recall and reciprocal rank of each held-out anchor by each fit, in an index of the held-out
    anchors; all centred on the mean.
    """
    index = unit(native)
    wanted = search(cosine_blocks(index, index), neighbours, own=True)
    columns = []
    for vectors in translations:
        found = search(cosine_blocks(unit(vectors), index), neighbours, own=True)
        recall = shared_count(found.near, wanted.near).double() / neighbours
        columns.append(torch.stack([recall, 1.0 / found.ranks.double()], dim=1))
    return torch.stack(columns, dim=1)
