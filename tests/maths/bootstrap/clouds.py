"""Random data of the tests of bootstraps, float32 like pools; and helpers for steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.maths import clouds


def constants(module: object, **values: object) -> object:
    """Return a fixture that gives a module other constants while a module of tests runs."""

    @pytest.fixture(autouse=True, scope="module")
    def changed() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in values.items():
                patch.setattr(module, name, value)
            yield

    return changed


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
