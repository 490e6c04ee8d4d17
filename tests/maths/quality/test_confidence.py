"""Confidence of translations: the theorems of its conformal parts, its coverage, and known bad
cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.errors import DimensionMismatch, NonFinite, OutOfRange
from app.maths.geometry.space import fit_space
from app.maths.quality import confidence
from app.maths.quality.confidence import (
    Confidence,
    ExpectedCosines,
    anchors_needed,
    error_interval,
    expected_cosines,
    fit_confidence,
    p_values,
)
from app.maths.quality.metrics import unit
from app.maths.translators import methods
from app.maths.translators.translator import apply

Draw = Callable[..., tuple[Tensor, Tensor]]


def world(
    seed: int, *, noise: float = 0.5, dims: tuple[int, int] = (12, 10), latent: int = 6
) -> Draw:
    """Draws (n) parallel vectors of two encoders: two linear maps of a common part, each with
    noise.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    maps = [normal(latent, dim) for dim in dims]

    def sample(count: int) -> tuple[Tensor, Tensor]:
        # Items differ in the part that both encoders see; confidence can predict from that.
        shared = normal(count, latent) * (0.3 + normal(count, 1).abs())
        x, y = (shared @ each + noise * normal(count, each.shape[1]) for each in maps)
        return x + 1.0, y - 2.0

    return sample


def learn(x: Tensor, y: Tensor, method: str = "graded") -> Confidence:
    made = fit_confidence(method, x, y, methods.resolve(method, {}, anchors=len(x)))
    assert made is not None
    return made


def found(x: Tensor, y: Tensor, asked: Tensor, native: Tensor, method: str = "graded") -> Tensor:
    """Cosines of the served translator's translations to the native vectors."""
    translator = methods.fit(
        method, fit_space(x), fit_space(y), methods.resolve(method, {}, anchors=len(x))
    )
    middle = y.mean(dim=0)
    return (unit(apply(translator, asked).vectors.double() - middle) * unit(native - middle)).sum(
        dim=1
    )


def share(told: ExpectedCosines, cosines: Tensor) -> float:
    return float(((told.low <= cosines) & (cosines <= told.high)).double().mean())


# --- theorems -------------------------------------------------------------------------------------

distinct = st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=120, unique=True)


@given(distinct, st.floats(0.5, 0.99))
def test_each_number_lies_in_the_interval_of_the_others_with_the_stated_frequency(numbers, level):
    """The theorem of split conformal prediction, for every sample: each item in turn is the new
    one.
    """
    errors = torch.tensor(numbers, dtype=torch.float64)
    count = len(errors) - 1
    ends = [
        error_interval(torch.cat([errors[:i], errors[i + 1 :]]).sort().values, level)
        for i in range(len(errors))
    ]
    assert (ends[0] is None) == (count < anchors_needed(level))
    if ends[0] is None:
        return
    inside = sum(
        low <= float(error) <= high for error, (low, high) in zip(errors, ends, strict=True)
    )
    assert level - 1e-6 <= inside / len(errors) <= level + 2 / len(errors) + 1e-6


@given(st.lists(st.integers(0, 20), min_size=2, max_size=60), st.floats(0.01, 1))
def test_at_most_a_share_t_of_scores_has_a_p_value_of_t(numbers, bound):
    scores = torch.tensor(numbers, dtype=torch.float64)
    p = [
        float(p_values(scores[i : i + 1], torch.cat([scores[:i], scores[i + 1 :]]).sort().values))
        for i in range(len(scores))
    ]
    assert sum(each <= bound for each in p) <= bound * len(scores) + 1e-9


@pytest.mark.parametrize(
    ("level", "count"), [(0.5, 3), (0.8, 9), (0.9, 19), (0.95, 39), (0.99, 199)]
)
def test_a_level_needs_exactly_the_stated_number_of_errors(level, count):
    errors = torch.arange(count, dtype=torch.float64)
    assert anchors_needed(level) == count
    assert error_interval(errors, level) == (0.0, count - 1.0)
    assert error_interval(errors[:-1], level) is None


# --- expected behaviour ---------------------------------------------------------------------------


def test_intervals_of_exchangeable_items_have_their_coverage():
    """Of 39 errors, the 38th and the 2nd: 36 of 40 places between them, which is .9 exactly."""
    shares = []
    for seed in range(20):
        sample = world(seed)
        (x, y), (asked, native) = sample(78), sample(100)
        shares.append(share(expected_cosines(learn(x, y), asked), found(x, y, asked, native)))
    assert 0.87 < sum(shares) / len(shares) < 0.93


def test_expected_cosines_follow_the_true_ones_and_flags_are_as_frequent_as_estimated():
    flagged, correlations = [], []
    for seed in range(8):
        sample = world(seed)
        (x, y), (asked, native) = sample(150), sample(300)
        made = learn(x, y)
        told = expected_cosines(made, asked)
        assert made.threshold == 0.01
        flagged.append(float(told.strange.double().mean()))
        correlations.append(
            float(torch.corrcoef(torch.stack([told.cosine, found(x, y, asked, native)]))[0, 1])
        )
    assert sum(flagged) / len(flagged) < 0.02
    assert sum(correlations) / len(correlations) > 0.4


