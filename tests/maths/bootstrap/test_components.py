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
from tests.maths.bootstrap.topics import mixing, orthonormal, sources, unit


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


def test_a_rotation_of_the_pool_rotates_the_prototypes_and_keeps_how_they_relate():
    x, turn = skewed(4_000, 5) @ mixing(1, 5, 6), orthonormal(2, 6, 9)
    plain = independent_components(x, 5, seed=0)
    turned = independent_components(x @ turn, 5, seed=5)
    same = (plain.prototypes @ turn @ turned.prototypes.T).argmax(dim=1)
    assert torch.allclose(turned.prototypes[same], plain.prototypes @ turn, atol=0.02)
    for one, other in zip(plain.tables, turned.tables, strict=True):
        assert torch.allclose(other[same][:, same], one, atol=0.1)
    assert torch.allclose(turned.signature[same], plain.signature, atol=0.1)


def test_directions_without_variance_are_no_components():
    flat = torch.cat([sources(0, 500, 3), torch.zeros(500, 4)], dim=1)
    assert independent_components(unit(flat), 7, seed=0).prototypes.shape == (3, 7)
    assert independent_components(unit(flat), 2, seed=0).prototypes.shape == (2, 7)


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


def test_components_that_relate_alike_weigh_more_than_others():
    x = components(1, 20)
    y = chosen(x, torch.arange(20))
    y.tables[0][0], y.tables[1][0] = components(9, 20).tables[0][0], components(9, 20).tables[1][0]
    found = match_components(x, y, starts=5, seed=0)
    assert found.b.tolist() == list(range(20))
    assert found.weight[0] < found.weight[1:].min()


@pytest.mark.parametrize("n", [2, 100])
def test_pools_too_small_for_components_have_a_first_overlap_all_the_same(n):
    x, y = unit(mixing(1, n, 4)), unit(mixing(2, n, 3))
    for some in (y, torch.zeros(n, 3), y[:1].repeat(n, 1)):
        assert bool(first_overlap(x, some, seed=0, beat=no_beat).isfinite().all())
