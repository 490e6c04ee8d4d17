"""Calibration: the map never falls, its intervals cover, and missing data is reported."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality.crossfit import FEWEST_DISTINCT, HELD_OUT_FOLDS
from app.maths.quality.metrics import unit
from app.maths.thresholds import calibration, score_pairs
from app.maths.thresholds import calibration as c
from app.maths.thresholds.calibration import (
    Calibration,
    calibrate,
    covered_range,
    expected_score,
    threshold_agreement,
)
from app.maths.thresholds.score_pairs import CalibrationItems, GivenSide, translate_held_out
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import Translator, apply
from app.types import Scores
from tests.maths.clouds import normal, rotation

NATIVE, TRANSLATED, BOTH = (
    Scores.native_native,
    Scores.translated_native,
    Scores.translated_translated,
)


def clustered(seed: int, items: int, dim: int) -> Tensor:
    """Items around twelve uncentred clusters: cosines from -.5 to .95, most of them low."""
    centre = torch.randint(12, (items,), generator=torch.Generator().manual_seed(seed))
    spread = 0.2 + 0.8 * torch.rand(
        items, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1)
    )
    return normal(7, 12, dim)[centre] + spread * normal(seed + 2, items, dim) + 0.3


def noisy_pair(seed: int, items: int) -> tuple[Tensor, Tensor]:
    """The same items by two encoders, 16-d and 12-d; the second is a noisy map of the first."""
    source = clustered(seed, items, 16)
    return source, source @ normal(8, 16, 12) + 2.0 * normal(seed + 3, items, 12)


def items_of(
    source: Tensor, target: Tensor, method: str = "ridge", **options: bool
) -> CalibrationItems:
    items = translate_held_out(
        method, source, target, resolve(method, options, anchors=len(source))
    )
    assert items is not None
    return items


def ridge(source: Tensor, target: Tensor) -> Translator:
    return fit(
        "ridge", fit_space(source), fit_space(target), resolve("ridge", {}, anchors=len(source))
    )


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """A map costs 5 ms, and a calibration computes 200 by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c, "MAP_RESAMPLES", 60)
        yield


@cache
def noisy(scores: Scores, given: GivenSide = "source", seed: int = 0) -> Calibration:
    return calibrate(items_of(*noisy_pair(seed, 150)), scores, given=given)


def inside(calibration: Calibration, points: int = 25) -> list[float]:
    """Given scores that the calibration covers."""
    ends = covered_range(calibration)
    return torch.linspace(*ends, points, dtype=torch.float64)[1:-1].tolist()


def pair_scores(queries: Tensor, index: Tensor) -> Tensor:
    """Cosines of all i < j, and of j to i."""
    i, j = torch.triu_indices(len(queries), len(queries), offset=1)
    table = unit(queries) @ unit(index).T
    return torch.cat([table[i, j], table[j, i]])


# --- the map --------------------------------------------------------------------------------------


def test_a_rotated_source_keeps_every_score_with_certainty():
    source = clustered(0, 120, 10)
    calibration = calibrate(items_of(source, source @ rotation(0, 10)), NATIVE)
    for score in inside(calibration):
        found = expected_score(calibration, score, level=0.9)
        assert found.answer == pytest.approx(score, abs=1e-5)
        assert found.interval == pytest.approx((score, score), abs=1e-5)
        assert found.map_interval == pytest.approx((score, score), abs=1e-5)
        assert found.by_rate == pytest.approx(score, abs=1e-5)
        assert not found.extrapolated


@pytest.mark.parametrize(
    ("scores", "given"), [(NATIVE, "source"), (TRANSLATED, "source"), (BOTH, "target")]
)
def test_the_map_never_falls(scores, given):
    calibration = noisy(scores, given)
    answers = [
        expected_score(calibration, score, level=0.9).answer for score in inside(calibration, 60)
    ]
    known = [answer for answer in answers if answer is not None]
    assert len(known) > 45
    assert all(low <= high + 1e-12 for low, high in pairwise(known))
    assert known[-1] > known[0] + 0.3
    for each in (calibration.map, *(group.map for group in calibration.groups)):
        assert bool((each.given.diff() > 0).all())
        assert bool((each.answer.diff() > 0).all())


