"""Which of several encoders made each row of a store, judged by the anchors of each.

Rows and anchors are scaled to unit length. An encoder's anchors (k, d) have the mean m and the
covariance S, which is shrunk as in Ledoit and Wolf 2004, because k is often below d:

    C = (1 - a) S + a tr(S) / d I.

The score of a row u is its Gaussian log-likelihood, without the constant that all encoders share:

    score(u) = -1/2 (u - m)^T C^-1 (u - m) - 1/2 log det C.

A row is the encoder's of the largest score, if two conditions hold; otherwise it is undecided.

- It fits: its score is at least least = own - SLACK (own - permuted). `own` is the OWN_LEVEL
  quantile of the scores of held-out anchors, and `permuted` the PERMUTED_LEVEL quantile of those
  with permuted coordinates, which have the anisotropy of the space and no place in it.
- It leads: its score exceeds all others by more than any held-out anchor of another encoder does
  by mistake. A new vector of an encoder with n anchors, drawn as they were, then goes to another
  encoder with a probability of at most 1 / (n + 1) (a conformal bound, up to the fold of a fit).

Held-out scores are by cross-validation in FOLDS folds. Friedman 1989 (regularised discriminant
analysis); benchmarks/mixed.py measures the choice of SLACK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import row_norms

#: a row of no encoder
UNDECIDED = -1

#: fewer anchors of an encoder cannot be held out
FEWEST_OWNED = 20

#: most bytes of the whitening of all encoders: 4 of 4,096 dimensions. A fit takes some times this
MOST_BYTES = 2**28

#: folds of the cross-validation
FOLDS = 4

#: quantile of own scores, that of permuted ones, and the share of the way between them that a row
#: may lie below the former
OWN_LEVEL, PERMUTED_LEVEL, SLACK = 0.01, 0.95, 0.2

#: least weight of the multiple of I in a covariance
LEAST_SHRINKAGE = 0.01


@dataclass(frozen=True, eq=False)
class RowOwners:
    """What tells the rows of c encoders of one dimension apart.

    means      (c, d)     of the unit anchors
    whitening  (c, d, d)  W with W W^T = C^-1
    constants  (c,)       -1/2 log det C
    least      (c,)       least score of a row that fits
    leads      (c,)       a row of the encoder leads by more than this
    """

    means: Float64[Tensor, "c d"]
    whitening: Float[Tensor, "c d d"]
    constants: Float64[Tensor, " c"]
    least: Float64[Tensor, " c"]
    leads: Float64[Tensor, " c"]

    @property
    def nbytes(self) -> int:
        return self.whitening.nbytes + self.means.nbytes

    def scores(self, unit: Float64[Tensor, "n d"]) -> Float64[Tensor, "n c"]:
        """The score of unit rows (n, d) by each encoder."""
        parts = zip(self.means, self.whitening, self.constants, strict=True)
        return torch.stack(
            [
                constant - 0.5 * ((unit - mean) @ whitening.double()).square().sum(dim=1)
                for mean, whitening, constant in parts
            ],
            dim=1,
        )

    def find(self, vectors: Float[Tensor, "n d"]) -> Int64[Tensor, " n"]:
        """The place (n,) of the encoder that made each row (n, d); UNDECIDED for none."""
        return self.choose(self.scores(_unit(vectors)))

    def choose(self, scores: Float64[Tensor, "n c"]) -> Int64[Tensor, " n"]:
        """The same for the scores of the rows; NaN is undecided."""
        best, owner = scores.max(dim=1)
        lead = _leads(scores).gather(1, owner[:, None])[:, 0]
        decided = (best >= self.least[owner]) & (lead > self.leads[owner])
        return torch.where(decided, owner, UNDECIDED)


@dataclass(frozen=True)
class OwnerErrors:
    """Measured on held-out anchors of one encoder.

    right          share that was found to be the encoder's; the rest is undecided
    wrong_at_most  bound of the probability that a row of it goes to another encoder; 0 without one
    """

    right: float
    wrong_at_most: float


def most_owners(dim: int) -> int:
    """The largest c with 4 c d^2 <= MOST_BYTES."""
    return MOST_BYTES // (4 * dim * dim)


def fit_row_owners(
    anchors: Sequence[Float[Tensor, "k d"]], *, seed: int = 0
) -> tuple[RowOwners, list[OwnerErrors]]:
    """Learn to tell encoders apart by anchors of each, at least FEWEST_OWNED, and measure it.

    seed  draws the folds and the permutation. Raises nothing.
    """
    units = [_unit(each) for each in anchors]
    units = [each[each.isfinite().all(dim=1)] for each in units]

    def drawn(count: int) -> Tensor:
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed))

    # Of one anchor set, an item is held out for all encoders: relatives would recognise it.
    folds = [drawn(len(each)) % FOLDS for each in units]
    order = drawn(units[0].shape[1])
    held = [each.new_zeros(len(each), len(units)) for each in units]
    permuted = [each.new_zeros(len(each)) for each in units]
    for fold in range(FOLDS):
        models = _models([each[which != fold] for each, which in zip(units, folds, strict=True)])
        for place, (each, which) in enumerate(zip(units, folds, strict=True)):
            out = which == fold
            held[place][out] = models.scores(each[out])
            permuted[place][out] = models.scores(each[out][:, order])[:, place]
        del models  # before the next ones are made
    least, leads = [], []
    for place, scores in enumerate(held):
        own = scores[:, place].quantile(OWN_LEVEL)
        gap = (own - permuted[place].quantile(PERMUTED_LEVEL)).clamp_min(0.0)
        least.append(own - SLACK * gap)
        others = [_leads(each)[:, place].max() for other, each in enumerate(held) if other != place]
        leads.append(torch.stack([own.new_zeros(()), *others]).max())
    fitted = _models(units)
    owners = RowOwners(
        fitted.means, fitted.whitening, fitted.constants, torch.stack(least), torch.stack(leads)
    )
    return owners, [
        OwnerErrors(
            right=float((owners.choose(each) == place).double().mean()),
            wrong_at_most=1.0 / (len(each) + 1) if len(held) > 1 else 0.0,
        )
        for place, each in enumerate(held)
    ]


def _models(units: Sequence[Float64[Tensor, "k d"]]) -> RowOwners:
    """The Gaussians of unit anchors, without conditions."""
    means, whitening, constants = zip(*(_gaussian(each) for each in units), strict=True)
    none = torch.zeros(len(units), dtype=torch.float64)
    return RowOwners(torch.stack(means), torch.stack(whitening), torch.stack(constants), none, none)


def _gaussian(unit: Float64[Tensor, "k d"]) -> tuple[Tensor, Tensor, Tensor]:
    """The mean (d,), W (d, d) in float32, and -1/2 log det C of unit anchors."""
    count, dim = unit.shape
    mean = unit.mean(dim=0)
    centred = unit - mean
    covariance = centred.T @ centred / count
    level = covariance.trace() / dim
    eye = torch.eye(dim, dtype=torch.float64)
    spread = (covariance - level * eye).square().sum()
    fourth = centred.square().sum(dim=1).square().mean()
    error = (fourth - covariance.square().sum()) / count
    weight = (error / spread.clamp_min(1e-300)).clamp(LEAST_SHRINKAGE, 1.0)
    shrunk = (1.0 - weight) * covariance + (weight * level + 1e-12) * eye
    factor = torch.linalg.cholesky(shrunk)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    return mean, inverse.T.float().contiguous(), -factor.diagonal().log().sum()


def _leads(scores: Float64[Tensor, "n c"]) -> Float64[Tensor, "n c"]:
    """By how much each score exceeds the largest of the others; infinite without others."""
    if scores.shape[1] == 1:
        return torch.full_like(scores, torch.inf)
    top, places = scores.topk(2, dim=1)
    rivals: Tensor = top[:, :1].repeat(1, scores.shape[1])
    rivals.scatter_(1, places[:, :1], top[:, 1:])
    leads: Tensor = scores - rivals
    return leads


def _unit(vectors: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
    """Unit rows on the CPU; NaN for rows that are zero or not finite."""
    rows = vectors.cpu().double()
    unit: Tensor = rows / row_norms(rows)[:, None]
    return unit
