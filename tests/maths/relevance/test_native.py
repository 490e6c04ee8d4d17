"""One score of old, translated and native scores."""

from __future__ import annotations

import pytest
import torch

from app.maths.relevance.native import blend
from tests.maths.clouds import normal

NAN = float("nan")


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def z(values: torch.Tensor) -> torch.Tensor:
    return (values - values.mean()) / values.std(correction=0)


def test_native_scores_lead_and_predict_those_that_miss() -> None:
    """On a line, a score that is not known is where the line has it."""
    guess = torch.arange(40, dtype=torch.float64) / 100
    native = 0.1 + 3.0 * guess
    seen = native.clone()
    seen[::3] = NAN
    found = blend(seen, guess)
    assert torch.equal(found[~seen.isnan()], native[~seen.isnan()])
    assert torch.allclose(found[seen.isnan()], native[seen.isnan()], atol=0.1)


def test_where_all_are_known_the_score_is_the_definition() -> None:
    native, guess, old = normal(1, 30), normal(2, 30), normal(3, 30)
    for weight in (0.0, 0.3, 1.0):
        found = blend(native, guess, old, weight=weight, trust=0.4)
        assert torch.allclose(found, weight * z(native) + (1 - weight) * z(old))


@pytest.mark.parametrize("trust", [0.1, 0.5, 1.0])
def test_without_native_scores_translations_count_as_much_as_they_are_trusted(trust: float) -> None:
    guess, old = normal(2, 30), normal(3, 30)
    none = torch.full_like(guess, NAN)
    expected = 0.6 * trust * z(guess) + 0.4 * z(old)
    assert torch.allclose(blend(none, guess, old, weight=0.6, trust=trust), expected)
    assert torch.equal(blend(none, guess), guess)


def test_a_text_more_finds_more_on_average() -> None:
    """Ten best of 60 candidates by a new encoder that is right, from guesses that are not."""
    found = []
    for count in (0, 1, 2, 5, 20, 60):
        hits = 0
        for query in range(200):
            native = normal(query, 60)
            guess = native + 1.5 * normal(1_000 + query, 60)
            seen = torch.full_like(native, NAN)
            first = guess.topk(count).indices
            seen[first] = native[first]
            best = blend(seen, guess, guess, weight=0.8, trust=0.5).topk(10).indices
            hits += len(set(best.tolist()) & set(native.topk(10).indices.tolist()))
        found.append(hits)
    assert found == sorted(found)
    assert found[-1] > 1.5 * found[0]


def test_equal_scores_and_no_candidates() -> None:
    equal = doubles(0.5, 0.5)
    assert torch.equal(blend(doubles(0.3, 0.3), equal, equal, weight=0.5), doubles(0.0, 0.0))
    assert torch.equal(blend(doubles(0.3, NAN), equal), doubles(0.3, 0.3))
    empty = torch.zeros(0, dtype=torch.float64)
    assert len(blend(empty, empty)) == len(blend(empty, empty, empty)) == 0
