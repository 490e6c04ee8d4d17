"""The kernel: its formula, its landmarks, its ridge, and the relative vectors that it decodes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.geometry.spectrum import RIDGES
from app.maths.translators import kernel, linear
from app.maths.translators.decoder import decode
from app.maths.translators.kernel import fit_kernel, hold_out_folds
from app.maths.translators.methods import fit, fit_decoder, resolve
from app.maths.translators.translator import apply
from research.definitions import relative
from tests.maths.clouds import normal


def curved(seed: int, k: int, dx: int, dy: int, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Anchors whose targets are no linear function of the sources."""
    source = normal(seed, k, dx)
    hidden = (source @ normal(90, dx, 30) / dx**0.5).tanh()
    return source + 1, hidden @ normal(91, 30, dy) + noise * normal(seed + 1, k, dy)


def plain(cosines: Tensor) -> Tensor:
    return cosines.exp() - 1.0


@pytest.mark.parametrize(("k", "dx", "dy"), [(12, 7, 5), (12, 5, 30), (40, 6, 8)])
@pytest.mark.parametrize(("ridge", "power"), [(0.01, 0.0), (1.0, 0.0), (0.1, 0.25)])
def test_with_all_anchors_as_landmarks_it_is_the_formula(k, dx, dy, ridge, power):
    source, target = (fit_space(each) for each in curved(0, k, dx, dy))
    table = plain(source.unit @ source.unit.T) + ridge * torch.eye(k, dtype=torch.float64)
    whitened = linear.projector(target, power=power, ridge=None).T
    exact = torch.linalg.solve(table, whitened)
    vectors = normal(3, 6, dx)
    product = plain(relative(vectors, source)) @ exact
    expected = target.scale * product / product.norm(dim=1, keepdim=True) + target.mean
    options = resolve("kernel", {"ridge": ridge, "decode_power": power}, anchors=k)
    served = apply(fit("kernel", source, target, options), vectors).vectors
    torch.testing.assert_close(served.double(), expected, rtol=0, atol=1e-3 * target.scale)


def test_with_fewer_landmarks_it_is_penalised_least_squares(monkeypatch):
    monkeypatch.setattr(kernel, "LANDMARKS", 20)
    monkeypatch.setattr(kernel, "ANCHORS_PER_STEP", 7)
    source, target = (fit_space(each) for each in curved(5, 60, 9, 7))
    found = fit_kernel(source, target, ridge=0.3, decode_power=0.0)
    assert len(found.rows) == 20
    landmarks = source.unit[found.rows]
    torch.testing.assert_close(found.landmarks, landmarks)
    wide, small = plain(source.unit @ landmarks.T), plain(landmarks @ landmarks.T)
    exact = torch.linalg.solve(wide.T @ wide + 0.3 * small, wide.T @ target.unit)
    torch.testing.assert_close(wide @ found.weights, wide @ exact, rtol=0, atol=1e-6)


def test_the_ridge_is_near_the_one_of_leaving_anchors_out():
    for noise in (0.05, 1.0):
        source, target = (fit_space(each) for each in curved(7, 60, 8, 6, noise))
        table = plain(source.unit @ source.unit.T)
        errors = {}
        for ridge in RIDGES:
            total = 0.0
            for row in range(60):
                rest = torch.arange(60) != row
                weights = torch.linalg.solve(
                    table[rest][:, rest] + ridge * torch.eye(59, dtype=torch.float64),
                    target.unit[rest],
                )
                total += float((table[row, rest] @ weights - target.unit[row]).square().sum())
            errors[ridge] = total
        found = kernel._choose_ridge(table, target.unit)
        assert errors[found] < 1.02 * min(errors.values())
        assert errors[found] < 0.98 * max(errors.values())


def test_one_inverse_gives_what_the_fits_to_the_other_folds_would():
    source, target = (fit_space(each) for each in curved(9, 40, 7, 5))
    table, fold_of = plain(source.unit @ source.unit.T), torch.arange(40) % 3
    found = hold_out_folds(source, target, fold_of, ridge=0.2, decode_power=0.0)
    for fold in range(3):
        held, rest = fold_of == fold, fold_of != fold
        known = table[rest][:, rest] + 0.2 * torch.eye(int(rest.sum()), dtype=torch.float64)
        expected = table[held][:, rest] @ torch.linalg.solve(known, target.unit[rest])
        torch.testing.assert_close(found[held], expected)


@pytest.mark.parametrize("landmarks", [40, 15])
def test_decoding_relative_vectors_of_a_known_source_is_translating(landmarks, monkeypatch):
    monkeypatch.setattr(kernel, "LANDMARKS", landmarks)
    source, target = (fit_space(each) for each in curved(17, 40, 6, 9))
    options = resolve("kernel", {}, anchors=40)
    vectors = normal(18, 7, 6)
    decoder = fit_decoder("kernel", target, options, source=source)
    assert decoder.matrix.shape == (40, 9)
    found = decode(decoder, relative(vectors, source)).vectors
    expected = apply(fit("kernel", source, target, options), vectors).vectors
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_relative_vectors_of_an_unknown_source_are_decoded_by_the_targets_own_cosines():
    space = fit_space(normal(19, 40, 6) + 1)
    options = resolve("kernel", {"ridge": 1e-3, "decode_power": 0.0}, anchors=40)
    found = decode(fit_decoder("kernel", space, options), space.unit @ space.unit.T).vectors
    native = space.scale * space.unit + space.mean
    assert float((found - native).norm(dim=1).max()) < 0.02 * space.scale


def test_anchors_without_a_direction_are_no_landmarks():
    source, target = curved(21, 30, 6, 5)
    source[4] = source[torch.arange(30) != 4].mean(dim=0)  # then it is the mean of all
    found = fit_kernel(fit_space(source), fit_space(target), ridge=0.1, decode_power=0.0)
    assert 4 not in found.rows.tolist()
