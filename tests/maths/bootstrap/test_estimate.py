"""Estimates without the truth: no map may judge the pairs that it learnt from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap import estimate
from app.maths.bootstrap.estimate import (
    Confirmation,
    Votes,
    answer_credibility,
    attempt_agreement,
    vote,
    wrong_seeds,
)
from app.maths.bootstrap.neighbours import graded_map, mutual_partners, no_beat
from tests.maths.bootstrap.clouds import normal

#: pools without twins
APART = torch.eye(10), torch.eye(10)


@pytest.fixture
def once(monkeypatch):
    """One halving, of the first pairs and the others."""
    monkeypatch.setattr(estimate, "CONFIRMATIONS", 1)
    monkeypatch.setattr(estimate, "draw_half", lambda pairs, *_: torch.arange(pairs) < pairs // 2)


def votes_on(x: Tensor, y: Tensor, pairs: Tensor, given: Tensor) -> Votes:
    return vote(x, y, pairs, given, seed=0, beat=no_beat)


def test_agreement_counts_the_rows_that_both_pair():
    one, other = torch.tensor([1, 2, 3, -1, 5]), torch.tensor([1, 2, 9, 4, -1])
    assert attempt_agreement(one, other) == attempt_agreement(other, one) == pytest.approx(2 / 3)
    assert attempt_agreement(one, one) == 1.0
    # One common row of twenty proves nothing, although both pair it alike.
    few = torch.tensor([0] + [-1] * 19)
    assert attempt_agreement(torch.arange(20), few) == attempt_agreement(few[:0], few[:0]) == 0.0


@pytest.mark.parametrize("pairs", [0, 1, 2, 9, 30])
def test_each_pair_is_judged_by_the_map_of_the_other_half(once, pairs):
    x, y, seed = normal(1, 30, 4), normal(2, 40, 5), pairs
    generator = torch.Generator().manual_seed(seed)
    claimed = torch.stack(
        [torch.randperm(size, generator=generator)[:pairs] for size in (30, 40)], dim=1
    )
    half = estimate.draw_half(pairs)
    votes = votes_on(x, y, claimed, claimed[::3])
    for row, (i, j) in enumerate(claimed.tolist()):
        others = claimed[half != half[row]]
        if not len(others):
            assert not votes.confirmed[row]
            assert bool(votes.seed_rank.isnan().all())
            continue
        q = normalize(x @ graded_map(x[others[:, 0]], y[others[:, 1]]).float())
        chosen = int(mutual_partners(q, normalize(y), beat=no_beat)[i]) == j
        assert bool(votes.confirmed[row]) == chosen
        if row % 3 == 0:
            nearness, back = normalize(y) @ q[i], q @ normalize(y)[j]
            before = float((nearness > nearness[j]).double().mean())
            behind = float((back > back[i]).double().mean())
            assert float(votes.seed_rank[row // 3]) == pytest.approx(
                min(before, behind), abs=2 / 30
            )


def test_the_upper_end_of_wilsons_interval():
    assert estimate.wilson_upper(0, 0) == 1.0  # of nothing counted everything is possible
    assert estimate.wilson_upper(5, 10) == pytest.approx(0.7634, abs=1e-4)


def test_some_confirmed_pairs_are_wrong_where_chance_confirms_many():
    # .1 of .9 not confirmed, .8 by chance: half of the pairs are wrong, and .64 of these confirmed.
    told = answer_credibility(1.0, Confirmation(0.9, 0.9), Confirmation(0.8, 0.4))
    assert told == pytest.approx(1 - 0.5 * 0.64 / 0.9)
    # A share that chance confirms too has no credibility.
    assert answer_credibility(1.0, Confirmation(0.9, 0.9), Confirmation(0.9, 0.4)) == 0
    # Without chance, agreement or confirmation alone suffices; halfway up it is a half.
    assert answer_credibility(0.65, Confirmation(0.58, 0.1)) == pytest.approx(0.5)
    assert answer_credibility(0.45, Confirmation(0.64, 0.1)) == pytest.approx(0.5)
    # The items that chance confirms, and an eighth more.
    assert answer_credibility(
        1.0, Confirmation(0.9, 0.72), Confirmation(0.8, 0.56)
    ) == pytest.approx((1 - 0.5 * 0.64 / 0.9) * 0.08 / 0.17)


def test_a_seed_is_wrong_if_it_ranks_low_or_its_item_belongs_to_a_certain_pair():
    certain = torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3]])
    votes = Votes(
        certain, torch.tensor([1.0, 1.0, 1.0, 2 / 3]), torch.tensor([0.0, 0.0, 0.0, 0.0, 0.2])
    )
    # The third is a sum of rows like the first two pairs; the fourth contradicts a pair that some
    # map does not confirm.
    given = torch.tensor([[0, 0], [1, 9], [2, 0], [3, 9], [7, 7]])
    assert wrong_seeds(votes, given, *APART) == [1, 2, 4]


@pytest.mark.parametrize("side", [0, 1])
def test_a_seed_whose_rival_is_a_twin_of_its_own_is_not_called_wrong(side):
    """Row 5 is the twin of row 1, and row 6 is not: the certain pairs give its partner to them."""
    items = normalize(normal(0, 8, 6)).float()
    items[5] = normalize(items[1:2] + 0.05 * normal(1, 1, 6)).float()[0]
    pools = (normal(2, 8, 6).float(), items) if side == 0 else (items, normal(2, 8, 6).float())
    certain, seeds = torch.tensor([[1, 5], [2, 6]]), torch.tensor([[1, 1], [2, 2]])
    if side == 1:
        certain, seeds = certain.flip(1), seeds.flip(1)
    votes = Votes(certain, torch.ones(2), torch.zeros(2))
    assert wrong_seeds(votes, seeds, *APART) == [0, 1]
    assert wrong_seeds(votes, seeds, *pools) == [1]


@pytest.mark.parametrize(
    ("agreement", "confirmed", "seeds_confirmed", "paired", "believed"),
    [
        (0.5, 0.8, 0.9, 0.3, True),  # the confirmation alone suffices
        (0.5, 0.5, 0.9, 0.3, False),
        (0.9, 0.8, 0.9, 0.0, False),
        (0.9, 0.8, 0.2, 0.3, False),  # wrong seeds lower it
        (0.9, 0.8, math.nan, 0.3, True),  # there are none
    ],
)
def test_a_map_is_believed_where_only_strangers_lower_the_estimate(
    agreement, confirmed, seeds_confirmed, paired, believed
):
    made = estimate.BootstrapEstimate(0.4, agreement, confirmed, 0.1, seeds_confirmed, paired)
    assert made.is_map_believed == believed
