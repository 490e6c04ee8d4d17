"""Independent components, and how they are matched to a first overlap."""

from __future__ import annotations

import pytest
import torch

from app.maths.bootstrap.components import Components, first_overlap, match_components
from app.maths.bootstrap.neighbours import no_beat
from tests.maths.bootstrap.topics import mixing, unit


def components(seed: int, r: int) -> Components:
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(r, r, generator=generator).fill_diagonal_(0) for _ in range(2)]
    return Components(
        torch.randn(r, r, generator=generator), tables, torch.randn(r, 3, generator=generator)
    )


def chosen(of: Components, rows: torch.Tensor) -> Components:
    tables = [table[rows][:, rows] for table in of.tables]
    return Components(of.prototypes[rows], tables, of.signature[rows])


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
