"""Pools whose directions can be told apart: skewed independent sources, mixed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

SOURCES = 8


def sources(seed: int, n: int, r: int = SOURCES) -> Tensor:
    """(n, r) topics: an item has each with another probability, and then an exponential amount."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(n, r, generator=generator) < torch.logspace(-1.5, -0.3, r)
    drawn = torch.rand(n, r, generator=generator).log().neg() * present
    return (drawn - drawn.mean(dim=0)) / drawn.std(dim=0)


def mixing(seed: int, r: int, d: int) -> Tensor:
    """(r, d) rows that are not orthogonal."""
    return torch.randn(r, d, generator=torch.Generator().manual_seed(seed))


def orthonormal(seed: int, rows: int, columns: int) -> Tensor:
    """(rows, columns) with orthonormal rows; rows <= columns."""
    return torch.linalg.qr(mixing(seed, columns, rows)).Q.T


def unit(rows: Tensor) -> Tensor:
    return normalize(rows - rows.mean(dim=0))


def two_pools(n: int, *, noise: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Disjoint pools x (n, 12) and y (n, 10), and the map (12, 10) between their spaces."""
    mixed, into_x, into_y = (
        mixing(1, SOURCES, SOURCES),
        orthonormal(2, 8, 12),
        orthonormal(3, 8, 10),
    )
    x, y = (sources(seed + side, n) @ mixed for side in (10, 20))
    torch.manual_seed(seed)
    x, y = (
        each @ into + noise * torch.randn(n, into.shape[1])
        for each, into in ((x, into_x), (y, into_y))
    )
    return unit(x), unit(y), into_x.T @ into_y
