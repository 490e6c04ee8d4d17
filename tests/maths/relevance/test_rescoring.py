"""Cosines of candidates, for queries with any number of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from app.maths.relevance.rescoring import cosines, owners_of
from tests.maths.clouds import normal

COUNTS = [3, 0, 5, 1]


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