@given(st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_map_has_the_least_squares_values(points):
    """Against the max-min formula of isotonic regression, which is not how it is computed."""
    answer = torch.tensor([value for value, _ in points], dtype=torch.float64)
    weight = torch.tensor([float(count) for _, count in points], dtype=torch.float64)
    place = torch.arange(len(points), dtype=torch.float64)

    def mean(low: int, high: int) -> float:
        return float((answer * weight)[low : high + 1].sum() / weight[low : high + 1].sum())

    n = len(points)
    expected = [
        max(min(mean(low, high) for high in range(i, n)) for low in range(i + 1)) for i in range(n)
    ]
    fitted = calibration.fit_isotonic(place, answer, weight)
    assert bool((fitted.answer.diff() > 0).all())
    assert {round(value, 9) for value in fitted.answer.tolist()} == {
        round(value, 9) for value in expected
    }
    total = float((fitted.at(place) * weight).sum())
    assert -weight.sum() <= total <= weight.sum()


@settings(max_examples=6)
@given(
    st.integers(10, 16),
    st.integers(2, 5),
    st.integers(0, 10_000),
    st.sampled_from(list(Scores)),
    st.floats(-1, 1),
)
def test_any_anchors_give_intervals_within_the_cosines_or_none_at_all(
    count, dim, seed, scores, score
):
    found = expected_score(
        calibrate(items_of(normal(seed, count, dim), normal(seed + 1, count, dim)), scores),
        score,
        level=0.9,
    )
    assert (
        found.extrapolated
        == (found.answer is None)
        == (found.interval is None)
        == (found.map_interval is None)
    )
    if not found.extrapolated:
        assert -1 <= found.interval[0] <= found.interval[1] <= 1
        assert -1 <= found.map_interval[0] <= found.map_interval[1] <= 1
        assert -1 <= found.answer <= 1
    assert 0 <= found.share <= 1


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", [NATIVE, TRANSLATED])
def test_the_interval_covers_the_new_scores_of_other_items(scores):
    """Over several draws of the anchors, because the coverage of one draw varies; also for near
    pairs alone.
    """
    others, natives = noisy_pair(500, 400)
    old = pair_scores(others, others)
    shares, near_shares = [], []
    for seed in (0, 10, 20):
        calibration = noisy(scores, "source", seed)
        source, target = noisy_pair(seed, 150)
        translator = ridge(source, target)
        new = pair_scores(
            natives if scores == NATIVE else apply(translator, others).vectors, natives
        )
        knots = inside(calibration, 40)
        found = [expected_score(calibration, score, level=0.9).interval for score in knots]
        assert all(interval is not None for interval in found)
        place = torch.bucketize(
            old,
            torch.tensor([(low + high) / 2 for low, high in pairwise(knots)], dtype=torch.float64),
        )
        within = (old >= knots[0]) & (old <= knots[-1])
        ends = torch.tensor(found, dtype=torch.float64)[place]
        hit = (new >= ends[:, 0]) & (new <= ends[:, 1])
        shares.append(float(hit[within].double().mean()))
        near_shares.append(float(hit[within & (old > 0.6)].double().mean()))
    assert sum(shares) / 3 == pytest.approx(0.9, abs=0.03)
    assert sum(near_shares) / 3 == pytest.approx(0.9, abs=0.05)


def test_the_interval_of_the_map_covers_what_other_anchors_say():
    """Maps from other draws of the anchors lie in it about as often as it estimates."""
    own = noisy(NATIVE)
    hits = []
    for seed in range(100, 140, 10):
        other = noisy(NATIVE, "source", seed)
        for score in (0.0, 0.2, 0.4, 0.6):
            low, high = expected_score(own, score, level=0.9).map_interval or (math.nan, math.nan)
            middle = expected_score(own, score, level=0.9).answer or math.nan
            found = expected_score(other, score, level=0.9).answer or math.nan
            # The difference of two maps varies by sqrt(2) times as much as one of them.
            hits.append(
                middle + (low - middle) * 2**0.5 <= found <= middle + (high - middle) * 2**0.5
            )
    assert 0.75 <= sum(hits) / len(hits) <= 1


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=60), st.sampled_from([0.5, 0.8, 0.9, 0.99]))
def test_a_conformal_bound_is_a_rank_and_infinite_for_too_few(residuals, level):
    ordered = torch.tensor(sorted(residuals), dtype=torch.float64)
    n = len(residuals)
    rank = math.ceil((n + 1) * (1 + level) / 2 - 1e-9)
    assert c._upper_residual(ordered, n, level) == (math.inf if rank > n else ordered[rank - 1])
    low, high = c._conformal_interval(ordered, n, level)
    mirrored = c._conformal_interval((-ordered).flip(0), n, level)
    assert (low, high) == (-mirrored[1], -mirrored[0])


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", Scores)
def test_the_rate_matched_threshold_accepts_the_same_share_and_inverts(scores):
    there, back = noisy(scores), noisy(scores, "target")
    weight = there.rows.weight
    for score in (0.0, 0.3, 0.5, 0.7):
        found = expected_score(there, score, level=0.9)
        assert float(
            weight[there.rows.answer >= found.by_rate].sum() / weight.sum()
        ) == pytest.approx(found.share, abs=2e-3)
        assert expected_score(back, found.by_rate, level=0.9).by_rate == pytest.approx(
            score, abs=0.02
        )


