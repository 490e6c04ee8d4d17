"""Confidence models that processes share: reading one restores the model that was written."""

from __future__ import annotations

import torch

from app.maths.quality.confidence import expected_cosines, fit_confidence
from app.maths.translators import methods
from app.services.serving import apply
from app.services.serving.apply import Translation
from app.services.serving.confidence import confidence_of
from app.services.translators import translators
from app.services.upkeep.cache_codecs import CONFIDENCE
from app.storage.cache import pack, unpack
from tests.services.helpers import CONTEXT

PROJECT = "p"


def test_a_confidence_read_back_expects_the_same_to_the_last_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 9, generator=draw)
    made = fit_confidence("ridge", x, x[:, :5].square(), methods.resolve("ridge", {}, anchors=60))
    assert made is not None
    again = CONFIDENCE.load(unpack(b"key", pack(b"key", CONFIDENCE.dump(made))))
    asked = torch.randn(20, 9, generator=draw)
    for first, second in zip(
        vars(expected_cosines(made, asked)).values(),
        vars(expected_cosines(again, asked)).values(),
        strict=True,
    ):
        assert torch.equal(first, second)
    assert (again.held_out, again.threshold, again.nbytes) == (
        made.held_out,
        made.threshold,
        made.nbytes,
    )
    assert CONFIDENCE.load(unpack(b"key", pack(b"key", CONFIDENCE.dump(None)))) is None


def test_it_is_learnt_once_for_each_translator(
    stocked,
) -> None:  # twelve anchors: too few, and that is kept as well
    asked = torch.ones(2, 3)
    for method in ("graded", "ridge", "graded"):
        request = translators.FitRequest("a", "b", "s", method, {})
        answer = apply.apply_map(stocked, CONTEXT, Translation(request), vectors=asked)
        told = confidence_of(stocked, CONTEXT, answer, 0.9, field="vectors")
        assert (told.held_out, told.threshold) == (0, None)
        assert told.reason is not None
    keys = [key for key in stocked.cache.memory._entries if key[0] == "confidence"]
    assert sorted(key[3] for key in keys) == ["graded", "ridge"]
