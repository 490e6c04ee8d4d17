"""Held-out translations, from the anchors alone: a fit that did not see an anchor translates it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.space import draw_rows, fit_space
from app.maths.quality.metrics import unit
from app.maths.translators.kernel import LANDMARKS, hold_out_folds
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import apply

#: Parts that the anchors are cut into.
HELD_OUT_FOLDS = 5

#: With fewer distinct anchors the folds are too small for any statement.
FEWEST_DISTINCT = 10

#: Held-out anchors that suffice for an estimate.
MAX_HELD_OUT = 2000

#: A fold with fewer distinct anchors is too small an index.
SMALLEST_FOLD = 5

#: From so many anchors on, the folds of a kernel share what hardly depends on one of them: ridge,
#: means and whitening.
FEWEST_SHARED = 500


@dataclass(frozen=True, eq=False)
class HeldOutTranslations:
    """Every anchor, translated by a fit that saw neither it nor a copy of it.

    translated  (k, d_y), in the target encoder's units
    first       (k,) which rows count: one of each group of anchors that are equal on either side,
                in the folds that were held out
    fold_of     (k,) the fold that each anchor was held out in; copies share one
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
    seed: int = 0,
) -> HeldOutTranslations | None:
    """Translate every anchor by a fit on the other folds.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    There are HELD_OUT_FOLDS folds, or 2 where these would contain fewer than SMALLEST_FOLD distinct
    anchors each.
    Anchors that are equal on either side share a fold and count once: with a copy in another fold,
    a fit would have seen them. Of many anchors, only enough folds are held out to contain
    MAX_HELD_OUT of them; the rows of the other folds do not count. A kernel of FEWEST_SHARED
    anchors and more has one inverse for all folds.
    Returns None below FEWEST_DISTINCT groups, or when all anchors outside a fold are one vector.
    Raises InvalidOption.
    """
    source, target = source.double(), target.double()
    parts = cut_into_folds(source, target, folds=None, seed=seed)
    if parts is None:
        return None
    first, fold_of = parts
    folds = int(fold_of.max()) + 1
    enough = min(folds, math.ceil(MAX_HELD_OUT * folds / int(first.sum())))
    first &= fold_of < enough
    if name == "kernel" and FEWEST_SHARED <= len(source) <= LANDMARKS:
        return HeldOutTranslations(_by_one_inverse(source, target, options, fold_of), *parts)
    translated = torch.zeros_like(target)
    for fold in range(enough):
        in_fold = fold_of == fold
        try:
            translated[in_fold] = translate_by(name, source, target, options, ~in_fold, in_fold)
        except DegenerateAnchors:
            return None
    return HeldOutTranslations(translated, first, fold_of)


def _by_one_inverse(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    options: Options,
    fold_of: Int64[Tensor, " k"],
) -> Float64[Tensor, "k dy"]:
    x, y = fit_space(source), fit_space(target)
    chosen = {name: options[name] for name in ("ridge", "decode_power")}
    outputs = hold_out_folds(x, y, fold_of, **chosen)
    if options["renormalise"]:
        outputs = unit(outputs)
    if options["keep_norms"]:
        outputs *= (x.norms / x.scale)[:, None]
    return y.mean + y.scale * outputs


def cut_into_folds(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    *,
    folds: int | None,
    seed: int,
) -> tuple[Bool[Tensor, " k"], Int64[Tensor, " k"]] | None:
    """Which of the anchors count, and the fold of each, as in `HeldOutTranslations`; None below
    FEWEST_DISTINCT groups.
    """
    group_of = _equal_on_either_side(source, target)
    first = group_of == torch.arange(len(group_of), device=group_of.device)
    groups = int(first.sum())
    if groups < FEWEST_DISTINCT:
        return None
    if folds is None:
        folds = HELD_OUT_FOLDS if groups >= SMALLEST_FOLD * HELD_OUT_FOLDS else 2
    fold_of = torch.full_like(group_of, -1)
    order = draw_rows(groups, seed=seed)
    fold_of[group_of[first]] = order.to(fold_of) % folds
    return first, fold_of[group_of]


def _equal_on_either_side(
    source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]
) -> Int64[Tensor, " k"]:
    """For each anchor, the first anchor that it is connected to by rows equal in the source or in
    the target.
    """
    sides = [torch.unique(side, dim=0, return_inverse=True)[1] for side in (source, target)]
    label = torch.arange(len(source), device=source.device)
    while True:
        before = label
        for side in sides:
            smallest = label.new_full((int(side.max()) + 1,), len(source)).scatter_reduce(
                0, side, label, "amin"
            )
            label = smallest[side]
        label = label[label]  # of the first anchor: chains close in few rounds
        if torch.equal(label, before):
            return label


def translate_by(
    name: str,
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    options: Options,
    known: Tensor,
    held: Tensor,
) -> Float64[Tensor, "h dy"]:
    """Translate the anchors `held` by a fit to the anchors `known`, both masks or rows. irp's omega
    is at most their number. Raises DegenerateAnchors.
    """
    x, y = fit_space(source[known]), fit_space(target[known])
    if "omega" in options:
        options = {**options, "omega": min(options["omega"], x.size)}
    return apply(fit(name, x, y, options), source[held]).vectors.double()
