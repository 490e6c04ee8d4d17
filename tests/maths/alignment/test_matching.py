"""Components matched by how they relate."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from app.maths.alignment.components import (
    SIGNATURE_WEIGHT,
    Components,
    _signature_scores,
    match_components,
)


def components(seed: int, r: int) -> Components:
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(r, r, generator=generator).fill_diagonal_(0) for _ in range(2)]
    return Components(
        torch.randn(r, r, generator=generator), tables, torch.randn(r, 3, generator=generator)
    )


def chosen(of: Components, rows: torch.Tensor) -> Components:
    tables = [table[rows][:, rows] for table in of.tables]
    return Components(of.prototypes[rows], tables, of.signature[rows])


@pytest.mark.parametrize("r", [2, 9, 30])
def test_an_order_is_found_again(r):
    x, order = components(1, r), torch.randperm(r, generator=torch.Generator().manual_seed(2))
    found = match_components(x, chosen(x, order), starts=5, seed=0)
    assert order[found.b].tolist() == found.a.tolist() == list(range(r))


def test_without_signatures_it_is_the_tables_that_decide():
    x, order = components(1, 12), torch.randperm(12, generator=torch.Generator().manual_seed(2))
    blind = [Components(c.prototypes, c.tables, torch.zeros(12, 3)) for c in (x, chosen(x, order))]
    found = match_components(*blind, starts=30, seed=0)
    assert order[found.b].tolist() == list(range(12))


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
    assert found.value == pytest.approx(value(found.b) / 25, rel=1e-5)


def test_sides_of_different_sizes_are_matched_either_way():
    x, part = components(1, 14), torch.tensor([3, 11, 0, 7, 9, 2, 13, 5, 1])
    few = chosen(x, part)
    found = match_components(few, x, starts=20, seed=0)
    assert found.b.tolist() == part.tolist()
    back = match_components(x, few, starts=20, seed=0)
    assert (back.a.tolist(), back.b.tolist()) == (found.b.tolist(), found.a.tolist())
    assert back.value == found.value


def test_components_that_relate_alike_weigh_more_than_others():
    x = components(1, 20)
    y = chosen(x, torch.arange(20))
    y.tables[0][0], y.tables[1][0] = components(9, 20).tables[0][0], components(9, 20).tables[1][0]
    found = match_components(x, y, starts=5, seed=0)
    assert found.b.tolist() == list(range(20))
    assert found.weight[0] < found.weight[1:].min()
