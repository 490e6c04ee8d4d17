"""An honest estimate of a translator's quality from the anchors alone: every anchor translated by a fit that never saw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.space import fit_space
from app.maths.quality.intervals import bootstrap_interval
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, Quality, do_nothing, item_metrics
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import apply

HELD_OUT_FOLDS = 5

#: fewer distinct anchors than this leave folds too small to say anything
FEWEST_DISTINCT = 10

#: so many held-out anchors tell enough
MOST_HELD_OUT = 2000

#: a fold with fewer is too small an index
SMALLEST_FOLD = 5


@dataclass(frozen=True)
class QualityWithIntervals(Quality):
    """Quality, and more.

    intervals  for each measure that in which 95 of 100 such means over other items would lie
    index      how many items were searched at once, on average
    """

    intervals: dict[str, tuple[float, float]]
    index: float


@dataclass(frozen=True)
class HeldOutQuality:
    """folds       how many parts the anchors were cut into
    translated  quality of the translated anchors, each by a fit on the other parts
    do_nothing  the same for source vectors put into the target index as they are
    native      the same for the target's own vectors: the ceiling, below 1 only where anchors tie
    """

    folds: int
    translated: QualityWithIntervals
    do_nothing: QualityWithIntervals
    native: QualityWithIntervals


@dataclass(frozen=True, eq=False)
class HeldOutTranslations:
    """Every anchor translated by a fit that saw neither it nor a copy of it.

    translated  (k, d_y), in the target encoder's units
    first       (k,) which rows count: one of each group of anchors that are equal on either side, of the folds that were held out
    fold_of     (k,) which fold each anchor was held out in; copies share one
    """

    translated: Float64[Tensor, "k dy"]
    first: Bool[Tensor, " k"]
    fold_of: Int64[Tensor, " k"]


def hold_out(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    folds: int | None = None,
    seed: int = 0,
) -> HeldOutTranslations | None:
    """Translate every anchor by a fit on the other folds.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    folds  None: FOLDS, or 2 where these would hold fewer than SMALLEST distinct anchors each
    Anchors that are equal on either side share a fold, and are counted once: a copy in another fold would have been seen.
    Of many anchors only so many folds are held out as have MOST_HELD in them: the others do not count, and their rows are zero.
    Returns None below FEWEST groups, or when all anchors outside a fold are one vector. Raises InvalidOption.
    """
    source, target = source.double(), target.double()
    parted = cut_into_folds(source, target, folds=folds, seed=seed)
    if parted is None:
        return None
    first, fold_of = parted
    folds = int(fold_of.max()) + 1
    enough = min(folds, math.ceil(MOST_HELD_OUT * folds / int(first.sum())))
    first &= fold_of < enough
    translated = torch.zeros_like(target)
    for fold in range(enough):
        held = fold_of == fold
        try:
            x, y = fit_space(source[~held]), fit_space(target[~held])
        except DegenerateAnchors:
            return None
        translated[held] = apply(
            fit(name, x, y, limit_omega(options, x.size)), source[held]
        ).vectors.double()
    return HeldOutTranslations(translated, first, fold_of)


def cut_into_folds(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    *,
    folds: int | None,
    seed: int,
) -> tuple[Bool[Tensor, " k"], Int64[Tensor, " k"]] | None:
    """Which of the anchors count, and the fold of each, as `Held` has them; None below FEWEST groups."""
    group_of = _equal_on_either_side(source, target)
    first = group_of == torch.arange(len(group_of))
    groups = int(first.sum())
    if groups < FEWEST_DISTINCT:
        return None
    if folds is None:
        folds = HELD_OUT_FOLDS if groups >= SMALLEST_FOLD * HELD_OUT_FOLDS else 2
    fold_of = torch.empty_like(group_of)
    fold_of[first] = torch.randperm(groups, generator=torch.Generator().manual_seed(seed)) % folds
    return first, fold_of[group_of]


def cross_fit(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    seed: int = 0,
) -> HeldOutQuality | None:
    """Held-out quality of the distinct anchors; arguments, None and errors as of `hold_out`."""
    held = hold_out(name, source, target, options, seed=seed)
    return None if held is None else held_out_quality(held, source, target)


def held_out_quality(held: HeldOutTranslations, source: Float[Tensor, "k dx"], target: Float[Tensor, "k dy"]) -> HeldOutQuality:
    """What held-out translations of raw anchors are worth.

    Each is searched for among the anchors that were held out with it. The others stay out of the index: its fit has seen them,
    and draws it towards them, so that with them there recall looks better than it is, and MRR far worse. Every fit has only the
    other folds, so the numbers are a little low: `app.maths.quality.learning_curve` says by how much.
    """
    source, target = source.double(), target.double()
    mean = target.mean(dim=0)
    parts = [
        ((held.fold_of == fold) & held.first).nonzero().flatten()
        for fold in torch.unique(held.fold_of[held.first])
    ]
    return HeldOutQuality(
        folds=len(parts),
        translated=quality_in_parts(held.translated - mean, target - mean, parts),
        do_nothing=quality_in_parts(do_nothing(source, target.shape[1]) - mean, target - mean, parts),
        native=quality_in_parts(target - mean, target - mean, parts),
    )


def quality_in_parts(
    translated: Float64[Tensor, "k d"],
    native: Float64[Tensor, "k d"],
    parts: Sequence[Int64[Tensor, " _"]],
) -> QualityWithIntervals:
    """Quality of centred vectors (k, d) against native ones, each searched for among those of its part, of 2 or more, alone.

    Recall and Jaccards are at the same number of neighbours in every part: 10, or half of the others in the smallest one.
    """
    smallest = min(map(len, parts))
    k = max(1, min(DEFAULT_NEIGHBOURS, (smallest - 1) // 2))
    items = [item_metrics(translated[rows], native[rows], k) for rows in parts]
    names = {
        field.name: "reciprocal_rank" if field.name == "mrr" else field.name
        for field in fields(Quality)[2:]
    }
    table = torch.cat(
        [torch.stack([getattr(each, name) for name in names.values()], dim=1) for each in items]
    )
    ends = bootstrap_interval(table)
    intervals = dict(zip(names, zip(*(end.tolist() for end in ends), strict=True), strict=True))
    means = dict(zip(names, table.mean(dim=0).tolist(), strict=True))
    return QualityWithIntervals(n=len(table), k=k, **means, intervals=intervals, index=len(table) / len(parts))


def _equal_on_either_side(
    source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]
) -> Int64[Tensor, " k"]:
    """For each anchor the first anchor it is joined to by rows that are equal in the source or in the target."""
    sides = [torch.unique(side, dim=0, return_inverse=True)[1] for side in (source, target)]
    label = torch.arange(len(source))
    while True:
        before = label
        for side in sides:
            smallest = torch.full((int(side.max()) + 1,), len(source)).scatter_reduce(
                0, side, label, "amin"
            )
            label = smallest[side]
        label = label[label]  # the first anchor's own first: chains close in few rounds
        if torch.equal(label, before):
            return label


def limit_omega(options: Options, anchors: int) -> Options:
    """Options for a fit to a part of the anchors: omega, the subspaces that irp was told to average, may not exceed them."""
    omega = options.get("omega")
    return options if omega is None else {**options, "omega": min(int(omega), anchors)}
