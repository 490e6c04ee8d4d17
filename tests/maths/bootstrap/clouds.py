"""Random data of the tests of bootstraps, float32 like pools; and helpers for steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from app.maths.bootstrap.pools import Pools, State, Step, fit_pools
from tests.maths import clouds


def normal(seed: int, *shape: int) -> Tensor:
    return clouds.normal(seed, *shape, dtype=torch.float32)


def unit(seed: int, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(normal(seed, *shape))


def rotation(seed: int, d: int) -> Tensor:
    return torch.linalg.qr(normal(seed, d, d).double()).Q.float()


def order(seed: int, n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def every(n: int) -> Tensor:
    """The pairs (0, 0), (1, 1) and so on."""
    return torch.arange(n)[:, None].repeat(1, 2)


def views(seed: int, n: int, d: int = 12, *, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """A cloud, and a noisy rotation of it in the same order."""
    x = normal(seed, n, d)
    return x, (x + noise * normal(seed + 1, n, d)) @ torch.linalg.qr(normal(seed + 2, d, d)).Q


def rotated(count: int) -> tuple[Pools, list[int]]:
    """Items and a reordered rotation of them; partner[i] is the row of item i in the second."""
    source, partner = normal(5, count, 16), order(7, count)
    target = torch.empty(count, 16)
    target[partner] = 3 * source @ torch.linalg.qr(normal(6, 16, 16)).Q + 2
    return fit_pools(source, target), partner.tolist()


def states(steps: Iterable[Step]) -> list[State]:
    """The checkpoints among the steps."""
    return [step.state for step in steps if step.state is not None]


def interrupt(*_: object) -> None:
    """A beat or listener that ends the work."""
    raise KeyboardInterrupt
