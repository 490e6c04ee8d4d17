"""Pruning and the paper's decoder, compared with naive loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.inverse import farthest_points, irp
from app.maths.translators.translator import apply
from research.definitions import relative
from tests.maths.clouds import normal


def naive_farthest(unit: np.ndarray, delta: float, start: int) -> list[int]:
    """Equations 3 and 4 of the paper, point by point."""
    chosen = [start]
    while len(chosen) < len(unit):
        best, best_distance = -1, -1.0
        for i in range(len(unit)):
            if i not in chosen:
                distance = min(1 - abs(float(unit[i] @ unit[j])) for j in chosen)
                if distance > best_distance:
                    best, best_distance = i, distance
        if best_distance < delta:
            break
        chosen.append(best)
    return chosen


def naive_irp(
    x: np.ndarray, source: np.ndarray, target: np.ndarray, *, delta: float, starts: list[int]
) -> np.ndarray:
    """The paper's translation of each row of x in float64, by vector and by subspace."""
    a, b = fit_space(torch.tensor(source)), fit_space(torch.tensor(target))
    target_unit = b.unit.numpy()
    translated = []
    for cosines in relative(torch.tensor(x), a).numpy():
        total = np.zeros(target.shape[1])
        for start in starts:
            kept = naive_farthest(target_unit, delta, start)
            scattered = np.zeros_like(target_unit)
            scattered[kept] = np.linalg.pinv(target_unit[kept].T, rcond=1e-10)
            total += cosines @ scattered
        mean_vector = total / len(starts)
        translated.append(mean_vector / np.linalg.norm(mean_vector) * b.scale + b.mean.numpy())
    return np.array(translated)


@pytest.mark.parametrize(("k", "dx", "dy"), [(10, 14, 16), (16, 14, 16), (40, 16, 9)])
@pytest.mark.parametrize(("delta", "omega"), [(0.0, 1), (0.6, 4)])
def test_irp_equals_a_naive_float64_loop_over_the_formulas_of_the_paper(k, dx, dy, delta, omega):
    source, target, x = normal(k, k, dx) + 0.5, 3 * normal(k + 1, k, dy) - 1, normal(k + 2, 7, dx)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(5)).tolist()
    expected = naive_irp(
        x.numpy(), source.numpy(), target.numpy(), delta=delta, starts=order[:omega]
    )
    options = methods.resolve("irp", {"delta": delta, "omega": omega, "seed": 5}, anchors=k)
    served = methods.fit("irp", fit_space(source), fit_space(target), options)
    found = apply(served, x).vectors.numpy()
    assert (
        np.linalg.norm(found - expected, axis=1).max()
        < 1e-5 * np.linalg.norm(expected, axis=1).min()
    )


@pytest.mark.parametrize("delta", [0.0, 0.4])
def test_zero_norm_anchors_are_never_chosen_and_nothing_is_chosen_twice(delta):
    half = normal(12, 5, 4)
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    unit = fit_space(torch.cat([half, zeros, -half])).unit
    for start in (0, 4, 8, 12):
        chosen = farthest_points(unit, delta=delta, start=start)
        assert len(set(chosen)) == len(chosen)
        assert not {5, 6, 7} & set(chosen)
    assert not irp(unit, delta=delta, omega=13, seed=1)[5:8].any()
