"""Encoders that never use some dimensions: what is there is only rounding, and no method may divide
by it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality.metrics import unit
from app.maths.translators.methods import Options, fit, resolve
from app.maths.translators.translator import apply
from tests.maths.clouds import normal

#: 100 held-out items of a 40-dimensional source and a 32-dimensional target
HELD = 100


def spaces_with_dead_dimensions(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Items by two encoders, and by the second in the 30 of its 32 dimensions that it uses.

    In one of the others, its numbers are a billionth of the rest; in one, only their rounding.
    """
    meaning = normal(0, 700, 24)
    source = meaning @ normal(1, 24, 40) + 0.1 * normal(2, 700, 40)
    used = meaning @ normal(3, 24, 30) + 0.5 * normal(4, 700, 30) + 1.0
    frame = torch.linalg.qr(normal(5, 31, 30)).Q
    target = torch.cat([used @ frame.T, 1e-9 * normal(6, 700, 1)], dim=1)
    return source.to(dtype).double(), target.to(dtype).double(), used


def cosine_of_held_out(method: str, options: Options, source: Tensor, target: Tensor) -> float:
    x, y = fit_space(source[HELD:]), fit_space(target[HELD:])
    translator = fit(method, x, y, resolve(method, options, anchors=x.size))
    made = apply(translator, source[:HELD].float()).vectors.double()
    mean = target.mean(dim=0)
    return float((unit(made - mean) * unit(target[:HELD] - mean)).sum(dim=1).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("irp", {"delta": 0.0, "omega": 1}),
        ("irp-ridge", {"ridge": 0.0}),
        ("graded", {"ridge": 0.0, "decode_power": 1.0}),
        ("kernel", {"decode_power": 1.0}),
    ],
)
def test_no_method_translates_into_dimensions_that_hold_only_rounding(method, options, dtype):
    """Without a ridge or pruning an inverse has nothing else that would stop it."""
    source, target, used = spaces_with_dead_dimensions(dtype)
    alive = cosine_of_held_out(method, options, source, used)
    assert cosine_of_held_out(method, options, source, target) > alive - 0.01
