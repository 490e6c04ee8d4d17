"""Rows that are anchors are found, and no others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.anchors.known_rows import SAME_COSINE, find_known_rows
from tests.maths.bootstrap.clouds import normal


def by_all_products(anchors: Tensor, vectors: Tensor) -> Tensor:
    a = torch.nn.functional.normalize(anchors.double(), dim=1)
    v = torch.nn.functional.normalize(vectors.double(), dim=1)
    apart = (v[:, None, :] - a[None, :, :]).square().sum(dim=2) / 2
    best = apart.min(dim=1)
    return torch.where(best.values < SAME_COSINE, best.indices, -1)


@pytest.mark.parametrize(("k", "d"), [(1, 2), (7, 3), (300, 48)])
def test_it_finds_what_all_products_find(k: int, d: int) -> None:
    anchors = normal(0, k, d)
    own = torch.randperm(k, generator=torch.Generator().manual_seed(1))[: k // 2 + 1]
    scaled = anchors[own] * torch.linspace(1e-6, 1e6, len(own))[:, None]
    near = anchors[:1] + 0.01 * anchors[:1].norm() * normal(5, 1, d) / normal(5, 1, d).norm()
    rounded = torch.nn.functional.normalize(anchors[own]).half().float()
    vectors = torch.cat([normal(2, 50, d), scaled, rounded, near])
    found = find_known_rows(anchors, vectors)
    assert torch.equal(found[50:], torch.cat([own, own, torch.tensor([-1])]))
    assert torch.equal(found, by_all_products(anchors, vectors))


def test_vectors_without_a_direction_are_no_anchors() -> None:
    anchors = normal(0, 10, 4)
    wrong = torch.tensor([[0.0] * 4, [torch.nan] * 4, [torch.inf, 0, 0, 0]])
    assert find_known_rows(anchors, wrong).tolist() == [-1, -1, -1]
    assert find_known_rows(anchors, wrong[:0]).tolist() == []
