"""How well one vector was translated: an expected cosine with a calibrated interval, and whether the vector is like the anchors.

The cosine meant is that between a translation and the vector that the target encoder would have made of the same item, both
centred on the mean of the target's anchors (`app/maths/quality/metrics.py`). Nobody knows it for a new vector; for an anchor that was
held out it is known. So held-out anchors teach what to expect of a vector from how it lies to the anchors:

1. Cut the anchors into FOLDS parts. The anchors of a part are translated by a fit to all other parts, and described (`features`)
   relative to the anchors of all other parts: as a new vector would be. Parts are taken until ENOUGH anchors were held out.
2. Half of the held-out anchors fit a ridge regression of z = artanh(cosine) on five features.
3. The other half calibrate: with the sorted errors e of their m predictions, the interval of level 1 - a is
   tanh(prediction + [e_(m+1-j), e_(j)]), j = ceil((m + 1)(1 - a/2)): split conformal prediction with a tail of a/2 on each side.
   Below m = 2/a - 1 no such interval exists, and none is given.
4. A score of strangeness, of the same features, has its own distribution over the h held-out anchors: the p-value of a vector is
   (1 + how many of them are at least as strange) / (h + 1).

New vectors are described relative to the first part's fit, which saw as many anchors as those that taught. What is relative to
the served translator's own anchors would be distributed otherwise: leverages shrink with every anchor, and nothing lies outside
the span of d of them.

What is proven: within one part, given the fit to the others, the anchors held out and a new item are exchangeable if anchors are
drawn as the items are. So where one part is taken (it alone has ENOUGH anchors), the interval holds the cosine of a translation
by that part's fit with probability at least 1 - a, and at most 1 - a + 2/(m + 1) without ties; and p <= t has probability about t
(about: scores are standardised by the same anchors). Where several parts are pooled this is cross-conformal prediction: at least
1 - 2a or so in the worst case, close to 1 - a in practice. What is only measured (benchmarks/confidence.py): that the cosine of
the served translator, which saw 1/FOLDS more anchors and is a little better, is covered as well; what is expected errs on the low
side, so its lower end on the safe one. Of vectors unlike the anchors nothing is proven at all.

Sources: Vovk, Gammerman, Shafer 2005 and Lei et al. 2018, theorem 2 (split conformal); Vovk 2015, Barber et al. 2021 (pooled
folds); Bates et al. 2023 (conformal p-values of outliers); Lee et al. 2018 (Mahalanobis distance). The features are ours.
That fits of different parts disagree was tried as a feature, too: it added .001 to .003 to the correlation, and was left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors, OutOfRange
from app.maths.geometry.pair import Pair
from app.maths.geometry.space import check_vectors, fit_space, normalise, row_norms
from app.maths.geometry.spectrum import usual_ridge
from app.maths.quality.crossfit import cut_into_folds, limit_omega
from app.maths.quality.metrics import unit
from app.maths.translators import align
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import ROWS_PER_STEP, apply

#: parts of the anchors; each fit sees all but one. Of five, the fits are so much worse than the served one that it shows
CONFIDENCE_PARTS = 10

#: held-out anchors after which no further part is held out
ENOUGH_HELD_OUT = 400

#: fewer distinct anchors than this teach nothing: half of them would fit, and half calibrate
FEWEST_FOR_CONFIDENCE = 20

#: of how many anchors a vector's nearest are sought, and how many of those count
MOST_COMPARED_ANCHORS = 2048
NEAREST_ANCHORS = 10

#: a vector with a smaller p-value is flagged; where there are fewer anchors than can tell, one stranger than all of them
STRANGE_P_VALUE = 0.01

#: standard deviations: features farther out are taken as so far by the regression, and count extra as strange
FARTHEST_DEVIATION, EXTREME_DEVIATION = 4.0, 2.5

#: the least spread of log |x| that is taken for one: unit vectors have none, and rounding is not strange
LEAST_LENGTH_SPREAD = 0.05

#: ridges that leave-one-out chooses from; the features are standardised
LEAVE_ONE_OUT_RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

#: the columns of `features`; the first LEARNT predict
FEATURES = ("leverage", "distance", "nearest", "near", "explained", "balance", "length")
REGRESSION_FEATURES = 5
LEVERAGE, DISTANCE, BALANCE, LENGTH = (
    FEATURES.index(name) for name in ("leverage", "distance", "balance", "length")
)

#: cosines nearer to 1 are taken as so near: artanh of 1 is infinite
LARGEST_COSINE = 0.999999


@dataclass(frozen=True, eq=False)
class Reference:
    """What vectors are described relative to: the source's anchors outside one part, U = W diag(s) V^T, and a regression.

    mean        (d,), scale: of those anchors, in the encoder's units
    right       (d, r)  V
    whitening   (r,)    1 / (s^2 + lambda), and `beyond` = 1 / lambda for what lies outside the anchors' span
    anchors     (c, r)  at most MOST_COMPARED of the unit anchors, as U V
    regression  (r, q)  V^T B with B the ridge regression of unit target anchors on unit source anchors
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


