"""An honest estimate of a translator's quality from the anchors alone: every anchor translated by a fit that never saw it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.methods import Options, fit
from app.maths.quality import Quality, do_nothing, measure
from app.maths.space import fit_space
from app.maths.translator import apply

FOLDS = 5

#: fewer anchors than this leave folds too small to say anything
FEWEST = 10


@dataclass(frozen=True)
class HeldOut:
    """folds       how many parts the anchors were cut into
    translated  quality of the translated anchors, each by a fit on the other parts
    do_nothing  the same for source vectors put into the target index as they are
    """

    folds: int
    translated: Quality
    do_nothing: Quality


def cross_fit(
    name: str, source: Float[Tensor, "k dx"], target: Float[Tensor, "k dy"], options: Options, *, seed: int = 0
) -> HeldOut | None:
    """Held-out quality over the k anchors by FOLDS-fold cross-fitting.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    Every fold's fit has 4/5 of the anchors, so the estimate is a little low. Index size of the retrieval numbers: k.
    Returns None when k < FEWEST, or when all anchors outside a fold are one vector. Raises InvalidOption.
    """
    k = source.shape[0]
    if k < FEWEST:
        return None
    source, target = source.double(), target.double()
    fold_of = torch.randperm(k, generator=torch.Generator().manual_seed(seed)) % FOLDS
    translated = torch.empty_like(target)
    for fold in range(FOLDS):
        held = fold_of == fold
        try:
            x, y = fit_space(source[~held]), fit_space(target[~held])
        except DegenerateAnchors:
            return None
        translated[held] = apply(fit(name, x, y, _for_fewer(options, x.size)), source[held]).vectors.double()
    mean = target.mean(dim=0)
    native = target - mean
    return HeldOut(
        folds=FOLDS,
        translated=measure(translated - mean, native),
        do_nothing=measure(do_nothing(source, target.shape[1]) - mean, native),
    )


def _for_fewer(options: Options, anchors: int) -> Options:
    """A fold has fewer anchors than the whole fit, and omega may not exceed them."""
    return {**options, "omega": min(int(options["omega"]), anchors)} if "omega" in options else options