def test_equal_anchors_give_equal_confidence_and_rows_are_independent():
    sample = world(6)
    (x, y), (asked, _) = sample(80), sample(1_200)
    made, again = learn(x, y), learn(x.float(), y.float())
    assert torch.equal(learn(x, y).errors, made.errors)
    torch.testing.assert_close(again.errors, made.errors, atol=1e-4, rtol=1e-3)
    whole = expected_cosines(made, asked)
    for row in (0, 600, 1_199):
        alone = expected_cosines(made, asked[row : row + 1])
        torch.testing.assert_close(alone.cosine[0], whole.cosine[row], atol=1e-5, rtol=0)


# --- vectors unlike the anchors -------------------------------------------------------------------


def clumps(seed: int, count: int, dim: int = 48) -> Tensor:
    """Unit vectors like encoders': off centre, clustered, with few directions of high variance."""
    draw = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    spectrum = torch.arange(1, dim + 1, dtype=torch.float64).pow(-0.7)
    middles = torch.randn(12, dim, generator=fixed, dtype=torch.float64) * spectrum
    offset = 0.5 * torch.randn(dim, generator=fixed, dtype=torch.float64) / dim**0.5
    own = torch.randn(count, dim, generator=draw, dtype=torch.float64) * spectrum
    return unit(middles[torch.randint(12, (count,), generator=draw)] + 0.35 * own + offset)


@pytest.fixture(scope="module")
def clumped() -> tuple[Confidence, Tensor, Tensor]:
    """What 400 anchors in clumps teach, those anchors, and items like them."""
    draw = torch.Generator().manual_seed(1)
    x, asked = clumps(0, 400), clumps(1, 300)
    y = x @ torch.randn(48, 32, generator=draw, dtype=torch.float64) + 0.1 * torch.randn(
        400, 32, generator=draw, dtype=torch.float64
    )
    return learn(x, y), x, asked


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        (
            "random",
            lambda x, asked: unit(
                torch.randn(asked.shape, generator=torch.Generator().manual_seed(4))
            ),
        ),
        ("another encoder", lambda x, asked: asked.flip(1)),
        ("negated", lambda x, asked: -asked),
        ("mirrored", lambda x, asked: 2 * x.mean(dim=0) - asked),
        ("next to zero", lambda x, asked: 1e-5 * asked),
        ("zero", lambda x, asked: torch.zeros_like(asked)),
        ("large", lambda x, asked: 1e20 * asked),
        ("constant", lambda x, asked: torch.full_like(asked, 0.2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_garbage_is_flagged(clumped, name, garbage):
    made, x, asked = clumped
    told = expected_cosines(made, garbage(x, asked))
    assert float(told.strange.double().mean()) > 0.9
    assert not told.p_value.isnan().any()
    known = ~told.cosine.isnan()
    assert bool((told.low[known] >= -1).all() & (told.high[known] <= 1).all())


def test_a_vector_at_the_mean_has_no_expectation_and_is_neither_strange_nor_usual(clumped):
    made, _, asked = clumped
    told = expected_cosines(made, torch.stack([made.reference.mean.double(), asked[0]]))
    assert (
        told.cosine.isnan().tolist()
        == told.low.isnan().tolist()
        == told.p_value.isnan().tolist()
        == [True, False]
    )
    assert not told.strange.any()


# --- few anchors, and bad input -------------------------------------------------------------------


def test_too_few_distinct_anchors_have_no_confidence():
    x, y = world(0)(confidence.FEWEST_FOR_CONFIDENCE)
    options = methods.resolve("graded", {}, anchors=confidence.FEWEST_FOR_CONFIDENCE)
    assert fit_confidence("graded", x[:-1], y[:-1], options) is None
    assert fit_confidence("graded", x, y, options) is not None
    x[1] = x[0]  # a copy says nothing new
    assert fit_confidence("graded", x, y, options) is None


def test_too_few_for_the_level_have_an_expectation_and_no_interval():
    sample = world(1)
    made, asked = learn(*sample(24)), sample(5)[0]
    told = expected_cosines(made, asked, level=0.9)
    assert not told.cosine.isnan().any()
    assert told.low.isnan().all()
    assert told.high.isnan().all()
    assert not expected_cosines(made, asked, level=0.5).low.isnan().any()
    assert made.threshold == 1 / 25
    assert float(told.p_value.min()) >= 1 / 25


def test_wrong_vectors_and_levels_are_refused():
    sample = world(0)
    made = learn(*sample(40))
    with pytest.raises(DimensionMismatch):
        expected_cosines(made, torch.ones(2, 5))
    with pytest.raises(NonFinite) as refused:
        expected_cosines(made, torch.tensor([[1.0] * 12, [math.nan] * 12]))
    assert refused.value.rows == [1]
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(OutOfRange):
            expected_cosines(made, sample(2)[0], level=level)
