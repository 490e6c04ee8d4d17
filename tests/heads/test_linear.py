"""Linear heads: their checks and their outputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from app.errors import InvalidHead
from app.heads.base import probabilities
from app.heads.linear import LinearHead, make_linear_head, read_safetensors
from app.heads.registry import load, make

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.25, 0.0, 3.0]])
BIAS = torch.tensor([0.5, -1.0])


@given(n=st.integers(0, 9), d=st.integers(1, 40), c=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_logits_equal_torchs_linear_layer(n, d, c, seed):
    torch.manual_seed(seed)
    layer, vectors = torch.nn.Linear(d, c), torch.randn(n, d)
    head = make_linear_head(layer.weight.detach(), layer.bias.detach(), dim=d)
    assert (head.dim, head.outputs, head.nbytes) == (d, c, 4 * (c * d + c))
    torch.testing.assert_close(head.run(vectors), layer(vectors).detach())
    torch.testing.assert_close(
        probabilities(head.run(vectors)), layer(vectors).softmax(dim=1).detach()
    )


def test_large_logits_do_not_overflow():
    scores = probabilities(
        LinearHead(WEIGHT * 1e4, BIAS).run(torch.tensor([[1e3, 0.0, 0.0], [-1e3, 0.0, 0.0]]))
    )
    torch.testing.assert_close(scores, torch.eye(2))


@pytest.mark.parametrize("magnitude", [1e30, -1e30])
def test_logits_beyond_float32_still_give_probabilities(magnitude):
    scores = probabilities(LinearHead(WEIGHT * 1e20, BIAS).run(torch.full((1, 3), magnitude)))
    torch.testing.assert_close(scores.sum(dim=1), torch.ones(1))


def test_a_missing_bias_means_zeros():
    assert torch.equal(make_linear_head(WEIGHT, None, dim=3, classes=2).bias, torch.zeros(2))


def test_stored_tensors_rebuild_the_head():
    head = make_linear_head(WEIGHT, BIAS, dim=3, classes=2)
    again = load("linear", head.tensors(), dim=3)
    assert isinstance(again, LinearHead)
    assert torch.equal(again.weight, head.weight)
    assert torch.equal(again.bias, head.bias)


@pytest.mark.parametrize(
    ("weight", "bias", "field", "says"),
    [
        (WEIGHT.T, BIAS, "weight", r"\[2, 3\], which is \[classes, dimension\]; got \[3, 2\]"),
        (WEIGHT.flatten(), BIAS, "weight", r"got \[6\]"),
        (WEIGHT[:0], BIAS, "weight", r"got \[0, 3\]"),
        (WEIGHT, BIAS[:1], "bias", r"\[2\]; got \[1\]"),
        (WEIGHT.long(), BIAS, "weight", "int64"),
        (WEIGHT, BIAS.long(), "bias", "int64"),
        (WEIGHT * torch.nan, BIAS, "weight", "NaN"),
        (WEIGHT, BIAS * torch.inf, "bias", "infinity"),
        (WEIGHT.double() * 1e39, BIAS, "weight", "float32"),
    ],
)
def test_invalid_tensors_are_rejected(weight, bias, field, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        make_linear_head(weight, bias, dim=3, classes=2)
    assert caught.value.field == field


def test_a_file_contains_weight_and_bias():
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
def test_the_error_for_other_tensors_lists_them(tensors):
    with pytest.raises(InvalidHead, match="tensor `weight`"):
        read_safetensors(save(tensors))


def test_the_rows_of_weight_are_the_outputs():
    head = make("linear", save({"weight": WEIGHT, "bias": BIAS}), dim=3)
    assert (head.dim, head.outputs) == (3, 2)
    assert torch.equal(head.run(torch.eye(3)), WEIGHT.T + BIAS)


@pytest.mark.parametrize(
    "tensors", [{"weight": WEIGHT.T}, {"weight": WEIGHT[:0]}, {"weight": WEIGHT, "bias": BIAS[:1]}]
)
def test_a_file_of_another_shape_is_rejected(tensors):
    with pytest.raises(InvalidHead, match="must have shape"):
        make("linear", save({name: tensor.contiguous() for name, tensor in tensors.items()}), dim=3)
