"""Weights are chosen by held-out anchors of the store and role, so that no anchor does harm."""

from __future__ import annotations

import pytest
import torch

from app.maths.anchors import foreign as foreign_anchors
from app.maths.anchors.foreign import (
    FEWEST_OF_ROLE,
    FOREIGN_TOTALS,
    MOST_FOREIGN_WEIGHT,
    choose_weights,
)
from tests.maths.clouds import normal

DIM = 16
MAP, OTHER_MAP = normal(0, DIM, DIM), normal(1, DIM, DIM)


def items(rows: int, seed: int, matrix=MAP):
    source = normal(seed, rows, DIM)
    return source, source @ matrix + 0.1 * normal(seed + 1, rows, DIM)


def mixed(own: int, others: int, matrix):
    x, y = items(own, 10)
    u, v = items(others, 20, matrix)
    return torch.cat([x, u]), torch.cat([y, v]), torch.arange(own + others) >= own


def test_foreign_anchors_with_another_map_are_left_out():
    source, target, foreign = mixed(60, 200, OTHER_MAP)
    found = choose_weights(source, target, foreign=foreign)
    assert found.foreign_level == 0.0
    assert torch.equal(found.weights, (~foreign).double())
    assert torch.equal(found.counted, ~foreign)


def test_foreign_anchors_with_the_same_map_help_few_anchors_of_the_store():
    source, target, foreign = mixed(14, 400, MAP)
    found = choose_weights(source, target, foreign=foreign)
    assert found.foreign_level in {total / 400 for total in FOREIGN_TOTALS[1:]}
    assert found.weights[foreign].unique().tolist() == [found.foreign_level]
    assert (found.weights[~foreign] == 1).all()


def test_a_foreign_anchor_never_counts_as_much_as_one_of_the_store():
    source, target, foreign = mixed(14, 20, MAP)
    found = choose_weights(source, target, foreign=foreign)
    assert found.foreign_level == MOST_FOREIGN_WEIGHT


@pytest.mark.parametrize("count", [0, FEWEST_OF_ROLE - 1])
def test_few_anchors_of_a_role_decide_nothing(count):
    source, target = items(30, 30)
    assert choose_weights(source, target, of_role=torch.arange(30) < count) is None


def test_without_enough_anchors_of_the_store_nothing_is_weighed():
    source, target, foreign = mixed(9, 30, MAP)
    assert choose_weights(source, target, foreign=foreign) is None
    assert choose_weights(source, target) is None


def test_of_very_many_anchors_a_choice_reads_some(monkeypatch):
    monkeypatch.setattr(foreign_anchors, "MOST_WEIGHED_ANCHORS", 50)
    source, target, foreign = mixed(60, 200, OTHER_MAP)
    assert choose_weights(source, target, foreign=foreign).foreign_level == 0.0
