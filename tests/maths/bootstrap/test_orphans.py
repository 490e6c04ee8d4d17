"""Orphans: the share of items without a partner that is paired, and the estimate that follows from
it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap import orphans
from app.maths.bootstrap.orphans import (
    DOUBTFUL_SHARE,
    FINDABLE_SHARE,
    judge_by_orphans,
    share_with_partner,
)
from app.maths.bootstrap.pools import Progress, ignore_step
from tests.maths.bootstrap.clouds import every, normal, views


@given(given_share=st.floats(0.01, 1), paired=st.floats(0, 1))
def test_the_share_with_a_partner_solves_its_equation(given_share, paired):
    told = share_with_partner(given_share, paired)
    assert 0 <= told <= 1
    if paired < given_share < FINDABLE_SHARE:
        # FINDABLE_SHARE of the items with a partner and the share `paired` of the others are
        common = told * given_share / FINDABLE_SHARE
        assert FINDABLE_SHARE * common + paired * (1 - common) == pytest.approx(
            given_share, abs=1e-9
        )


def judged(x: Tensor, y: Tensor, pairs: Tensor) -> tuple[float, float, int]:
    """The share of the pairs with a partner, that of paired orphans, and the trials."""
    progress = Progress(ignore_step, 16)
    return *judge_by_orphans(x, y, pairs, seed=0, progress=progress), progress.done


def test_orphans_find_their_partners_twin_and_a_doubtful_result_has_more_trials_and_a_lower_bound():
    x, y = views(1, 200, 8)
    right, few, trials = judged(x, y, every(200))
    assert few < 0.2
    assert right == share_with_partner(1.0, few) >= DOUBTFUL_SHARE
    assert trials == orphans.USUAL_TRIALS
    twins = (
        torch.cat([x, x + 0.01 * normal(5, 200, 8)]),
        torch.cat([y, y + 0.01 * normal(6, 200, 8)]),
    )
    right, many, trials = judged(*twins, every(200))
    assert many > few + 0.15
    assert right < share_with_partner(0.5, many) < DOUBTFUL_SHARE
    assert trials == orphans.MAX_TRIALS


@pytest.mark.parametrize("pairs", [0, 7])
def test_too_few_pairs_have_no_orphans(pairs):
    right, share, trials = judged(*views(1, 30), every(pairs))
    assert (right, math.isnan(share), trials) == (1.0, True, 0)
