"""Orphans: the share of items without a partner that is paired, and the estimate that follows from
it.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap import orphans
from app.maths.bootstrap.neighbours import learn_and_match
from app.maths.bootstrap.orphans import (
    DOUBTFUL_SHARE,
    FINDABLE_SHARE,
    OrphanTrials,
    run_trials,
    share_with_partner,
)
from app.maths.bootstrap.pools import Progress, ignore_step
from tests.maths.bootstrap.clouds import every, normal, views

shares = st.floats(0, 1)


@given(given_share=st.floats(0.01, 1), paired=shares)
def test_the_share_with_a_partner_solves_its_equation(given_share, paired):
    told = share_with_partner(given_share, paired)
    assert 0 <= told <= 1
    if paired < given_share < FINDABLE_SHARE:
        # FINDABLE_SHARE of the items with a partner and the share `paired` of the others are
        common = told * given_share / FINDABLE_SHARE
        assert FINDABLE_SHARE * common + paired * (1 - common) == pytest.approx(
            given_share, abs=1e-9
        )


def tried(x: Tensor, y: Tensor, pairs: Tensor) -> OrphanTrials:
    return run_trials(x, y, pairs, seed=0, progress=Progress(ignore_step, 16))


def orphaned(x: Tensor, y: Tensor, pairs: Tensor) -> float:
    return tried(x, y, pairs).share


def test_orphans_find_their_partners_twin_and_seldom_others():
    x, y = views(1, 200, 8)
    few = orphaned(x, y, every(200))
    assert few < 0.2
    twins = (
        torch.cat([x, x + 0.01 * normal(5, 200, 8)]),
        torch.cat([y, y + 0.01 * normal(6, 200, 8)]),
    )
    assert orphaned(*twins, every(200)) > few + 0.15


def test_an_orphan_counts_only_if_maps_of_half_of_the_pairs_confirm_its_pair(
    monkeypatch,
):
    x, y = views(1, 120, 4)
    claimed = tried(x, y, every(120)).paired
    assert claimed > 0
    calls = []

    def only_the_first(*arguments: Any, **more: Any) -> Tensor:
        calls.append(arguments)
        partner = learn_and_match(*arguments, **more)
        return partner if len(calls) % 4 == 1 else torch.full_like(partner, -1)

    monkeypatch.setattr(orphans, "learn_and_match", only_the_first)
    assert tried(x, y, every(120)).paired == 0


@pytest.mark.parametrize("pairs", [0, 7])
def test_too_few_pairs_have_no_orphans(pairs):
    assert math.isnan(orphaned(*views(1, 30), every(pairs)))


@given(
    pairs=st.integers(1, 10**6),
    made=st.integers(0, 10**6),
    share=shares,
    given_share=st.floats(0.01, 1),
)
def test_a_doubtful_result_reports_its_lower_bound(pairs, made, share, given_share):
    trials = OrphanTrials(3, made, round(share * made))
    right, likely = (
        trials.right_share(pairs, given_share),
        share_with_partner(given_share, trials.share),
    )
    assert 0 <= right <= likely
    if likely >= DOUBTFUL_SHARE:
        assert right == likely
    elif 0 < trials.share < 0.95 and likely > 0:
        assert right < likely
        assert (
            right
            <= OrphanTrials(3, made * 10, trials.paired * 10).right_share(pairs * 10, given_share)
            + 1e-9
        )  # of more, more is known
