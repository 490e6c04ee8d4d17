"""The object that serves: one matrix, the source's mean, the target's mean and scale."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from app.errors import OutOfRange
from app.maths.geometry.space import LARGEST_MAGNITUDE, fit_space, normalise
from app.maths.translators import linear
from app.maths.translators.decoder import decode
from app.maths.translators.methods import METHODS, Options, fit, fit_decoder, resolve
from app.maths.translators.translator import Translator, apply, content_hash
from research.definitions import relative
from tests.maths.clouds import normal

every_method = pytest.mark.parametrize("name", list(METHODS))
UNPRUNED = {"delta": 0.0, "omega": 1}


def fitted(name: str, source: Tensor, target: Tensor, given: Options | None = None) -> Translator:
    return fit(
        name, fit_space(source), fit_space(target), resolve(name, given or {}, anchors=len(source))
    )


@pytest.mark.parametrize(("k", "dx", "dy"), [(8, 12, 16), (30, 10, 14)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("irp", {"delta": 0.6, "omega": 4}),
        ("irp", UNPRUNED),
        ("irp-ridge", {}),
        ("graded", {}),
        ("graded", {"encode_power": 0.5, "decode_power": 0.5, "ridge": 0.3}),
    ],
)
def test_the_fused_matrix_equals_relative_vectors_decoded(k, dx, dy, name, options):
    source, target = fit_space(normal(0, k, dx) + 1), fit_space(4 * normal(1, k, dy) - 2)
    options = resolve(name, options, anchors=k)
    vectors = normal(2, 9, dx)
    if name == "graded":
        unit, _ = normalise(vectors, source.mean)
        coordinates = unit @ linear.projector(
            source, power=options["encode_power"], ridge=options["ridge"]
        )
    else:
        coordinates = relative(vectors, source)
    two_steps = decode(fit_decoder(name, target, options), coordinates).vectors
    fused = apply(fit(name, source, target, options), vectors).vectors
    assert float((fused - two_steps).norm(dim=1).max()) < 1e-6 * float(two_steps.norm(dim=1).min())


def test_the_hash_changes_with_everything_that_changes_a_translation():
    translator = fitted("ridge", normal(3, 20, 6), normal(4, 20, 6))
    decoder = translator.decoder
    decoders = (
        {"matrix": decoder.matrix * 2},
        {"mean": decoder.mean + 1},
        {"scale": decoder.scale * 2},
        {"renormalise": not decoder.renormalise},
    )
    changes = [
        {},
        {"source_mean": translator.source_mean + 1},
        *({"decoder": replace(decoder, **change)} for change in decoders),
        *({"kept_scale": scale} for scale in (1.0, 2.0)),
        *({"landmarks": scale * torch.eye(6)} for scale in (1.0, 2.0)),
    ]
    hashes = {content_hash(replace(translator, **change)) for change in changes}
    assert len(hashes) == len(changes)


@every_method
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_tiny_and_huge_data_translate_like_unscaled_data(name, scale):
    source, target, vectors = normal(12, 20, 8) + 1, normal(13, 20, 6) - 1, normal(14, 5, 8)
    expected = apply(fitted(name, source, target), vectors).vectors.double()
    found = (
        apply(fitted(name, scale * source, scale * target), scale * vectors).vectors.double()
        / scale
    )
    assert float((found - expected).norm(dim=1).max()) < 1e-4 * float(expected.norm(dim=1).min())


def test_vectors_too_far_away_to_keep_their_norm_are_refused_by_row():
    source, target = normal(34, 15, 6) * 1e-20, normal(35, 15, 7) * 1e20
    options = resolve("procrustes", {"keep_norms": True}, anchors=15)
    translator = fit("procrustes", fit_space(source), fit_space(target), options)
    with pytest.raises(OutOfRange, match="keep their norm") as caught:
        apply(translator, torch.cat([source[:1], normal(36, 1, 6) * 1e20]))
    assert caught.value.rows == [1]


@pytest.mark.parametrize("renormalise", [True, False])
def test_coordinates_too_large_for_float32_are_refused_or_decoded_never_turned_into_nan_or_infinity(
    renormalise,
):
    base = normal(23, 8, 16)
    target = fit_space(1e10 * torch.cat([base, base + 1e-9 * normal(24, 8, 16)]))
    options = resolve("irp-ridge", {"ridge": 0.0, "renormalise": renormalise}, anchors=16)
    coordinates = LARGEST_MAGNITUDE * normal(25, 3, 16).sign()
    with suppress(OutOfRange):
        assert bool(
            decode(fit_decoder("irp-ridge", target, options), coordinates).vectors.isfinite().all()
        )


@pytest.mark.parametrize("name", ["irp", "irp-ridge", "graded", "procrustes", "ridge", "kernel"])
def test_a_direction_that_the_anchors_do_not_span_is_flagged_and_not_invented(name):
    """Anchors in 3 of 6 dimensions: rounding must not become a vector in the other dimensions."""
    anchors, turn = torch.zeros(20, 6, dtype=torch.float64), torch.linalg.qr(normal(31, 6, 6))[0]
    anchors[:, :3] = normal(30, 20, 3)
    source, target = fit_space(anchors @ turn), fit_space(normal(32, 20, 4) + 5)
    translator = fit(name, source, target, resolve(name, {}, anchors=20))
    inside, outside = turn[:3] + source.mean, turn[3:] * 7 + source.mean
    found = apply(translator, torch.cat([inside, outside, source.mean[None]]))
    assert found.outside.tolist() == [False] * 3 + [True] * 3 + [False]
    assert found.at_mean.tolist() == [False] * 6 + [True]
    torch.testing.assert_close(
        found.vectors[3:], target.mean.float().expand(4, 4), rtol=0, atol=1e-6
    )
