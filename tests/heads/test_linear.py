"""Linear heads: what is accepted, and what they compute."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from app.errors import InvalidHead
from app.heads.linear import LinearHead, linear_head, read_safetensors

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.25, 0.0, 3.0]])
BIAS = torch.tensor([0.5, -1.0])


def test_scores_are_the_softmax_of_torchs_own_linear_layer():
    layer = torch.nn.Linear(3, 2)
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    head = linear_head(layer.weight.detach(), layer.bias.detach(), dim=3, classes=2)
    torch.testing.assert_close(head.scores(vectors), layer(vectors).softmax(dim=1).detach())


def test_large_logits_do_not_overflow():
    scores = LinearHead(WEIGHT * 1e4, BIAS).scores(torch.tensor([[1e3, 0.0, 0.0], [-1e3, 0.0, 0.0]]))
    torch.testing.assert_close(scores, torch.eye(2))


@pytest.mark.parametrize("magnitude", [1e30, -1e30])
def test_logits_beyond_float32_still_give_probabilities(magnitude):
    scores = LinearHead(WEIGHT * 1e20, BIAS).scores(torch.full((1, 3), magnitude))
    torch.testing.assert_close(scores.sum(dim=1), torch.ones(1))


def test_no_bias_is_a_bias_of_zeros():
    assert torch.equal(linear_head(WEIGHT, None, dim=3, classes=2).bias, torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_becomes_float32(dtype):
    head = linear_head(WEIGHT.to(dtype), BIAS.to(dtype), dim=3, classes=2)
    assert head.weight.dtype == head.bias.dtype == torch.float32
    assert torch.equal(head.weight, WEIGHT)


def test_tensors_make_the_same_head_again():
    head = linear_head(WEIGHT, BIAS, dim=3, classes=2)
    again = LinearHead(**head.tensors())
    assert torch.equal(again.weight, head.weight)
    assert torch.equal(again.bias, head.bias)


@pytest.mark.parametrize(
    ("weight", "bias", "field", "says"),
    [
        (WEIGHT.T, BIAS, "weight", r"\[2, 3\] \(classes, dimension\), got \[3, 2\]"),
        (WEIGHT.flatten(), BIAS, "weight", r"got \[6\]"),
        (WEIGHT[None], BIAS, "weight", r"got \[1, 2, 3\]"),
        (WEIGHT[:0], BIAS, "weight", r"got \[0, 3\]"),
        (WEIGHT, BIAS[:1], "bias", r"\[2\], got \[1\]"),
        (WEIGHT, BIAS[None], "bias", r"got \[1, 2\]"),
        (WEIGHT.long(), BIAS, "weight", "int64"),
        (WEIGHT, BIAS.long(), "bias", "int64"),
        (WEIGHT.bool(), BIAS, "weight", "bool"),
        (WEIGHT.to(torch.complex64), BIAS, "weight", "complex"),
        (WEIGHT * torch.nan, BIAS, "weight", "NaN"),
        (WEIGHT, BIAS * torch.inf, "bias", "infinity"),
        (WEIGHT.double() * 1e39, BIAS, "weight", "float32"),
        (WEIGHT, BIAS.double() * 1e39, "bias", "float32"),
    ],
)
def test_what_is_no_linear_head_is_refused(weight, bias, field, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        linear_head(weight, bias, dim=3, classes=2)
    assert caught.value.field == field


def test_a_file_gives_its_weight_and_its_bias():
    weight, bias = read_safetensors(save({"weight": WEIGHT, "bias": BIAS}))
    assert torch.equal(weight, WEIGHT)
    assert bias is not None
    assert torch.equal(bias, BIAS)
    assert read_safetensors(save({"weight": WEIGHT}))[1] is None


@pytest.mark.parametrize(
    "tensors",
    [{}, {"bias": BIAS}, {"kernel": WEIGHT}, {"weight": WEIGHT, "scale": BIAS}, {"Weight": WEIGHT}],
    ids=lambda t: str(list(t)),
)
def test_a_file_with_other_tensors_is_refused_and_says_what_it_has(tensors):
    with pytest.raises(InvalidHead, match="expected tensors 'weight'"):
        read_safetensors(save(tensors))


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1])
def test_a_cut_file_is_refused(cut):
    with pytest.raises(InvalidHead, match="not a safetensors file") as caught:
        read_safetensors(save({"weight": WEIGHT})[:cut])
    assert caught.value.field == "safetensors"


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_file_with_a_wrong_byte_is_refused_or_read_never_worse(place):
    data = bytearray(save({"weight": WEIGHT, "bias": BIAS}))
    data[place] ^= 0xFF
    with pytest.raises(InvalidHead):
        read_safetensors(bytes(data))
