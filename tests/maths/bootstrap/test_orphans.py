"""Orphans: how many of the items whose partner is taken away are paired all the same, and what that says of all pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap.matching import silent
from app.maths.bootstrap.orphans import ENOUGH, FOUND, PARTS, TRIALS, Tried, trial, with_partner

shares = st.floats(0, 1)
WHOLE = 10**9


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def every(n: int) -> Tensor:
    return torch.arange(n)[:, None].repeat(1, 2)


def views(seed: int, n: int, d: int = 12, *, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """A cloud, and a noisy rotation of it in the same order."""
    x = normal(seed, n, d)
    return x, (x + noise * normal(seed + 1, n, d)) @ torch.linalg.qr(normal(seed + 2, d, d)).Q


@given(given_share=st.floats(0.01, 1), orphans=shares)
def test_the_share_with_a_partner_is_what_the_shares_add_up_to(given_share, orphans):
    told = with_partner(given_share, orphans)
    assert 0 <= told <= 1
    if orphans < given_share < FOUND:
        # FOUND of those with a partner and so many of the others are given; the first are right.
        common = told * given_share / FOUND
        assert FOUND * common + orphans * (1 - common) == pytest.approx(given_share, abs=1e-9)


@given(given_share=st.floats(0.01, 1), orphans=shares, more=shares)
def test_the_more_orphans_are_paired_and_the_fewer_pairs_are_given_the_less_is_right(given_share, orphans, more):
    told = with_partner(given_share, orphans)
    assert told >= with_partner(given_share, max(orphans, more)) - 1e-9
    assert told <= with_partner(max(given_share, more), orphans) + 1e-9


def test_where_no_orphan_is_paired_or_none_was_made_nothing_is_taken_away():
    assert with_partner(0.3, 0.0) == 1.0
    assert with_partner(0.3, math.nan) == 1.0
    assert with_partner(0.3, 0.3) == 0.0
    assert with_partner(1.0, 0.97) == 0.0


def orphaned(x: Tensor, y: Tensor, pairs: Tensor, memory: int = WHOLE) -> float:
    tried = Tried()
    while tried.wants(len(pairs)):
        tried = trial(x, y, pairs, tried, seed=0, memory=memory, beat=silent)
    return tried.share


def test_orphans_find_their_partners_twin_and_seldom_others():
    x, y = views(1, 200, 8)
    few = orphaned(x, y, every(200))
    assert few < 0.2
    twins = torch.cat([x, x + 0.01 * normal(5, 200, 8)]), torch.cat([y, y + 0.01 * normal(6, 200, 8)])
    assert orphaned(*twins, every(200)) > few + 0.15


@pytest.mark.parametrize("memory", [1, WHOLE])
def test_orphans_are_the_same_whatever_the_memory_and_the_order_of_the_pools(memory):
    x, y = views(1, 120, 4)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    moved = torch.stack([torch.arange(120), order.argsort()], dim=1)
    assert orphaned(x, y, every(120), memory) == orphaned(x, y[order], moved)


def test_of_pools_of_different_sizes_the_smaller_ones_orphans_count():
    x, y = views(1, 200, 6)
    # Of the larger pool hardly an orphan can find a partner: hardly an item of the smaller one is free.
    for one, other in ((x, y[:100]), (x[:100], y)):
        assert orphaned(one, other, every(100)) > 0


@pytest.mark.parametrize("pairs", [0, 7])
def test_of_too_few_pairs_nobody_is_made_an_orphan(pairs):
    assert math.isnan(orphaned(*views(1, 30), every(pairs)))


def test_what_the_beat_raises_ends_the_orphans():
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial(*views(1, 60), every(60), Tried(), seed=0, memory=WHOLE, beat=stop)


@given(pairs=st.integers(0, 10**6), trials=st.integers(0, 5), made=st.integers(0, 10**6))
def test_trials_end_with_enough_orphans_or_after_so_many_and_need_pairs_to_take_from(pairs, trials, made):
    wants = Tried(trials, made, 0).wants(pairs)
    assert wants == (pairs >= PARTS and trials < TRIALS and made < ENOUGH)
    if wants:
        assert pairs // PARTS > 0


def test_trials_differ_and_add_up():
    x, y = views(3, 100, 3)
    first = trial(x, y, every(100), Tried(), seed=0, memory=WHOLE, beat=silent)
    second = trial(x, y, every(100), first, seed=0, memory=WHOLE, beat=silent)
    other = trial(x, y, every(100), Tried(trials=1), seed=0, memory=WHOLE, beat=silent)
    assert (first.trials, second.trials, first.made, second.made) == (1, 2, 100 // PARTS, 2 * (100 // PARTS))
    assert second.found == first.found + other.found
    assert 0 <= first.share <= 1
