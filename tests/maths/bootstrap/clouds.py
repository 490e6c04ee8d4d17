"""Random data of the tests of bootstraps, float32 like pools; and helpers for steps."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.maths import clouds


def normal(seed: int, *shape: int) -> Tensor:
    return clouds.normal(seed, *shape, dtype=torch.float32)


def unit(seed: int, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(normal(seed, *shape))


def every(n: int) -> Tensor:
    """The pairs (0, 0), (1, 1) and so on."""
    return torch.arange(n)[:, None].repeat(1, 2)


def views(seed: int, n: int, d: int = 12, *, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """A cloud, and a noisy rotation of it in the same order."""
    x = normal(seed, n, d)
    return x, (x + noise * normal(seed + 1, n, d)) @ torch.linalg.qr(normal(seed + 2, d, d)).Q
