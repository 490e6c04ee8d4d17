"""Encoders that never use some dimensions: what is there is only rounding, and no method may divide
by it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.geometry.space import fit_space, relative_rounding
from app.maths.quality.metrics import unit
from app.maths.translators.methods import METHODS, fit, resolve
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


def cosine_of_held_out(method: str, source: Tensor, target: Tensor) -> float:
    x, y = fit_space(source[HELD:]), fit_space(target[HELD:])
    translator = fit(method, x, y, resolve(method, {}, anchors=x.size))
    made = apply(translator, source[:HELD].float()).vectors.double()
    mean = target.mean(dim=0)
    return float((unit(made - mean) * unit(target[:HELD] - mean)).sum(dim=1).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("method", list(METHODS))
def test_no_method_translates_into_dimensions_that_hold_only_rounding(method, dtype):
    source, target, used = spaces_with_dead_dimensions(dtype)
    alive = cosine_of_held_out(method, source, used)
    assert cosine_of_held_out(method, source, target) > alive - 0.02


@pytest.mark.parametrize(("k", "d"), [(30, 12), (12, 30), (300, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_noise_is_above_what_rounding_does_and_within_twenty_times_of_it(k, d, dtype, offset):
    exact = normal(k, k, d) + offset
    rounded = fit_space(exact.to(dtype).double())
    change = float(torch.linalg.matrix_norm(rounded.unit - fit_space(exact).unit, 2))
    if dtype == torch.float32:  # encoders compute in float32 too, and lose more there
        change *= 8
    assert change < rounded.noise < 20 * change


def test_the_rounding_is_that_of_the_least_precise_type_that_holds_all_numbers():
    numbers = normal(0, 50, 8)
    found = [
        relative_rounding(numbers.to(dtype).double())
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    ]
    assert found[0] > found[1] > found[2] > found[3] == 0.0
    mixed = numbers.to(torch.float16).double()
    mixed[-1] = numbers[-1].float().double()
    assert relative_rounding(mixed) == found[2]
