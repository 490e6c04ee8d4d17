"""Weights of anchors in a fit: less for anchors of another corpus.

The anchors that *count*, those that are not foreign to the store, have weight 1. The weight of the
others is a level, chosen by the retrieval score of held-out anchors that count, translated by fits
with these weights. Level 0 leaves the others out, so foreign anchors
cost at most the error of that choice. Translations of held-out anchors are compared by
retrieval and not by cosine, because foreign anchors may raise the cosine where they lower the
relevance of search results (docs/results/foreign-anchors.md).

In ridge regression, rows of weight w are a prior: the fit shrinks towards the map of these rows.
The best weight hardly depends on the number of anchors that count, but on the sum of the weights of
all foreign rows. So the levels are sums.
Source: power priors, Ibrahim and Chen 2000 (a likelihood of other data raised to a power w).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from app.maths.quality.candidates import DEFAULT_CANDIDATE
from app.maths.quality.crossfit import FEWEST_DISTINCT, draw_anchors
from app.maths.quality.selection import DECISIVE_ERRORS, held_out_scores

#: What all foreign anchors together may count as, in anchors. The first is the default.
FOREIGN_TOTALS = (0.0, 50.0, 150.0)

#: The largest weight of a foreign anchor.
MOST_FOREIGN_WEIGHT = 0.5

#: A choice uses at most this many anchors that count, and as many others.
MOST_WEIGHED_ANCHORS = 512


def choose_weights(
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    foreign: Bool[Tensor, " k"],
) -> Float64[Tensor, " k"] | None:
    """The weights in [0, 1] of raw anchors, in the encoders' own units, row i the same item.

    foreign  (k,) as in `foreign.StoreComparison`; the others count, and have weight 1
    Another level than the default is chosen where it is better by `selection.DECISIVE_ERRORS`
    standard errors. Returns None without foreign anchors, and where fewer than FEWEST_DISTINCT
    anchors count, which cannot replace the others.
    """
    counted, count = ~foreign, int(foreign.sum())
    if not count or len(source) - count < FEWEST_DISTINCT:
        return None
    usual = torch.ones(len(source), dtype=torch.float64, device=source.device)
    levels = [min(MOST_FOREIGN_WEIGHT, total / count) for total in FOREIGN_TOTALS]
    trials = [torch.where(foreign, level, usual) for level in levels]
    return trials[_best_trial(source.double(), target.double(), counted, trials)]


def _best_trial(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    counted: Bool[Tensor, " k"],
    trials: Sequence[Float64[Tensor, " k"]],
) -> int:
    """The weights with the best mean score if they are clearly better than the first; else 0."""
    scores = [_scores(source, target, counted, weights) for weights in trials]
    usual = scores[0]
    best = max(
        range(len(trials)),
        key=lambda i: -torch.inf if (each := scores[i]) is None else float(each.mean()),
    )
    chosen = scores[best]
    if usual is None or chosen is None:
        return 0
    better = chosen - usual
    error = float(better.std()) / len(better) ** 0.5
    return best if float(better.mean()) > DECISIVE_ERRORS * error else 0


def _scores(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    counted: Bool[Tensor, " k"],
    weights: Float64[Tensor, " k"],
) -> Float64[Tensor, " n"] | None:
    """The scores of the usual method with these weights; equal `counted` draw equal rows."""
    generator = torch.Generator().manual_seed(0)
    x, y, drawn, counts = draw_anchors(
        source, target, weights, counted, most=MOST_WEIGHED_ANCHORS, generator=generator
    )
    assert drawn is not None
    assert counts is not None
    usual = DEFAULT_CANDIDATE["retrieval"]
    return held_out_scores(x, y, usual, weights=drawn, counted=counts)
