"""Similarity of two spaces against whole relative vectors, and its invariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.maths.geometry.space import fit_space
from app.maths.quality.evaluation import FEWEST_FOR_CKA, relative_similarity
from app.maths.quality.metrics import cka
from research.definitions import relative
from tests.maths.clouds import cos, normal

seeds = st.integers(0, 2**31)


def naive(
    first: np.ndarray, second: np.ndarray, k: int, of_anchors: bool
) -> tuple[list[float], list[float]]:
    """Cosines and Jaccards of two tables of relative vectors (n, k'), row by row."""

    def nearest(rows: np.ndarray, i: int) -> set[int]:
        others = [j for j in range(len(rows)) if j != i]
        return set(sorted(others, key=lambda j: -cos(rows[i], rows[j]))[:k])

    cosines, jaccards = [], []
    for i in range(len(first)):
        kept = [j for j in range(first.shape[1]) if not (of_anchors and j == i)]
        cosines.append(cos(first[i, kept], second[i, kept]))
        ours, truth = nearest(first, i), nearest(second, i)
        jaccards.append(len(ours & truth) / len(ours | truth))
    return cosines, jaccards


@given(seed=seeds, anchors=st.integers(4, 20), n=st.integers(5, 15))
def test_of_items_it_equals_loops_over_whole_relative_vectors(seed, anchors, n):
    a, b = normal(seed, anchors, 6), normal(seed + 1, anchors, 9)
    x, y = normal(seed + 2, n, 6), normal(seed + 3, n, 9)
    source, target = fit_space(a), fit_space(b)
    found = relative_similarity(source, target, x, y, 3)
    cosines, jaccards = naive(relative(x, source).numpy(), relative(y, target).numpy(), 3, False)
    np.testing.assert_allclose(found.cosine.numpy(), cosines, atol=1e-10)
    np.testing.assert_allclose(found.jaccard.numpy(), jaccards, atol=1e-10)
    assert found.cka == cka(x, y)


@given(seed=seeds, anchors=st.integers(6, 20))
def test_of_anchors_each_ones_similarity_to_itself_is_left_out_of_its_cosine(seed, anchors):
    a, b = normal(seed, anchors, 6), normal(seed + 1, anchors, 4)
    source, target = fit_space(a), fit_space(b)
    found = relative_similarity(source, target, a, b, 3, of_anchors=True)
    cosines, jaccards = naive(relative(a, source).numpy(), relative(b, target).numpy(), 3, True)
    np.testing.assert_allclose(found.cosine.numpy(), cosines, atol=1e-9)
    np.testing.assert_allclose(found.jaccard.numpy(), jaccards, atol=1e-10)


def test_a_vector_at_its_anchors_mean_has_similarity_0():
    a, b = normal(5, 10, 4), normal(6, 10, 3)
    x, y = normal(7, 6, 4), normal(8, 6, 3)
    source, target = fit_space(a), fit_space(b)
    x[2] = source.mean
    found = relative_similarity(source, target, x, y, 2)
    assert float(found.cosine[2]) == 0.0
    assert bool(found.cosine.isfinite().all())
    assert float(found.cosine[[0, 1, 3, 4, 5]].abs().min()) > 0


@pytest.mark.parametrize("n", [2, 3, FEWEST_FOR_CKA])
def test_the_smallest_sets_have_numbers_and_from_four_items_on_a_cka(n):
    a, b = normal(9, n, 5), normal(10, n, 4)
    found = relative_similarity(fit_space(a), fit_space(b), a, b, of_anchors=True)
    assert (found.k, found.cosine.shape) == (n - 1, (n,))
    assert bool((found.jaccard == 1).all())  # all the others are neighbours
    assert (found.cka is None) == (n < FEWEST_FOR_CKA)
