"""The quality of one translation: its expected cosine with a calibrated interval, and whether the
vector resembles the anchors.

The cosine is that between a translation and the vector that the target encoder would make of the
same item, both centred on the mean of the target's anchors (`app/maths/quality/metrics.py`). It is
unknown for a new vector, and known for a held-out anchor. So held-out anchors show how the cosine
depends on the position of a vector relative to the anchors:

1. Cut the anchors into CONFIDENCE_PARTS parts. A fit on all other parts translates the anchors of a
   part, and `features` describes them relative to the anchors of all other parts, as it would a new
   vector. Hold out parts until there are ENOUGH_HELD_OUT held-out anchors.
2. On half of the held-out anchors, fit a ridge regression of z = artanh(cosine) on five features.
3. Calibrate on the other half: with the sorted errors e of their m predictions, the interval of
   level 1 - a is tanh(prediction + [e_(m+1-j), e_(j)]), j = ceil((m + 1)(1 - a/2)): split conformal
   prediction with a tail of a/2 on each side. Below m = 2/a - 1 no such interval exists, and none
   is given.
4. A score of strangeness, from the same features, has its own distribution over the h held-out
   anchors. The p-value of a vector is (1 + the number of anchors at least as strange) / (h + 1).

New vectors are described relative to the first part's fit, which saw as many anchors as the fits
behind the regression. Features relative to all anchors of the served translator would have another
distribution: leverages shrink with every anchor, and nothing lies outside the span of d of them.

Proven: within one part, given the fit to the others, the held-out anchors and a new item are
exchangeable if anchors are drawn as the items are. So where one part suffices (only it has
ENOUGH_HELD_OUT anchors), the interval contains the cosine of a translation by that part's fit with
probability at least 1 - a, and at most 1 - a + 2/(m + 1) without ties; and p <= t has probability
about t (about, because the same anchors standardise the scores). Where several parts are pooled,
this is cross-conformal prediction: about 1 - 2a in the worst case, close to 1 - a in practice.
Measured only: the intervals also cover the cosine of the served
translator, which saw 1/CONFIDENCE_PARTS more anchors and is slightly better; expectations err on
the low side, and so the lower end on the safe side. Nothing is proven for vectors unlike the
anchors.

Sources: Vovk, Gammerman, Shafer 2005 and Lei et al. 2018, theorem 2 (split conformal); Vovk 2015,
Barber et al. 2021 (pooled folds); Bates et al. 2023 (conformal p-values of outliers); Lee et al.
2018 (Mahalanobis distance). The features are our own. The disagreement of fits on different parts,
as a further feature, added .001 to .003 to the correlation, and was left out.

Features of a vector's position relative to the anchors of a reference, for its confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors, OutOfRange
from app.maths.geometry.space import check_vectors, fit_space, normalise, row_norms
from app.maths.geometry.spectrum import usual_ridge
from app.maths.quality.crossfit import cut_into_folds, limit_omega
from app.maths.quality.metrics import unit
from app.maths.translators import linear
from app.maths.translators.linear import Pair
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import ROWS_PER_STEP, apply

#: Parts of the anchors; each fit sees all but one. With five parts the fits are noticeably worse
#: than the served one.
CONFIDENCE_PARTS = 10

#: With this many held-out anchors, no further part is held out.
ENOUGH_HELD_OUT = 400

#: With fewer distinct anchors there is no confidence: one half fits, and the other calibrates.
FEWEST_FOR_CONFIDENCE = 20

#: Vectors with a smaller p-value are flagged. With too few anchors for it, vectors stranger than
#: all anchors are.
STRANGE_P_VALUE = 0.01

#: In standard deviations: the regression clamps features to the first; beyond the second they add
#: to the strangeness.
FARTHEST_DEVIATION, EXTREME_DEVIATION = 4.0, 2.5

#: The least spread of log |x|. Unit vectors have none, and rounding must not count as strange.
LEAST_LENGTH_SPREAD = 0.05

#: Candidates of leave-one-out, for standardised features.
LEAVE_ONE_OUT_RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

#: Cosines are clamped to this, because artanh of 1 is infinite.
LARGEST_COSINE = 0.999999


@dataclass(frozen=True, eq=False)
class Confidence:
    """The regression and the calibration of one translator's confidence, from held-out anchors.

    centre, spread    (REGRESSION_FEATURES,) of the features that the regression was fitted to
    weights           (REGRESSION_FEATURES,), offset: z = offset + weights . (features - centre) /
                      spread
    errors            (m,) sorted z minus its prediction, of the calibrating half
    usual, deviation  (7,) mean and standard deviation of all held-out anchors' features
    strangeness       (h,) sorted scores of all held-out anchors
    """

    reference: Reference
    centre: Float64[Tensor, " f"]
    spread: Float64[Tensor, " f"]
    weights: Float64[Tensor, " f"]
    offset: float
    errors: Float64[Tensor, " m"]
    usual: Float64[Tensor, " g"]
    deviation: Float64[Tensor, " g"]
    strangeness: Float64[Tensor, " h"]

    @property
    def nbytes(self) -> int:
        return (
            self.reference.nbytes
            + self.errors.nbytes
            + self.strangeness.nbytes
            + 8 * 5 * len(FEATURES)
        )

    @property
    def held_out(self) -> int:
        """h, the number of held-out anchors."""
        return len(self.strangeness)

    @property
    def threshold(self) -> float:
        """The p-value at or below which a vector is flagged: the share of vectors like the anchors
        that are flagged.
        """
        return max(STRANGE_P_VALUE, 1.0 / (self.held_out + 1))


@dataclass(frozen=True, eq=False)
class ExpectedCosines:
    """For n vectors, each (n,): the expected cosine, its interval, and the p-value that the vector
    was drawn as the anchors were.

    All are NaN where a vector has no direction (it equals the mean); `low` and `high` also where
    the level needs more anchors. A vector without a p-value is not strange.
    """

    cosine: Float64[Tensor, " n"]
    low: Float64[Tensor, " n"]
    high: Float64[Tensor, " n"]
    p_value: Float64[Tensor, " n"]
    strange: Bool[Tensor, " n"]


def fit_confidence(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    seed: int = 0,
) -> Confidence | None:
    """The confidence of the translator that the named method fits to all anchors, from held-out
    anchors.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item;
            options resolved
    Anchors that are equal on either side share a fold and count once. Equal arguments give equal
    results.
    Returns None below FEWEST_FOR_CONFIDENCE distinct anchors, or when all anchors outside a part
    are one vector. Raises InvalidOption.
    """
    source, target = source.double(), target.double()
    parts = cut_into_folds(source, target, folds=CONFIDENCE_PARTS, seed=seed)
    if parts is None or int(parts[0].sum()) < FEWEST_FOR_CONFIDENCE:
        return None
    first, fold_of = parts
    part_count = min(
        CONFIDENCE_PARTS, math.ceil(ENOUGH_HELD_OUT * CONFIDENCE_PARTS / int(first.sum()))
    )
    mean = target.mean(dim=0)
    tables, cosines, reference = [], [], None
    for part in range(part_count):
        others, held_rows = fold_of != part, (fold_of == part) & first
        try:
            part_reference, translated = reference_and_translations(
                name, source, target, options, others, held_rows
            )
        except DegenerateAnchors:
            return None
        tables.append(features(part_reference, source[held_rows].float()).double())
        cosines.append((unit(translated - mean) * unit(target[held_rows] - mean)).sum(dim=1))
        reference = reference or part_reference
    assert reference is not None
    return _calibrate(reference, torch.cat(tables), torch.cat(cosines), seed)


def expected_cosines(
    confidence: Confidence, vectors: Float[Tensor, "n d"], *, level: float = 0.9
) -> ExpectedCosines:
    """The expected cosines of the translations of vectors (n, d), in the source encoder's units,
    any float dtype.

    level  in (0, 1), the probability that the interval contains the cosine
    Raises as `check_vectors`, and OutOfRange for the level.
    """
    if not 0 < level < 1:
        raise OutOfRange(
            f"`level` must lie between 0 and 1, both excluded; got {level}.", field="level"
        )
    check_vectors(vectors, dim=len(confidence.reference.mean))
    table = features(confidence.reference, vectors.float()).double()
    undirected = table[:, DISTANCE].isinf()
    predicted = _predict(confidence, table)
    tails = error_interval(confidence.errors, level)
    low, high = (torch.nan, torch.nan) if tails is None else tails
    p_value = p_values(
        _strangeness(table, confidence.usual, confidence.deviation), confidence.strangeness
    )
    p_value = torch.where(undirected, torch.nan, p_value)
    cosine, least, most = (
        torch.where(undirected, torch.nan, end).tanh()
        for end in (predicted, predicted + low, predicted + high)
    )
    return ExpectedCosines(cosine, least, most, p_value, p_value <= confidence.threshold)


def anchors_needed(level: float) -> int:
    """The number of calibrating anchors, half of those held out, that an interval of that level
    needs: 2/a - 1.
    """
    return math.ceil(round(2.0 / (1.0 - level), 6)) - 1


def error_interval(errors: Float64[Tensor, " m"], level: float) -> tuple[float, float] | None:
    """The offsets from a prediction to either end, from sorted errors (m,); None where the level
    needs more of them.
    """
    count = len(errors)
    place = math.ceil(round((count + 1) * (1.0 + level) / 2.0, 6))
    return None if place > count else (float(errors[count - place]), float(errors[place - 1]))


def p_values(scores: Float64[Tensor, " n"], known: Float64[Tensor, " h"]) -> Float64[Tensor, " n"]:
    """(1 + the number of `known` (h,), sorted, that are at least as large) / (h + 1), in (0, 1]."""
    larger = len(known) - torch.searchsorted(known, scores, right=False)
    return (1.0 + larger.double()) / (len(known) + 1.0)


def reference_and_translations(
    name: str,
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    options: Options,
    others: Bool[Tensor, " k"],
    held_rows: Bool[Tensor, " k"],
) -> tuple[Reference, Float64[Tensor, "h dy"]]:
    """The reference of the other parts' anchors, and translations of the held-out anchors by a fit
    to them.
    """
    pair = Pair(fit_space(source[others]), fit_space(target[others]))
    x, spectrum = pair.source, pair.x
    # The rounding of |n(x)|^2 = 1 in float32 must not count as a part outside the span.
    ridge = max(usual_ridge(spectrum, dim=x.dim), 1e-6 * spectrum.size)
    order = torch.randperm(x.size, generator=torch.Generator().manual_seed(0))
    sample = order[:MAX_COMPARED_ANCHORS]
    reference = Reference(
        mean=x.mean.float(),
        scale=x.scale,
        right=spectrum.right.T.float().contiguous(),
        whitening=(1.0 / (spectrum.values.square() + ridge)).float(),
        beyond=1.0 / ridge,
        anchors=(x.unit[sample] @ spectrum.right.T).float().contiguous(),
        regression=linear.regression(pair, ridge=None).float().contiguous(),
    )
    return reference, apply(
        fit(name, x, pair.target, limit_omega(options, x.size)), source[held_rows]
    ).vectors.double()


def _calibrate(
    reference: Reference,
    described: Float64[Tensor, "h f"],
    cosines: Float64[Tensor, " h"],
    seed: int,
) -> Confidence:
    """The regression on one half of the held-out anchors, the errors of the other half, and the
    strangeness of both.
    """
    known = described[:, DISTANCE].isfinite()  # an anchor at the mean has no cosine
    described, cosines = described[known], cosines[known]
    halves = _halves(len(cosines), seed)
    z = cosines.clamp(-LARGEST_COSINE, LARGEST_COSINE).atanh()
    predictors = described[:, :REGRESSION_FEATURES]
    centre, spread = moments(predictors[halves[0]])
    weights, offset = fit_validated_ridge(
        standardise(predictors[halves[0]], centre, spread), z[halves[0]]
    )
    usual, deviation = moments(described)
    # Replace the 1 that `moments` returns where all lengths are the same.
    deviation[LENGTH] = described[:, LENGTH].std(correction=0).clamp_min(LEAST_LENGTH_SPREAD)
    confidence = Confidence(
        reference=reference,
        centre=centre,
        spread=spread,
        weights=weights,
        offset=offset,
        errors=z.new_empty(0),
        usual=usual,
        deviation=deviation,
        strangeness=_strangeness(described, usual, deviation).sort().values,
    )
    errors = z[halves[1]] - _predict(confidence, described[halves[1]])
    return Confidence(**{**vars(confidence), "errors": errors.sort().values})


def _halves(count: int, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """The held-out anchors of the regression and those of the calibration, drawn independently of
    the folds.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + 1))
    return order[: count // 2], order[count // 2 :]


def moments(table: Float64[Tensor, "n f"]) -> tuple[Float64[Tensor, " f"], Float64[Tensor, " f"]]:
    """Mean and standard deviation of each column; 1 where a column is constant."""
    spread = table.std(dim=0, correction=0)
    noise = 1e-6 * (1.0 + table.abs().amax(dim=0))  # features are float32
    return table.mean(dim=0), torch.where(spread > noise, spread, 1.0)


def standardise(
    table: Float64[Tensor, "n f"], centre: Float64[Tensor, " f"], spread: Float64[Tensor, " f"]
) -> Float64[Tensor, "n f"]:
    return ((table - centre) / spread).clamp(-FARTHEST_DEVIATION, FARTHEST_DEVIATION)


def _predict(confidence: Confidence, table: Float64[Tensor, "n g"]) -> Float64[Tensor, " n"]:
    """The expected z of described vectors (n, 7)."""
    return (
        standardise(table[:, :REGRESSION_FEATURES], confidence.centre, confidence.spread)
        @ confidence.weights
        + confidence.offset
    )


def fit_validated_ridge(
    table: Float64[Tensor, "n f"], values_z: Float64[Tensor, " n"]
) -> tuple[Float64[Tensor, " f"], float]:
    """Ridge regression with an intercept, by SVD; its ridge has the least squared leave-one-out
    error over LEAVE_ONE_OUT_RIDGES.
    """
    means, middle = table.mean(dim=0), values_z.mean()
    left, values, right = torch.linalg.svd(table - means, full_matrices=False)
    rotated = left.T @ (values_z - middle)

    def left_out(ridge: float) -> float:
        shrinkage = values.square() / (values.square() + ridge)
        leverage = left.square() @ shrinkage + 1.0 / len(values_z)
        return float(
            ((values_z - middle - left @ (shrinkage * rotated)) / (1.0 - leverage)).square().mean()
        )

    ridge = min(LEAVE_ONE_OUT_RIDGES, key=left_out)
    weights = right.T @ (values / (values.square() + ridge) * rotated)
    return weights, float(middle - means @ weights)


def _strangeness(
    table: Float64[Tensor, "n g"], usual: Float64[Tensor, " g"], deviation: Float64[Tensor, " g"]
) -> Float64[Tensor, " n"]:
    """Standardised leverage + balance, plus the squared and doubled excess of balance, distance and
    length over EXTREME_DEVIATION.

    Leverage and balance respond to other domains and random directions, the balance to reflections.
    Distance and length respond to vectors on another scale, whose directions are ordinary.
    """
    standard = (table - usual) / deviation
    extreme = torch.stack(
        [standard[:, BALANCE], standard[:, DISTANCE].abs(), standard[:, LENGTH].abs()]
    )
    return (
        standard[:, LEVERAGE]
        + standard[:, BALANCE]
        + 2.0 * (extreme - EXTREME_DEVIATION).clamp_min(0.0).square().sum(dim=0)
    )


#: Anchors that a vector is compared with, and the number of nearest ones that count.
MAX_COMPARED_ANCHORS = 2048
NEAREST_ANCHORS = 10

#: The columns of `features`; the first REGRESSION_FEATURES predict.
FEATURES = ("leverage", "distance", "nearest", "near", "explained", "balance", "length")
REGRESSION_FEATURES = 5
LEVERAGE, DISTANCE, BALANCE, LENGTH = (
    FEATURES.index(name) for name in ("leverage", "distance", "balance", "length")
)


@dataclass(frozen=True, eq=False)
class Reference:
    """The anchors that vectors are described relative to: the source's anchors outside one part, U
    = W diag(s) V^T.

    mean        (d,), scale: of those anchors, in the encoder's units
    right       (d, r)  V
    whitening   (r,)    1 / (s^2 + lambda), and `beyond` = 1 / lambda for the part outside the
                anchors' span
    anchors     (c, r)  at most MAX_COMPARED_ANCHORS of the unit anchors, as U V
    regression  (r, q)  V^T B with B the ridge regression of unit target anchors on unit source
                anchors
    """

    mean: Float32[Tensor, " d"]
    scale: float
    right: Float32[Tensor, "d r"]
    whitening: Float32[Tensor, " r"]
    beyond: float
    anchors: Float32[Tensor, "c r"]
    regression: Float32[Tensor, "r q"]

    @property
    def nbytes(self) -> int:
        return sum(
            each.nbytes
            for each in (self.mean, self.right, self.whitening, self.anchors, self.regression)
        )


def features(reference: Reference, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n f"]:
    """The FEATURES (n, 7) of vectors (n, d) relative to a reference; q = n(x) V are their
    coordinates in the anchors' span.

    leverage   log( sum_i q_i^2 / (s_i^2 + lambda) + (1 - |q|^2) / lambda ), the squared Mahalanobis
               distance of a direction
    distance   log |x - m| / s, -inf where x equals m
    nearest    the largest cosine to an anchor
    near       the mean of the NEAREST_ANCHORS largest cosines
    explained  log |n(x) B|, the length of the regression's prediction: for unit y it is the cosine
               that B expects
    balance    minus the mean of the NEAREST_ANCHORS smallest cosines, minus `near`: anchors form
               clusters, and their mirror images do not
    length     log |x|
    """
    return torch.cat(
        [
            _features(reference, vectors[start : start + ROWS_PER_STEP])
            for start in range(0, len(vectors), ROWS_PER_STEP)
        ]
    )


def _features(reference: Reference, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n f"]:
    tiny = torch.finfo(torch.float32).tiny
    direction, norms = normalise(vectors, reference.mean)
    inside = direction @ reference.right
    squared = inside.square()
    outside = (1.0 - squared.sum(dim=1)).clamp_min(0.0)
    cosines = inside @ reference.anchors.T
    near = cosines.topk(min(NEAREST_ANCHORS, cosines.shape[1]), dim=1).values
    far = cosines.topk(near.shape[1], dim=1, largest=False).values
    return torch.stack(
        [
            (squared @ reference.whitening + outside * reference.beyond).clamp_min(tiny).log(),
            (norms / reference.scale).log().float(),
            near[:, 0],
            near.mean(dim=1),
            (inside @ reference.regression).norm(dim=1).clamp_min(tiny).log(),
            -near.mean(dim=1) - far.mean(dim=1),
            row_norms(vectors).clamp_min(tiny).log().float(),
        ],
        dim=1,
    )
