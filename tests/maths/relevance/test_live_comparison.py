"""Interleaved rankings, and the interval that holds at every look."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.maths.relevance.live_comparison import (
    ALPHA,
    LAST_BUCKET,
    confidence_sequence,
    draft_teams,
    judge_preference,
    latency_bucket,
    latency_ms,
    overlap,
    preferred_team,
    rank_changes,
)


def test_a_draft_has_the_best_hits_of_both_and_each_hit_once() -> None:
    coins = np.random.default_rng(0)
    for _ in range(200):
        first, second = (coins.permutation(12)[:8].tolist() for _ in range(2))
        shown, teams = draft_teams(first, second, 6, lambda: bool(coins.integers(2)))
        assert len(shown) == len(set(shown)) == len(teams) == 6
        assert abs(teams.count(0) - teams.count(1)) <= 1
        for team, ranking in enumerate((first, second)):
            drafted = [id for id, each in zip(shown, teams, strict=True) if each == team]
            places = [ranking.index(id) for id in drafted]
            assert places == sorted(places)  # a team places its hits in their order


def test_agreed_hits_at_the_top_belong_to_no_team_and_short_rankings_end() -> None:
    assert draft_teams([1, 2, 3], [1, 2, 4], 10, lambda: True) == ([1, 2, 3, 4], [None, None, 0, 1])
    assert draft_teams([1, 2], [1, 2], 2, lambda: True) == ([1, 2], [None, None])
    assert draft_teams([], ["a", "b"], 5, lambda: True) == (["a", "b"], [1, 1])
    assert draft_teams(["a"], [], 5, lambda: False) == (["a"], [0])
    assert draft_teams([], [], 5, lambda: True) == ([], [])


def test_a_random_click_prefers_either_ranking_equally() -> None:
    coins = np.random.default_rng(1)
    won = []
    while len(won) < 4_000:
        first, second = (coins.permutation(12)[:8].tolist() for _ in range(2))
        _, teams = draft_teams(first, second, 6, lambda: bool(coins.integers(2)))
        team = preferred_team([teams[int(coins.integers(6) ** 2 / 6)]])
        won += [] if team is None else [team == 0]
    assert abs(np.mean(won) - 0.5) < 4 * 0.5 / math.sqrt(len(won))


def test_the_team_with_more_clicks_is_preferred() -> None:
    assert preferred_team([0, None, 0, 1]) == 0
    assert preferred_team([1]) == 1
    assert preferred_team([0, 1]) is None
    assert preferred_team([None]) is None


def test_overlap_and_rank_changes() -> None:
    assert overlap([1, 2, 3, 4], [4, 3, 9, 8]) == 0.5
    assert (overlap([], []), overlap([1], [])) == (1.0, 0.0)
    assert rank_changes([1, 2, 3], [3, 2, 7]) == [0, 2]


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_one_look_misses_the_share_less_often_than_alpha(share: float) -> None:
    for count in (1, 7, 20, 200):
        misses = sum(
            math.comb(count, wins) * share**wins * (1 - share) ** (count - wins)
            for wins in range(count + 1)
            if not _holds(wins, count, share)
        )
        assert misses <= ALPHA


def _holds(wins: int, count: int, share: float) -> bool:
    low, high = confidence_sequence(wins, count)
    return low <= share <= high


@pytest.mark.parametrize("share", [0.5, 0.6, 0.9])
def test_the_interval_holds_at_every_look_of_a_stream(share: float) -> None:
    chance = np.random.default_rng(2)
    missed = 0
    for _ in range(100):
        won = (chance.random(1_000) < share).cumsum()
        looks = np.unique(np.geomspace(1, 1_000, 60).astype(int))
        missed += not all(_holds(int(won[look - 1]), int(look), share) for look in looks)
    assert missed <= 100 * ALPHA + 3 * math.sqrt(100 * ALPHA)


def test_verdicts_and_how_many_more_are_needed() -> None:
    assert confidence_sequence(0, 0) == (0.0, 1.0)
    nothing = judge_preference(0, 0)
    assert (nothing.share, nothing.verdict) == (0.5, "undecided")
    better, worse = judge_preference(700, 300), judge_preference(300, 700)
    assert (better.verdict, worse.verdict, better.needed) == ("better", "worse", 0)
    assert better.low == pytest.approx(1 - worse.high)
    assert judge_preference(10_000, 10_000).verdict == "no-difference"
    assert judge_preference(20, 0).verdict == "better"
    few = judge_preference(60, 40)
    assert few.verdict == "undecided"
    more = judge_preference(60 + round(0.6 * few.needed * 1.1), 40 + round(0.4 * few.needed * 1.1))
    assert more.verdict == "better"


def test_percentiles_of_a_histogram_are_near_those_of_the_latencies() -> None:
    seconds = np.random.default_rng(3).lognormal(-4, 1, 2_000)
    buckets: dict[int, float] = {}
    for each in seconds:
        buckets[latency_bucket(each)] = buckets.get(latency_bucket(each), 0) + 1
    for share in (0.5, 0.99):
        exact, found = np.quantile(seconds, share) * 1e3, latency_ms(buckets, share)
        assert found is not None
        assert exact * 0.95 <= found <= exact * 2**0.25 * 1.05
    assert latency_ms({}, 0.5) is None
    assert latency_bucket(1e9) == LAST_BUCKET
