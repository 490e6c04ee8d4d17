"""Independent components, and how they are matched to a first overlap."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from app.maths.bootstrap.components import (
    SIGNATURE_WEIGHT,
    Components,
    _signature_scores,
    first_overlap,
    independent_components,
    match_components,
)
from app.maths.bootstrap.neighbours import no_beat
from tests.maths.bootstrap.topics import mixing, unit


def skewed(n: int, r: int) -> torch.Tensor:
    """(n, r) centred exponential variables."""
    drawn = torch.rand(n, r, generator=torch.Generator().manual_seed(0)).log().neg()
    return drawn - drawn.mean(dim=0)


def test_they_are_the_sources_that_were_mixed():
    mixed = mixing(1, 5, 6)
    found = independent_components(skewed(4_000, 5) @ mixed, 5, seed=3)
    cosines = found.prototypes @ normalize(mixed).T
    # The signs are those of the skewness: no source has its opposite.
    assert float(cosines.max(dim=0).values.min()) > 0.9
    assert len(cosines.argmax(dim=0).unique()) == 5


def components(seed: int, r: int) -> Components:
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(r, r, generator=generator).fill_diagonal_(0) for _ in range(2)]
    return Components(
        torch.randn(r, r, generator=generator), tables, torch.randn(r, 3, generator=generator)
    )


def chosen(of: Components, rows: torch.Tensor) -> Components:
    tables = [table[rows][:, rows] for table in of.tables]
    return Components(of.prototypes[rows], tables, of.signature[rows])


def test_it_is_the_best_of_all_permutations():
    x, noise = components(3, 5), components(4, 5)
    y = chosen(x, torch.tensor([2, 0, 4, 1, 3]))
    for table, more in zip(y.tables, noise.tables, strict=True):
        table += 0.3 * more
    linear = SIGNATURE_WEIGHT * 2 * _signature_scores(x, y)

    def value(order):
        index = np.array(order)
        tables = sum(
            float((a.numpy() * b.numpy()[np.ix_(index, index)]).sum())
            for a, b in zip(x.tables, y.tables, strict=True)
        )
        return tables + linear[np.arange(5), index].sum()

    found = match_components(x, y, starts=40, seed=0)
    assert value(found.b) == pytest.approx(max(map(value, permutations(range(5)))), rel=1e-5)


def test_sides_of_different_sizes_are_matched_either_way():
    x, part = components(1, 14), torch.tensor([3, 11, 0, 7, 9, 2, 13, 5, 1])
    few = chosen(x, part)
    found = match_components(few, x, starts=20, seed=0)
    assert found.b.tolist() == part.tolist()
    back = match_components(x, few, starts=20, seed=0)
    assert (back.a.tolist(), back.b.tolist()) == (found.b.tolist(), found.a.tolist())


@pytest.mark.parametrize("n", [2, 100])
def test_pools_too_small_for_components_have_a_first_overlap_all_the_same(n):
    x, y = unit(mixing(1, n, 4)), unit(mixing(2, n, 3))
    for some in (y, torch.zeros(n, 3), y[:1].repeat(n, 1)):
        assert bool(first_overlap(x, some, seed=0, beat=no_beat).isfinite().all())