@dataclass(frozen=True, eq=False)
class Confidence:
    """What held-out anchors taught about one translator.

    centre, spread    (LEARNT,) of the features that taught the regression
    weights           (LEARNT,), offset: z = offset + weights . (features - centre) / spread
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
        """h, how many anchors taught and calibrated."""
        return len(self.strangeness)

    @property
    def threshold(self) -> float:
        """The p-value at or below which a vector is flagged: how often a vector like the anchors is."""
        return max(STRANGE_P_VALUE, 1.0 / (self.held_out + 1))


@dataclass(frozen=True, eq=False)
class ExpectedCosines:
    """Of n vectors, each (n,): the expected cosine, its interval, and the p-value of being drawn as the anchors were.

    NaN where a vector has no direction (it equals the mean), and `low`, `high` also where the level needs more anchors. What
    has no p-value is not strange.
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
    """What held-out anchors teach about the translator that the named method fits to all of them.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item; options resolved
    Anchors that are equal on either side share a fold and count once. Equal arguments give equal results.
    Returns None below FEWEST distinct anchors, or when all anchors outside a part are one vector. Raises InvalidOption.
    """
    source, target = source.double(), target.double()
    parted = cut_into_folds(source, target, folds=CONFIDENCE_PARTS, seed=seed)
    if parted is None or int(parted[0].sum()) < FEWEST_FOR_CONFIDENCE:
        return None
    first, fold_of = parted
    parts = min(CONFIDENCE_PARTS, math.ceil(ENOUGH_HELD_OUT * CONFIDENCE_PARTS / int(first.sum())))
    mean = target.mean(dim=0)
    described, cosines, reference = [], [], None
    for part in range(parts):
        others, held = fold_of != part, (fold_of == part) & first
        try:
            here, translated = _reference_and_translations(name, source, target, options, others, held)
        except DegenerateAnchors:
            return None
        described.append(features(here, source[held].float()).double())
        cosines.append((unit(translated - mean) * unit(target[held] - mean)).sum(dim=1))
        reference = reference or here
    assert reference is not None
    return _calibrate(reference, torch.cat(described), torch.cat(cosines), seed)


