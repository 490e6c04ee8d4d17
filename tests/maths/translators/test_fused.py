"""The fast paths of serving agree with the plain formula, for any rows and neighbouring rows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.geometry.space import Space, fit_space
from app.maths.translators import translator
from app.maths.translators.methods import METHODS, fit, resolve
from app.maths.translators.translator import ROWS_PER_STEP, Translator, apply
from tests.maths.clouds import normal

#: the tolerated error of float32, relative to the target's scale
CLOSE = 1e-5
COUNTS = (1, 2, ROWS_PER_STEP - 1, ROWS_PER_STEP, ROWS_PER_STEP + 1, 3 * ROWS_PER_STEP)
DTYPES = (torch.float16, torch.float32, torch.float64)


def made(
    seed: int,
    dims: tuple[int, int],
    *,
    name: str = "ridge",
    offset: float = 1.0,
    anchors: int = 40,
    **options: bool,
):
    """A translator and its source space; the source lies `offset` standard deviations from zero."""
    source, target = (
        fit_space(normal(seed, anchors, dims[0]) + offset),
        fit_space(3 * normal(seed + 1, anchors, dims[1]) - 2),
    )
    return fit(name, source, target, resolve(name, options, anchors=anchors)), source


def coordinates(translator: Translator, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """n(x), or f(n(x) L^T) with landmarks, and the norms (n, 1), in float64."""
    centred = vectors.float().double() - translator.source_mean.double()
    norms = centred.norm(dim=1, keepdim=True)
    if translator.landmarks is None:
        return centred / norms, norms
    return ((centred / norms) @ translator.landmarks.double()).exp() - 1.0, norms


def naive(translator: Translator, vectors: Tensor) -> Tensor:
    """s_y r(n(x) T) + m_y in float64, of rows that have a direction."""
    decoder = translator.decoder
    inputs, norms = coordinates(translator, vectors)
    product = inputs @ decoder.matrix.double()
    if decoder.renormalise:
        product = product / product.norm(dim=1, keepdim=True)
    if translator.kept_scale is not None:
        product = product * norms / translator.kept_scale
    return decoder.scale * product + decoder.mean.double()


def furthest(found: Tensor, expected: Tensor, translator: Translator) -> float:
    """The largest difference of two rows, relative to the target's scale or the row's distance from
    its mean.
    """
    reach = (
        (expected.double() - translator.decoder.mean.double())
        .norm(dim=1)
        .clamp_min(translator.decoder.scale)
    )
    return float(((found.double() - expected.double()).norm(dim=1) / reach).max())


@given(
    seed=st.integers(0, 2**31),
    dims=st.tuples(st.integers(2, 40), st.integers(1, 40)),
    count=st.sampled_from(COUNTS),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(list(METHODS)),
    offset=st.sampled_from([0.0, 1.0, 30.0, 1000.0]),
    renormalise=st.booleans(),
    keep_norms=st.booleans(),
)
def test_a_translation_equals_the_formula(
    seed, dims, count, dtype, name, offset, renormalise, keep_norms
):
    served, source = made(
        seed, dims, name=name, offset=offset, renormalise=renormalise, keep_norms=keep_norms
    )
    vectors = (normal(seed + 2, count, dims[0]) + source.mean).to(dtype)
    found = apply(served, vectors)
    # A direction of the source that T all but cancels keeps as few digits as it has.
    inputs, _ = coordinates(served, vectors)
    matrix = served.decoder.matrix.double()
    kept = (inputs @ matrix).norm(dim=1) / inputs.norm(dim=1) / matrix.norm()
    well = kept > 0.05
    if bool(well.any()):
        assert furthest(found.vectors[well], naive(served, vectors[well]), served) < CLOSE
        assert not bool((found.at_mean | found.outside)[well].any())


def delicate(
    space: Space, anchors: Tensor, count: int, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Ordinary rows, and rows at the mean, near it, far away, tiny, huge, and outside the anchors'
    span.

    And which rows to look at: those, and some of the others.
    """
    dim = space.dim
    vectors = normal(seed, count, dim) @ anchors.T @ anchors + space.mean
    turn = torch.linalg.qr(normal(seed + 1, dim, dim))[0]
    outside = turn[0] - anchors.T @ (anchors @ turn[0])
    special = [
        space.mean,
        space.mean + 1e-5 * anchors[0],
        space.mean * (1 + 1e-7),
        space.mean + 1e4 * anchors[0],
        torch.zeros(dim, dtype=torch.float64),
        1e-25 * anchors[0],
        space.mean + 5 * outside,
    ]
    if dtype is not torch.float16:
        special += [1e25 * anchors[0], 1e13 * anchors[1], -1e25 * anchors[1]]
    places = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    for place, row in zip(places, special, strict=False):
        vectors[place] = row
    return vectors.to(dtype), places[: len(special) + 10]


@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from(COUNTS),
    dtype=st.sampled_from(DTYPES),
    offset=st.sampled_from([0.0, 1.0, 300.0]),
    name=st.sampled_from(["graded", "procrustes", "ridge", "kernel"]),
    renormalise=st.booleans(),
    keep_norms=st.booleans(),
)
def test_rows_of_every_kind_are_each_translated_and_flagged_as_if_they_were_alone(
    seed, count, dtype, offset, name, renormalise, keep_norms
):
    span = torch.linalg.qr(normal(seed, 12, 12))[0][:5]  # the anchors span 5 of 12 dimensions
    source, target = (
        fit_space(normal(seed + 1, 30, 5) @ span + offset),
        fit_space(3 * normal(seed + 2, 30, 7) - 2),
    )
    options = resolve(name, {"renormalise": renormalise, "keep_norms": keep_norms}, anchors=30)
    served = fit(name, source, target, options)
    vectors, places = delicate(source, span, count, seed + 3, dtype)
    found = apply(served, vectors)
    vectors = vectors[places]
    expected = translator._careful_step(served, vectors)
    assert torch.equal(found.at_mean[places], expected.at_mean)
    assert torch.equal(found.outside[places], expected.outside)
    # Rows that are all but outside are all but noise.
    centred = vectors.double() - served.source_mean.double()
    clear = (centred @ span.T).norm(dim=1) > 0.1 * centred.norm(dim=1)
    clear |= expected.at_mean | expected.outside
    assert furthest(found.vectors[places][clear], expected.vectors[clear], served) < 3 * CLOSE
