"""The order of candidates of which some have a native score."""

from __future__ import annotations

import torch

from app.maths.relevance.native import order_block

NAN = float("nan")


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_native_scores_order_the_block_and_the_rest_follows() -> None:
    base = doubles(0.9, 0.8, 0.7, 0.95, 0.1)
    native = doubles(0.2, 0.6, NAN, 0.4, NAN)
    order, scores = order_block(base, native, 3)
    assert order.tolist() == [1, 3, 0, 2, 4]
    assert torch.equal(scores, doubles(0.6, 0.4, 0.2, 0.2, 0.1))


def test_the_block_may_have_any_candidates() -> None:
    native = doubles(NAN, 0.1, NAN, 0.5)
    block = torch.tensor([False, True, False, True])
    order, _ = order_block(doubles(0.9, 0.8, 0.7, 0.6), native, block)
    assert order.tolist() == [3, 1, 0, 2]


def test_a_candidate_without_a_native_score_gets_the_predicted_one() -> None:
    base = doubles(1.0, 0.5, 0.0)
    order, scores = order_block(base, doubles(0.8, NAN, 0.2), 3)
    assert order.tolist() == [0, 1, 2]
    assert torch.allclose(scores, doubles(0.8, 0.5, 0.2))


def test_without_native_scores_the_order_stays() -> None:
    base = doubles(0.1, 0.3, 0.2)
    order, scores = order_block(base, doubles(NAN, NAN, NAN), 2)
    assert order.tolist() == [1, 2, 0]
    assert torch.equal(scores, doubles(0.3, 0.2, 0.1))


def test_old_scores_count_by_their_weight() -> None:
    base = doubles(0.9, 0.8, 0.7, 0.6)
    native = doubles(0.1, 0.2, 0.3, NAN)
    for weight, expected in ((0.0, [0, 1, 2, 3]), (1.0, [2, 1, 0, 3])):
        order, scores = order_block(base, native, 3, base, weight)
        assert order.tolist() == expected
        assert bool((scores.diff() <= 0).all())


def test_equal_scores_and_no_candidates() -> None:
    order, scores = order_block(doubles(0.5, 0.5), doubles(0.3, 0.3), 2, doubles(0.5, 0.5))
    assert order.tolist() == [0, 1]
    assert torch.equal(scores, doubles(0.0, 0.0))
    empty = torch.zeros(0, dtype=torch.float64)
    assert [len(each) for each in order_block(empty, empty, 0)] == [0, 0]