def expected_cosines(
    confidence: Confidence, vectors: Float[Tensor, "n d"], *, level: float = 0.9
) -> ExpectedCosines:
    """What to expect of the translations of vectors (n, d), in the source encoder's units, any float dtype.

    level  in (0, 1), how often the interval is to hold the cosine
    Raises as `check_vectors`, and OutOfRange for the level.
    """
    if not 0 < level < 1:
        raise OutOfRange(f"a level lies between 0 and 1, got {level}", field="level")
    check_vectors(vectors, dim=len(confidence.reference.mean))
    found = features(confidence.reference, vectors.float()).double()
    pointless = found[:, DISTANCE].isinf()
    predicted = _predict(confidence, found)
    tails = error_interval(confidence.errors, level)
    low, high = (torch.nan, torch.nan) if tails is None else tails
    p_value = p_values(
        _strangeness(found, confidence.usual, confidence.deviation), confidence.strangeness
    )
    p_value = torch.where(pointless, torch.nan, p_value)
    cosine, least, most = (
        torch.where(pointless, torch.nan, end).tanh()
        for end in (predicted, predicted + low, predicted + high)
    )
    return ExpectedCosines(cosine, least, most, p_value, p_value <= confidence.threshold)


def anchors_needed(level: float) -> int:
    """How many calibrating anchors, half of those held out, an interval of that level needs: 2/a - 1."""
    return math.ceil(round(2.0 / (1.0 - level), 6)) - 1


def error_interval(errors: Float64[Tensor, " m"], level: float) -> tuple[float, float] | None:
    """What to add to a prediction for either end, from sorted errors (m,); None where the level needs more of them."""
    count = len(errors)
    place = math.ceil(round((count + 1) * (1.0 + level) / 2.0, 6))
    return None if place > count else (float(errors[count - place]), float(errors[place - 1]))


def p_values(scores: Float64[Tensor, " n"], known: Float64[Tensor, " h"]) -> Float64[Tensor, " n"]:
    """(1 + how many of `known` (h,), sorted, are at least as large) / (h + 1), in (0, 1]."""
    larger = len(known) - torch.searchsorted(known, scores, right=False)
    return (1.0 + larger.double()) / (len(known) + 1.0)


