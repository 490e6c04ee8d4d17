"""Which anchors are foreign to a store, and how much of the store the anchors cover.

A sample of the store's vectors, which have no partners, says what the store looks like. With
directions v = (x - m) / |x - m| about the sample's mean m, the likeness of a vector is the mean
cosine to its NEAREST nearest vectors of the sample. An anchor's p-value is the share of the
sample's own vectors that are less like the rest of the sample than the anchor is:

    p = (1 + #{sample rows with likeness <= the anchor's}) / (n + 1).

For an anchor that was drawn as the sample was, p exceeds each level a with probability 1 - a at
least, for every distribution. Anchors with p < FOREIGN_LEVEL are foreign.
Source: conformal outlier detection, Bates et al. 2023, section 2 (a vector of the sample is
compared without itself).

Weights of anchors in a fit: less for anchors of another corpus.

The anchors that *count*, those that are not foreign to the store, have weight 1. The weight of the
others is a level, chosen by the retrieval score of held-out anchors that count, translated by fits
with these weights. Level 0 leaves the others out, so foreign anchors
cost at most the error of that choice. Translations of held-out anchors are compared by
retrieval and not by cosine, because foreign anchors may raise the cosine where they lower the
relevance of search results (docs/results/relevance.md).

In ridge regression, rows of weight w are a prior: the fit shrinks towards the map of these rows.
The best weight hardly depends on the number of anchors that count, but on the sum of the weights of
all foreign rows. So the levels are sums.
Source: power priors, Ibrahim and Chen 2000 (a likelihood of other data raised to a power w).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from app.maths.anchors.coverage import COVERAGE_RIDGE, ridge_factor
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import COSINE_ROWS, normalise
from app.maths.quality.candidates import DEFAULT_CANDIDATE
from app.maths.quality.crossfit import FEWEST_DISTINCT, draw_anchors
from app.maths.quality.selection import DECISIVE_ERRORS, held_out_scores

#: Nearest vectors of the sample that the likeness is a mean over.
NEAREST = 5

#: The share of anchors of the store that are called foreign all the same.
FOREIGN_LEVEL = 0.05

#: A sample of fewer different vectors is not compared: its p-values are coarser than FOREIGN_LEVEL.
FEWEST_SAMPLED = 50

#: A comparison uses at most this many rows of the sample, drawn by seed, to limit the time.
MOST_SAMPLED = 2048

#: A set has foreign anchors when at least this share of them is foreign.
LEAST_FOREIGN_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class StoreComparison:
    """Anchors compared with a sample of a store.

    foreign  (k,) the anchors that are foreign to the store
    share    the estimated share of foreign anchors, corrected for FOREIGN_LEVEL; in [0, 1]
    covered  the mean share of a vector of the store that the anchors cover, as in
             `app/maths/anchors/coverage.py`; in [0, 1]
    sampled  the number of vectors of the sample that were compared
    """

    foreign: Bool[Tensor, " k"]
    share: float
    covered: float
    sampled: int

    @property
    def has_foreign(self) -> bool:
        """Whether so many anchors are foreign that a fit should weigh them less."""
        return self.share >= LEAST_FOREIGN_SHARE


def compare_with_store(
    anchors: Float[Tensor, "k d"],
    sample: Float[Tensor, "n d"],
    *,
    judged: Bool[Tensor, " k"] | None = None,
    seed: int = 0,
) -> StoreComparison | None:
    """Compare anchors with a sample of a store, both of one encoder, in its units.

    judged  (k,) the anchors that can be foreign; None: all. Queries look unlike every store of
            documents, so they are not judged
    seed    draws MOST_SAMPLED rows of a larger sample
    Returns None below FEWEST_SAMPLED different vectors, and where no anchor is judged.
    """
    if judged is None:
        judged = torch.ones(len(anchors), dtype=torch.bool, device=anchors.device)
    rows = draw_uniformly(len(sample), size=min(MOST_SAMPLED, len(sample)), seed=seed)
    sample, anchors = sample[torch.as_tensor(rows)].double(), anchors.double()
    if len(torch.unique(sample, dim=0)) < FEWEST_SAMPLED or not bool(judged.any()):
        return None
    mean = sample.mean(dim=0)
    store, _ = normalise(sample, mean)
    unit, _ = normalise(anchors, mean)
    usual = _likeness(store, store, own=True).sort().values
    lower = torch.searchsorted(usual, _likeness(unit, store, own=False), right=True)
    foreign = judged & ((1.0 + lower.double()) / (len(store) + 1.0) < FOREIGN_LEVEL)
    found = float(foreign[judged].double().mean())
    return StoreComparison(
        foreign=foreign,
        share=max(0.0, (found - FOREIGN_LEVEL) / (1.0 - FOREIGN_LEVEL)),
        covered=covered_share(unit, store),
        sampled=len(store),
    )


def covered_share(unit: Float64[Tensor, "k d"], vectors: Float64[Tensor, "n d"]) -> float:
    """The mean of v^T P v over unit vectors (n, d), with P = C (C + ridge I)^-1 and C = U^T U of
    unit anchors (k, d); rows of zeros do not count.
    """
    factor = ridge_factor(unit, ridge=COVERAGE_RIDGE)
    known = vectors[vectors.abs().amax(dim=1) > 0]
    reach = torch.linalg.solve_triangular(factor, known.T, upper=False)
    uncovered = COVERAGE_RIDGE * reach.square().sum(dim=0)
    return 1.0 - float(uncovered.mean()) if len(known) else 0.0


def _likeness(
    vectors: Float64[Tensor, "m d"], store: Float64[Tensor, "n d"], *, own: bool
) -> Float64[Tensor, " m"]:
    """The mean cosine of unit vectors (m, d) to their nearest ones of the store (n, d).

    own  the vectors are the store's: row i is not compared with itself
    """
    parts = []
    for start in range(0, len(vectors), COSINE_ROWS):
        cosines = vectors[start : start + COSINE_ROWS] @ store.T
        if own:
            cosines.diagonal(start).fill_(-torch.inf)
        parts.append(cosines.topk(NEAREST, dim=1).values.mean(dim=1))
    return torch.cat(parts)


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
