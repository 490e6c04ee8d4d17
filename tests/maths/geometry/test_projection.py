"""Points of native and translated vectors in one plane."""

from __future__ import annotations

import numpy as np
import torch

from app.maths.geometry.projection import principal_axes, project_pairs
from app.maths.geometry.space import fit_space


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_points_are_those_of_a_naive_pca_of_the_directions() -> None:
    native = _draw(40, 6) * torch.tensor([5.0, 3, 1, 1, 1, 1]) + 7
    translated = native + 0.3 * _draw(40, 6, seed=1)
    plane = project_pairs(fit_space(native), native, translated, held_out=True)

    raw, moved = native.numpy(), translated.numpy()
    centred = raw - raw.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(unit.T @ unit)
    axes = vectors[:, ::-1][:, :2].T
    axes = axes * np.sign([axis[np.abs(axis).argmax()] for axis in axes])[:, None]
    moved = moved - raw.mean(axis=0)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(plane.native, unit @ axes.T, atol=1e-6)
    np.testing.assert_allclose(plane.translated, moved @ axes.T, atol=1e-6)
    np.testing.assert_allclose(plane.errors, 1 - (unit * moved).sum(axis=1), atol=1e-6)
    assert np.isclose(plane.explained, values[-2:].sum() / values.sum())


def test_a_vector_at_the_mean_is_the_origin_with_error_1() -> None:
    native = _draw(10, 3)
    space = fit_space(native)
    plane = project_pairs(space, native[:1], space.mean[None], held_out=True)
    assert plane.translated.tolist() == [[0, 0]]
    assert plane.errors.tolist() == [1]


def test_anchors_on_a_line_have_one_axis() -> None:
    native = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None] * torch.tensor([[3.0, 4.0]])
    axes, explained = principal_axes(fit_space(native))
    np.testing.assert_allclose(axes, [[0.6, 0.8], [0, 0]], atol=1e-9)
    assert np.isclose(explained, 1)
