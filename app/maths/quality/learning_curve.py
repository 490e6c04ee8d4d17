"""What a translator gains from all of its anchors over the fits that are measured, by a curve
through fits with fewer anchors.

The anchors are cut into folds as in `app/maths/quality/crossfit.py`. Fits on a quarter, a half,
three quarters and all of the other folds translate each held-out fold, and all four are searched in
the same index: that fold itself. Anchors that a fit has seen stay out of the index, because they
are translated better than any other item. There are more of them in larger fits, so with them in
the index the curve would rise faster than the quality of the service. Then, for each measure,

    m(n) = a - b g(n),    b >= 0,    g(n) = n^-c,

by least squares weighted by n, through the four means. The c are fixed, because four points hardly
distinguish them: see EXPONENTS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.space import fit_space
from app.maths.quality.crossfit import (
    HELD_OUT_FOLDS,
    SMALLEST_FOLD,
    cut_into_folds,
    limit_omega,
)
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    cosine_blocks,
    search,
    shared_count,
    unit,
)
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import apply

Measure = Literal["recall", "mrr"]

#: The shares of the anchors outside a fold that the fits use.
FIT_SHARES = (0.25, 0.5, 0.75, 1.0)

#: c of each measure: the one of 0, .25, .5, .75 and 1 that best predicted the gain of more anchors,
#: over six kinds of embeddings.
EXPONENTS: Mapping[Measure, float] = {"recall": 0.25, "mrr": 0.5}

#: Limits of the time: a curve uses at most this many random anchors, and enough folds to
#: hold CURVE_HELD_OUT of them out.
MAX_CURVE_ANCHORS = 1024
CURVE_HELD_OUT = 600

#: A curve extends to this many times its anchors.
EXTRAPOLATION_FACTOR = 2


class IntervalEstimate(NamedTuple):
    """A number, and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeasureCurve:
    """One measure's curve.

    last   its mean over the held-out anchors, by the fits on all other folds
    slope  b >= 0
    """

    last: float
    slope: float


@dataclass(frozen=True)
class LearningCurve:
    """The curves of all measures.

    anchors     k of the served fit, copies included
    looked      the number of them that the curve used: all, or MAX_CURVE_ANCHORS
    held        the number of distinct held-out anchors
    sizes       the numbers of anchors of the fits, rising
    index       the mean size of the index; recall and MRR are for an index of that size
    neighbours  neighbours of recall
    """

    anchors: int
    looked: int
    held: int
    sizes: list[float]
    index: float
    neighbours: int
    lines: dict[Measure, MeasureCurve]

    @property
    def missing(self) -> dict[Measure, float]:
        """The gain of the served fit over held-out numbers, whose fits use 4/5 of the anchors:
        b (g(4/5 k) - g(k)); {} where k exceeds EXTRAPOLATION_FACTOR times the anchors used.
        """
        if self.anchors > EXTRAPOLATION_FACTOR * self.looked:
            return {}
        start = self.sizes[-1] / self.looked * self.anchors
        return {
            measure: line.slope
            * (start ** -EXPONENTS[measure] - self.anchors ** -EXPONENTS[measure])
            for measure, line in self.lines.items()
        }


def learning_curve(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
) -> LearningCurve | None:
    """The curve of a method with resolved options on a pair of raw anchors.

    source  (k, d_x) and target (k, d_y): the encoders' own units, row i the same item; copies share
            a fold and count once
    Returns None where a fold would contain fewer than SMALLEST_FOLD distinct anchors, or a quarter
    of the rest is all one vector. Raises InvalidOption. Sources: curves of inverse powers, and
    their fit by least squares: Cortes et al. 1993; Viering and Loog 2023, section 3.
    """
    source, target = source.double(), target.double()
    generator = torch.Generator().manual_seed(0)
    anchors = len(source)
    if anchors > MAX_CURVE_ANCHORS:
        rows = torch.randperm(anchors, generator=generator)[:MAX_CURVE_ANCHORS]
        source, target = source[rows], target[rows]
    folds = HELD_OUT_FOLDS
    parts = cut_into_folds(source, target, folds=folds, seed=0)
    if parts is None or int(parts[0].sum()) < SMALLEST_FOLD * folds:
        return None
    first, fold_of = parts
    distinct = int(first.sum())
    looked_at = min(folds, math.ceil(CURVE_HELD_OUT * folds / distinct))
    neighbours = min(DEFAULT_NEIGHBOURS, (distinct // folds - 1) // 2)
    mean = target.mean(dim=0)
    native = target - mean
    values, sizes = [], []
    try:
        for fold in range(looked_at):
            rest = (fold_of != fold).nonzero().flatten()
            rest = rest[torch.randperm(len(rest), generator=generator)]
            held_rows = ((fold_of == fold) & first).nonzero().flatten()
            fits = [rest[: max(1, round(share * len(rest)))] for share in FIT_SHARES]
            translations = [
                _translate_held_out(name, source, target, rows, held_rows, options) - mean
                for rows in fits
            ]
            values.append(_measure_fits(translations, native[held_rows], neighbours))
            sizes.append([len(rows) for rows in fits])
    except DegenerateAnchors:
        return None
    table = torch.cat(values)
    mean_sizes = torch.tensor(sizes, dtype=torch.float64).mean(dim=0)
    return LearningCurve(
        anchors=anchors,
        looked=len(source),
        held=len(table),
        sizes=mean_sizes.tolist(),
        index=len(table) / looked_at,
        neighbours=neighbours,
        lines={
            measure: measure_curve(measure, table[:, :, place], mean_sizes)
            for place, measure in enumerate(get_args(Measure))
        },
    )


def measure_curve(
    measure: Measure, values: Float64[Tensor, "n s"], sizes: Float64[Tensor, " s"]
) -> MeasureCurve:
    """The curve through a measure's values (n, s) of n held-out anchors by fits on `sizes` (s,)
    anchors.

    With weights w = n / (sum of n) and centred h = g - sum of w g: b = -(sum of w h m) / (sum of w
    h^2).
    """
    values, sizes = values.cpu(), sizes.cpu()
    decays = torch.tensor(
        [size ** -EXPONENTS[measure] for size in sizes.tolist()], dtype=torch.float64
    )
    weights = sizes / sizes.sum()
    centred = decays - weights @ decays
    slopes = -(values @ (weights * centred)) / (weights @ centred.square())
    return MeasureCurve(float(values[:, -1].mean()), max(0.0, float(slopes.mean())))


def _translate_held_out(
    name: str,
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    rows: Int64[Tensor, " m"],
    held_rows: Int64[Tensor, " h"],
    options: Options,
) -> Float64[Tensor, "h dy"]:
    """Translate the held-out anchors by a fit on some others."""
    spaces = fit_space(source[rows]), fit_space(target[rows])
    translator = fit(name, *spaces, limit_omega(options, len(rows)))
    return apply(translator, source[held_rows]).vectors.double()


def _measure_fits(
    translations: list[Float64[Tensor, "h dy"]],
    native: Float64[Tensor, "h dy"],
    neighbours: int,
) -> Float64[Tensor, "h s m"]:
    """Each measure of each held-out anchor by each fit, in an index of the held-out anchors; all
    centred on the mean.
    """
    index = unit(native)
    native_results = search(cosine_blocks(index, index), neighbours, own=True)
    columns = []
    for vectors in translations:
        queries = unit(vectors)
        results = search(cosine_blocks(queries, index), neighbours, own=True)
        recall = shared_count(results.near, native_results.near).double() / neighbours
        columns.append(torch.stack([recall, 1.0 / results.ranks.double()], dim=1))
    return torch.stack(columns, dim=1)
