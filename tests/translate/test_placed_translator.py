"""Rows of the CPU's memory, translated on another device: the CPU under another name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.errors import NonFinite, OutOfRange
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply
from app.translate import placed_translator
from app.translate.placed_translator import PlacedTranslator, empty_rows, move_translator
from tests.helpers import some

#: torch takes it for the CPU, and the code for another device
ELSEWHERE = "cpu:0"


@pytest.fixture(params=["ridge", "kernel"])
def translator(request: pytest.FixtureRequest) -> Translator:
    source = some(120, 12)
    spaces = fit_space(source), fit_space(source @ some(12, 7, 3) + 1.0)
    return methods.fit(
        request.param, *spaces, methods.resolve(request.param, {}, anchors=len(source))
    )


@pytest.fixture(params=[7, 1_000], ids=lambda rows: f"steps of {rows}")
def short_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_translator, "MAX_ROWS", request.param)


def placed(translator: Translator, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The translations, and the flags as `apply` returns them."""
    out = empty_rows(len(vectors), translator.dims[1], ELSEWHERE)
    flags = PlacedTranslator(translator, ELSEWHERE).apply_into(vectors, out)
    none = torch.zeros(len(vectors), dtype=torch.bool)
    return out, *(flags or (none, none))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.usefixtures("short_steps")
def test_translations_and_flags_are_those_of_the_cpu(
    translator: Translator, dtype: torch.dtype
) -> None:
    vectors = some(40, 12, 5)
    vectors[[3, 11, 39]] = translator.source_mean
    vectors = vectors.to(dtype)
    expected = apply(translator, vectors)
    made, at_mean, outside = placed(translator, vectors)
    torch.testing.assert_close(made, expected.vectors, rtol=1e-5, atol=1e-5)
    assert torch.equal(at_mean, expected.at_mean)
    assert torch.equal(outside, expected.outside)
    if dtype == torch.float32:
        assert at_mean.nonzero().flatten().tolist() == [3, 11, 39]


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize(("number", "error"), [(torch.nan, NonFinite), (2.0**101, OutOfRange)])
def test_a_wrong_row_is_named_by_its_place_in_the_whole(
    translator: Translator, number: float, error: type[Exception]
) -> None:
    vectors = some(30, 12, 6)
    vectors[17, 4] = number
    with pytest.raises(error) as caught:
        placed(translator, vectors)
    assert caught.value.rows == [17]


def test_every_tensor_of_a_translator_moves(translator: Translator) -> None:
    moved = move_translator(translator, "meta")
    tensors = [moved.source_mean, moved.decoder.matrix, moved.decoder.energy, moved.decoder.mean]
    if translator.landmarks is not None:
        assert moved.landmarks is not None
        tensors.append(moved.landmarks)
    assert {each.device.type for each in tensors} == {"meta"}
    assert move_translator(moved, "meta").dims == translator.dims
