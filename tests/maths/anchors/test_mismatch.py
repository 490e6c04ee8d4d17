"""Related encoders are told from unrelated ones."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
import torch
from torch import Tensor

from app.demo.pack import load_pack
from app.maths.anchors import mismatch
from app.maths.anchors.mismatch import judge_relatedness, permutation_score
from tests.maths.clouds import normal

PACK = load_pack()
PAIRS = list(combinations(sorted(PACK.vectors), 2))


def real(first: str, second: str, *, size: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors of `size` sentences by two real encoders."""
    rows = torch.randperm(len(PACK.labels), generator=torch.Generator().manual_seed(seed))[:size]
    return PACK.vectors[first][rows], PACK.vectors[second][rows]


def test_the_score_is_the_sum_over_its_spread_under_all_permutations():
    for dim in (3, 9):
        p, y = normal(1, 6, dim), normal(2, 6, dim)
        sums = torch.stack([(p * y[list(order)]).sum() for order in permutations(range(6))])
        expected = ((p * y).sum() - sums.mean()) / sums.std(correction=0)
        assert permutation_score(p, y) == pytest.approx(float(expected))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_rows_are_related_and_shuffled_or_shifted_ones_are_not(pair):
    x, y = real(*pair)
    assert judge_relatedness(x, y) == "related"
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert judge_relatedness(x, y[order]) == "unrelated"
    assert judge_relatedness(x, y.roll(1, dims=0)) == "unrelated"


def test_few_rows_and_a_side_of_one_repeated_vector_are_unclear():
    x, y = real("minilm6-384", "static-256", size=mismatch.FEWEST_JUDGED_ROWS)
    assert judge_relatedness(x, y) == "related"
    assert judge_relatedness(x[:-1], y[:-1]) == "unclear"
    assert judge_relatedness(torch.ones(50, 4), normal(7, 50, 3)) == "unclear"


def test_rows_at_the_mean_are_not_judged():
    x = normal(5, 10, 20)
    y = x @ normal(6, 20, 15)
    x, y = (torch.cat([torch.zeros(1, each.shape[1]), each, -each]) for each in (x, y))
    assert judge_relatedness(x, y) == "related"
