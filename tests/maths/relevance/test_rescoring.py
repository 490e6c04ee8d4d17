"""Scores of candidates agree with one query at a time, and with numpy."""

import numpy as np
import pytest
import torch

from app.maths.relevance import rescoring

COUNTS = [3, 0, 5, 1]


@pytest.fixture
def cloud():
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(len(COUNTS), 7, generator=generator),
        torch.randn(sum(COUNTS), 7, generator=generator),
    )


def test_cosines_are_those_of_each_query_with_its_own_candidates(cloud):
    queries, candidates = cloud
    owners = np.repeat(np.arange(len(COUNTS)), COUNTS)
    q, c = queries.double().numpy()[owners], candidates.double().numpy()
    expected = (q * c).sum(axis=1) / np.linalg.norm(q, axis=1) / np.linalg.norm(c, axis=1)
    np.testing.assert_allclose(rescoring.cosines(queries, candidates, COUNTS), expected, atol=1e-6)


@pytest.mark.parametrize("counts", [[9], [3, 3, 3], [4, 5], [0, 9]])
def test_equal_and_unequal_numbers_of_candidates_have_the_same_scores(cloud, counts):
    queries, candidates = cloud[0][: len(counts)], cloud[1]
    together = rescoring.cosines(queries, candidates, counts)
    parts = torch.split(candidates, counts)
    apart = [
        rescoring.cosines(query[None], part, [len(part)])
        for query, part in zip(queries, parts, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(apart), atol=1e-6, rtol=0)


def test_owners_are_in_the_order_of_the_candidates():
    assert rescoring.owners_of(COUNTS).tolist() == [0, 0, 0, 2, 2, 2, 2, 2, 3]
    assert rescoring.owners_of([0]).tolist() == []


def test_lengths_do_not_matter_unless_they_vanish(cloud):
    queries, candidates = cloud
    factors = torch.logspace(-12, 12, len(candidates))[:, None]
    scaled = rescoring.cosines(queries * 1e10, candidates * factors, COUNTS)
    expected = rescoring.cosines(queries, candidates, COUNTS)
    torch.testing.assert_close(scaled, expected, atol=1e-5, rtol=0)
    zero = rescoring.cosines(torch.zeros(1, 7), candidates, [len(candidates)])
    assert torch.equal(zero, torch.zeros(len(candidates), dtype=torch.float64))
    assert float(rescoring.cosines(queries[:1], torch.zeros(1, 7), [1])) == 0


def test_ranks_are_stable_limited_and_of_each_query_alone():
    scores = torch.tensor([0.1, 0.9, 0.1, 0.5, 0.7], dtype=torch.float64)
    ranked = [each.tolist() for each in rescoring.rank(scores, [3, 0, 2])]
    assert ranked == [[1, 0, 2], [], [1, 0]]
    assert [each.tolist() for each in rescoring.rank(scores, [3, 0, 2], limit=1)] == [[1], [], [1]]