def test_decisions_count_pairs_whose_items_did_not_choose_the_threshold():
    """Naively: for each fold of each round, the best threshold of the other folds, measured on this
    one.
    """
    calibration = noisy(NATIVE)
    rows, score = calibration.rows, 0.5
    reached = rows.given >= score
    accepted = torch.zeros_like(reached)
    for group in range(int(rows.group.max()) + 1):
        own = rows.group == group
        others = (rows.group // HELD_OUT_FOLDS == group // HELD_OUT_FOLDS) & ~own
        order = rows.answer[others].sort().values
        candidates = torch.cat([order[:1] - 1, (order[1:] + order[:-1]) / 2])
        candidates = candidates[:: max(1, len(candidates) // 400)]
        both = (
            (rows.answer[others] >= candidates[:, None]) & reached[others]
        ).double() @ rows.weight[others]
        taken = (rows.answer[others] >= candidates[:, None]).double() @ rows.weight[others]
        f1 = 2 * both / (taken + rows.weight[others & reached].sum())
        accepted[own] = rows.answer[own] >= candidates[int(f1.argmax())]
    both = float(rows.weight[accepted & reached].sum())
    found = threshold_agreement(calibration, score)
    assert found.best.precision == pytest.approx(
        both / float(rows.weight[accepted].sum()), abs=0.02
    )
    assert found.best.recall == pytest.approx(both / float(rows.weight[reached].sum()), abs=0.02)
    assert found.unchanged.threshold == score
    for each in (found.unchanged, found.mapped, found.by_rate, found.best):
        assert each.f1 == pytest.approx(
            2 * each.precision * each.recall / (each.precision + each.recall)
        )


@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.booleans(), st.integers(1, 4)), min_size=1, max_size=20
    )
)
def test_the_best_threshold_is_no_worse_than_any_other(pairs):
    answer = torch.tensor([value / 4 for value, _, _ in pairs], dtype=torch.float64)
    reached = torch.tensor([flag for _, flag, _ in pairs])
    weight = torch.tensor([float(count) for _, _, count in pairs], dtype=torch.float64)
    nothing = torch.zeros(len(pairs), dtype=torch.int64)
    rows = score_pairs.ScorePairs(answer, answer, weight, nothing, nothing, nothing, reached)

    def f1(threshold: float) -> float:
        accepted = answer >= threshold
        return float(
            2 * weight[accepted & reached].sum() / (weight[accepted].sum() + weight[reached].sum())
        )

    if bool(reached.any()):
        found = calibration.best_threshold(rows, reached, answer.argsort(stable=True))
        assert f1(found) == pytest.approx(max(f1(value / 8) for value in range(-8, 9)))


