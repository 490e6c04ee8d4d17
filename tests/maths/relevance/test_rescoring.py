"""Scores of candidates: cosines, their order, and fusion, for queries with any candidates."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from torch import Tensor

from app.maths.relevance.rescoring import cosines, fuse, owners_of, rank
from tests.maths.clouds import normal

COUNTS = [3, 0, 5, 1]

#: queries with three candidates, none, five and one, in any order
OWNERS = torch.tensor([2, 0, 2, 3, 0, 2, 2, 0, 2])


@pytest.fixture
def cloud() -> tuple[Tensor, Tensor]:
    return normal(1, len(COUNTS), 7).float(), normal(2, sum(COUNTS), 7).float()


@pytest.mark.parametrize("counts", [COUNTS, [9], [3, 3, 3]])
def test_cosines_are_those_of_each_query_with_its_own_candidates(cloud, counts):
    queries, candidates = cloud[0][: len(counts)], cloud[1]
    owners = owners_of(counts)
    assert owners.tolist() == np.repeat(np.arange(len(counts)), counts).tolist()
    expected = torch.cosine_similarity(queries[owners].double(), candidates.double())
    torch.testing.assert_close(cosines(queries, candidates, counts), expected, atol=1e-6, rtol=0)


def test_lengths_do_not_matter_unless_they_vanish(cloud):
    queries, candidates = cloud
    factors = torch.logspace(-12, 12, len(candidates))[:, None]
    scaled = cosines(queries * 1e10, candidates * factors, COUNTS)
    expected = cosines(queries, candidates, COUNTS)
    torch.testing.assert_close(scaled, expected, atol=1e-5, rtol=0)
    assert not cosines(torch.zeros(1, 7), candidates, [len(candidates)]).any()
    assert not cosines(queries[:1], torch.zeros(1, 7), [1]).any()


def test_ranks_are_stable_limited_and_of_each_query_alone():
    scores = torch.tensor([0.1, 0.9, 0.1, 0.5, 0.7], dtype=torch.float64)
    assert [each.tolist() for each in rank(scores, [3, 0, 2])] == [[1, 0, 2], [], [1, 0]]
    assert [each.tolist() for each in rank(scores, [3, 0, 2], limit=1)] == [[1], [], [1]]


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_fused_scores_are_the_definition_of_each_query_alone(weight):
    new, old = normal(1, len(OWNERS)), normal(2, len(OWNERS)) * 3 + 1
    [fused] = fuse(new, old, OWNERS, [weight])
    for query in range(4):
        rows = (query == OWNERS).nonzero().flatten().tolist()
        for row in rows:
            expected = 0.0
            for scores, share in ((new, weight), (old, 1 - weight)):
                values = scores[rows].tolist()
                if len(values) > 1:
                    mean, spread = statistics.fmean(values), statistics.pstdev(values)
                    expected += share * (float(scores[row]) - mean) / spread
            assert float(fused[row]) == pytest.approx(expected, abs=1e-12)
