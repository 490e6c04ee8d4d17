"""Heads of linear layers: their checks, and outputs equal to torch's."""

from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from app.errors import HeadTooLarge, InvalidHead
from app.heads import linear
from app.heads.linear import LinearHead, make_head, read_tensors

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.25, 0.0, 3.0]])
BIAS = torch.tensor([0.5, -1.0])

SIMPLE = ["linear", "relu", "dropout", "linear"]


def simple() -> nn.Sequential:
    """The network of SIMPLE, from 4 to 8 to 2 numbers, in evaluation mode."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).eval()


def file(network: nn.Module, changes: dict[str, torch.Tensor] | None = None) -> bytes:
    """A saved state_dict, with tensors added or replaced."""
    return save({**network.state_dict(), **(changes or {})})


def read(data: bytes, architecture: list[str] | None, *, dim: int) -> LinearHead:
    return make_head(read_tensors(data), architecture, dim=dim)


def test_logits_beyond_float32_are_its_largest_numbers():
    logits = make_head({"weight": WEIGHT * 1e20}, dim=3).run(torch.full((1, 3), 1e30))
    assert float(logits.abs().max()) == torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("weight", "bias", "field", "says"),
    [
        (WEIGHT.T, BIAS, "weight", r"\[3, 3\], which is \[outputs, inputs\].*; got \[3, 2\]"),
        (WEIGHT, BIAS[:1], "bias", r"\[2\].*; got \[1\]"),
        (WEIGHT.long(), BIAS, "weight", "int64"),
        (WEIGHT * torch.nan, BIAS, "weight", "NaN"),
        (WEIGHT.double() * 1e39, BIAS, "weight", "float32"),
    ],
)
def test_invalid_tensors_are_rejected(weight, bias, field, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        make_head({"weight": weight, "bias": bias}, dim=3)
    assert caught.value.field == field


def test_a_file_contains_weight_and_perhaps_bias():
    head = read(save({"weight": WEIGHT, "bias": BIAS}), None, dim=3)
    assert (head.dim, head.outputs) == (3, 2)
    assert torch.equal(head.run(torch.eye(3)), WEIGHT.T + BIAS)
    assert torch.equal(read(save({"weight": WEIGHT}), None, dim=3).run(torch.eye(3)), WEIGHT.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_outputs_equal_torchs(dtype):
    architecture = [*linear.MODULES, "linear"]
    network = nn.Sequential(
        nn.Linear(6, 9), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.ELU(),
        nn.LeakyReLU(), nn.Softplus(), nn.Dropout(), nn.Identity(), nn.Linear(9, 3),
    ).eval().to(dtype)  # fmt: skip
    head = read(file(network), architecture, dim=6)
    assert (head.dim, head.outputs) == (6, 3)
    vectors = torch.randn(20, 6)
    with torch.no_grad():
        expected = network.double()(vectors.double()).float()
    torch.testing.assert_close(head.run(vectors), expected, atol=1e-6, rtol=1e-6)
    assert head.run(vectors[:0]).shape == (0, 3)


def test_outputs_do_not_depend_on_the_pieces(monkeypatch):
    head = read(file(simple()), SIMPLE, dim=4)
    vectors = torch.randn(100, 4)
    once = head.run(vectors)
    monkeypatch.setattr(linear, "PIECE_NUMBERS", 8 * 7)
    torch.testing.assert_close(head.run(vectors), once, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"extra": torch.ones(1)}, "tensors 0.weight, 3.weight, .* and no other; it has .*extra"),
        ({"3.weight": torch.ones(2, 9)}, r"3.weight` must have shape \[2, 8\].*; got \[2, 9\]"),
        ({"3.bias": torch.ones(3)}, r"3.bias` must have shape \[2\].*; got \[3\]"),
    ],
)
def test_tensors_must_match_the_architecture(changes, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        read(file(simple(), changes), SIMPLE, dim=4)
    assert caught.value.field == "safetensors"
    with pytest.raises(InvalidHead, match=r"tensors 0.weight, 2.weight, .*; it has .*3.weight"):
        read(file(simple()), ["linear", "relu", "linear"], dim=4)


@pytest.mark.parametrize("architecture", [["relu"], ["linear", "layer_norm"]])
def test_invalid_architectures_are_rejected(architecture):
    with pytest.raises(InvalidHead) as caught:
        read(file(simple()), architecture, dim=4)
    assert caught.value.field == "architecture"


def test_sizes_are_bounded():
    with pytest.raises(HeadTooLarge, match="16385 numbers; the limit is 16384"):
        read(save({"weight": torch.zeros(16_385, 1)}), None, dim=1)
    halves = save({"weight": torch.zeros(4200, 4096, dtype=torch.float16)})
    with pytest.raises(HeadTooLarge, match="in float32"):
        read(halves, None, dim=4096)
    with pytest.raises(HeadTooLarge, match="limit is 67108864"):
        read_tensors(bytes(2**26 + 1))


class Trap:
    def __init__(self, where: Path) -> None:
        self.where = str(where)

    def __reduce__(self):
        return Path.touch, (Path(self.where),)


def test_a_pickle_is_never_opened(tmp_path):
    for protocol in range(6):
        with pytest.raises(InvalidHead, match="not a safetensors file"):
            read_tensors(pickle.dumps(Trap(tmp_path / "sprung"), protocol))
    for new in (True, False):
        saved = BytesIO()
        torch.save(
            {"0.weight": Trap(tmp_path / "sprung")}, saved, _use_new_zipfile_serialization=new
        )
        with pytest.raises(InvalidHead, match=r"not a safetensors file. It is a pickle.*save_file"):
            read_tensors(saved.getvalue())
    assert not (tmp_path / "sprung").exists()


def test_a_file_that_is_cut_or_damaged_is_rejected():
    data = file(simple())
    for wrong in (b"", data[:7], data[:100], data[:-1], b"\xff" * 8 + data[8:], b"\0" + data):
        with pytest.raises(InvalidHead, match="not a safetensors file"):
            read_tensors(wrong)