# --- missing data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [-1.0, -0.99, 0.999, 1.0])
def test_beyond_the_anchors_scores_there_is_no_expectation(score):
    for scores in Scores:
        found = expected_score(noisy(scores), score, level=0.9)
        assert (found.answer, found.interval, found.map_interval, found.by_rate) == (None,) * 4
        assert found.extrapolated
        assert threshold_agreement(noisy(scores), score) is None


def test_the_covered_range_is_that_of_the_expectations():
    calibration = noisy(TRANSLATED)
    ends = covered_range(calibration)
    lower = float(calibration.rows.given[calibration.rows.given < ends[0]].max())
    for score, known in ((ends[0], True), (ends[1], True), (lower, False), (ends[1] + 1e-9, False)):
        assert (expected_score(calibration, score, level=0.9).by_rate is not None) == known
        assert (threshold_agreement(calibration, score) is not None) == known


def test_equidistant_anchors_have_no_map_and_raise_no_error():
    for scores in Scores:
        calibration = calibrate(items_of(torch.eye(20).double(), normal(0, 20, 6)), scores)
        assert covered_range(calibration) is None
        for score in (-0.5, 0.0, 0.5):
            assert expected_score(calibration, score, level=0.9).extrapolated


def test_too_few_distinct_anchors_have_no_calibration_and_ten_have_one():
    source, target = normal(0, FEWEST_DISTINCT, 4), normal(1, FEWEST_DISTINCT, 3)
    options = resolve("ridge", {}, anchors=FEWEST_DISTINCT)
    assert (
        translate_held_out("ridge", source[:-1].repeat(3, 1), target[:-1].repeat(3, 1), options)
        is None
    )
    assert expected_score(calibrate(items_of(source, target), TRANSLATED), 0.0, level=0.9).share > 0


# --- pairs ----------------------------------------------------------------------------------------


def test_pairs_lie_within_folds_and_near_ones_are_oversampled():
    source, target = noisy_pair(0, 300)
    items = items_of(source, target)
    rows = score_pairs.sample_pairs(items, TRANSLATED, "source", 0)
    turn, fold = rows.group // HELD_OUT_FOLDS, rows.group % HELD_OUT_FOLDS
    for side in (rows.first, rows.second):
        assert torch.equal(items.fold_of[turn, side], fold)
    assert bool((rows.first != rows.second).all())
    every = score_pairs._all_pairs(items, TRANSLATED, "source")
    assert float(rows.weight.sum()) == pytest.approx(len(every.given))
    counts = torch.bincount(score_pairs.stratum_of(every.given), minlength=score_pairs.STRATA)
    assert int(counts.max()) > score_pairs.ROWS_PER_STRATUM
    kept = torch.bincount(score_pairs.stratum_of(rows.given), minlength=score_pairs.STRATA)
    assert torch.equal(kept, counts.clamp(max=score_pairs.ROWS_PER_STRATUM))
    top = every.given > every.given.quantile(0.999)
    assert int(top.sum()) == int((rows.given > every.given.quantile(0.999)).sum())


def test_copies_of_anchors_make_no_pairs():
    source, target = noisy_pair(0, 40)
    items = items_of(source.repeat(3, 1), target.repeat(3, 1))
    assert len(items.source) == 40
    assert float(score_pairs.sample_pairs(items, NATIVE, "source", 0).given.max()) < 0.9999


def test_an_item_scores_one_with_itself_unless_one_side_is_translated():
    assert c.same_item_interval(noisy(NATIVE), 0.9) is None
    assert c.same_item_interval(noisy(BOTH), 0.9) is None
    own = c.same_item_interval(noisy(TRANSLATED), 0.9)
    assert 0.3 < own[1] < own[0] < own[2] < 1