def features(reference: Reference, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n f"]:
    """How vectors (n, d) lie to the anchors of a reference, the FEATURES (n, 7); q = n(x) V are the coordinates in their span.

    leverage   log( sum_i q_i^2 / (s_i^2 + lambda) + (1 - |q|^2) / lambda ), the squared Mahalanobis distance of a direction
    distance   log |x - m| / s, -inf where x equals m
    nearest    the largest cosine to an anchor
    near       the mean of the NEAREST largest
    explained  log |n(x) B|, the length of the regression's prediction: for unit y it is the cosine that B expects
    balance    minus the mean of the NEAREST smallest cosines, minus `near`: anchors lie in clumps, and their mirror images do not
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


def _reference_and_translations(
    name: str,
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    options: Options,
    others: Bool[Tensor, " k"],
    held: Bool[Tensor, " k"],
) -> tuple[Reference, Float64[Tensor, "h dy"]]:
    """The reference of the other parts' anchors, and translations of the held-out ones by a fit to those."""
    pair = Pair(fit_space(source[others]), fit_space(target[others]))
    x, spectrum = pair.source, pair.x
    # What float32 loses of |n(x)|^2 = 1 must not count as lying outside the span.
    ridge = max(usual_ridge(spectrum, dim=x.dim), 1e-6 * x.size)
    compared = torch.randperm(x.size, generator=torch.Generator().manual_seed(0))[:MOST_COMPARED_ANCHORS]
    reference = Reference(
        mean=x.mean.float(),
        scale=x.scale,
        right=spectrum.right.T.float().contiguous(),
        whitening=(1.0 / (spectrum.values.square() + ridge)).float(),
        beyond=1.0 / ridge,
        anchors=(spectrum.left * spectrum.values)[compared].float().contiguous(),
        regression=align.regression(pair, ridge=None).float().contiguous(),
    )
    return reference, apply(
        fit(name, x, pair.target, limit_omega(options, x.size)), source[held]
    ).vectors.double()


def _calibrate(
    reference: Reference,
    described: Float64[Tensor, "h f"],
    cosines: Float64[Tensor, " h"],
    seed: int,
) -> Confidence:
    """The regression of one half of held-out anchors, the errors of the other, and the strangeness of both."""
    known = described[:, DISTANCE].isfinite()  # an anchor that equals the mean says nothing
    described, cosines = described[known], cosines[known]
    halves = _halves(len(cosines), seed)
    z = cosines.clamp(-LARGEST_COSINE, LARGEST_COSINE).atanh()
    learnt = described[:, :REGRESSION_FEATURES]
    centre, spread = _moments(learnt[halves[0]])
    weights, offset = _fit_ridge(_standardise(learnt[halves[0]], centre, spread), z[halves[0]])
    usual, deviation = _moments(described)
    # As it is: where lengths are all the same, `_moments` has 1 for it.
    deviation[LENGTH] = described[:, LENGTH].std(correction=0).clamp_min(LEAST_LENGTH_SPREAD)
    made = Confidence(
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
    errors = z[halves[1]] - _predict(made, described[halves[1]])
    return Confidence(**{**vars(made), "errors": errors.sort().values})


def _halves(count: int, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Which held-out anchors fit, and which calibrate: drawn apart from the folds."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + 1))
    return order[: count // 2], order[count // 2 :]


def _moments(table: Float64[Tensor, "n f"]) -> tuple[Float64[Tensor, " f"], Float64[Tensor, " f"]]:
    """Mean and standard deviation of each column; 1 where a column is constant."""
    spread = table.std(dim=0, correction=0)
    noise = 1e-6 * (1.0 + table.abs().amax(dim=0))  # features are float32
    return table.mean(dim=0), torch.where(spread > noise, spread, 1.0)


def _standardise(
    table: Float64[Tensor, "n f"], centre: Float64[Tensor, " f"], spread: Float64[Tensor, " f"]
) -> Float64[Tensor, "n f"]:
    return ((table - centre) / spread).clamp(-FARTHEST_DEVIATION, FARTHEST_DEVIATION)


def _predict(confidence: Confidence, found: Float64[Tensor, "n g"]) -> Float64[Tensor, " n"]:
    """The z expected of described vectors (n, 7)."""
    return (
        _standardise(found[:, :REGRESSION_FEATURES], confidence.centre, confidence.spread) @ confidence.weights
        + confidence.offset
    )


def _fit_ridge(
    table: Float64[Tensor, "n f"], wanted: Float64[Tensor, " n"]
) -> tuple[Float64[Tensor, " f"], float]:
    """Ridge regression with an intercept, by SVD; its ridge has the least squared leave-one-out error over RIDGES."""
    means, middle = table.mean(dim=0), wanted.mean()
    left, values, right = torch.linalg.svd(table - means, full_matrices=False)
    turned = left.T @ (wanted - middle)

    def left_out(ridge: float) -> float:
        kept = values.square() / (values.square() + ridge)
        leverage = left.square() @ kept + 1.0 / len(wanted)
        return float(
            ((wanted - middle - left @ (kept * turned)) / (1.0 - leverage)).square().mean()
        )

    ridge = min(LEAVE_ONE_OUT_RIDGES, key=left_out)
    weights = right.T @ (values / (values.square() + ridge) * turned)
    return weights, float(middle - means @ weights)


def _strangeness(
    found: Float64[Tensor, "n g"], usual: Float64[Tensor, " g"], deviation: Float64[Tensor, " g"]
) -> Float64[Tensor, " n"]:
    """Standardised leverage + balance, and what is extreme of balance, distance and length, squared and doubled.

    The first two tell other domains and random directions; reflections show in the balance; vectors on another scale, which have
    ordinary directions, in the distance and the length.
    """
    standard = (found - usual) / deviation
    extreme = torch.stack(
        [standard[:, BALANCE], standard[:, DISTANCE].abs(), standard[:, LENGTH].abs()]
    )
    return (
        standard[:, LEVERAGE]
        + standard[:, BALANCE]
        + 2.0 * (extreme - EXTREME_DEVIATION).clamp_min(0.0).square().sum(dim=0)
    )
