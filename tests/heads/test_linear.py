"""Heads of linear layers: their checks, and outputs equal to torch's."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
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


def one_layer(weight: torch.Tensor, bias: torch.Tensor | None = BIAS) -> LinearHead:
    tensors = {"weight": weight} | ({} if bias is None else {"bias": bias})
    return make_head(tensors, dim=3)


def simple(seed: int = 0) -> nn.Sequential:
    """The network of SIMPLE, from 4 to 8 to 2 numbers, in evaluation mode."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).eval()


def file(network: nn.Module, **changes: torch.Tensor | None) -> bytes:
    """A saved state_dict, with tensors added, replaced or removed."""
    tensors = {
        **network.state_dict(),
        **{name[1:].replace("_", ".", 1): tensor for name, tensor in changes.items()},
    }
    return save({name: tensor for name, tensor in tensors.items() if tensor is not None})


def read(data: bytes, architecture: list[str] | None, *, dim: int) -> LinearHead:
    return make_head(read_tensors(data), architecture, dim=dim)


# --- one layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitude", [1e30, -1e30])
def test_logits_beyond_float32_are_its_largest_numbers(magnitude):
    logits = one_layer(WEIGHT * 1e20).run(torch.full((1, 3), magnitude))
    assert float(logits.abs().max()) == torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("weight", "bias", "field", "says"),
    [
        (WEIGHT.T, BIAS, "weight", r"\[3, 3\], which is \[outputs, inputs\].*; got \[3, 2\]"),
        (WEIGHT.flatten(), BIAS, "weight", r"got \[6\]"),
        (WEIGHT, BIAS[:1], "bias", r"\[2\].*; got \[1\]"),
        (WEIGHT.long(), BIAS, "weight", "int64"),
        (WEIGHT * torch.nan, BIAS, "weight", "NaN"),
        (WEIGHT, BIAS * torch.inf, "bias", "infinity"),
        (WEIGHT.double() * 1e39, BIAS, "weight", "float32"),
    ],
)
def test_invalid_tensors_are_rejected(weight, bias, field, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        one_layer(weight, bias)
    assert caught.value.field == field


def test_a_file_contains_weight_and_perhaps_bias():
    head = read(save({"weight": WEIGHT, "bias": BIAS}), None, dim=3)
    assert (head.dim, head.outputs) == (3, 2)
    assert torch.equal(head.run(torch.eye(3)), WEIGHT.T + BIAS)
    assert torch.equal(read(save({"weight": WEIGHT}), None, dim=3).run(torch.eye(3)), WEIGHT.T)


# --- hidden layers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
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


def test_threads_run_one_head_at_once():
    head, vectors = read(file(simple()), SIMPLE, dim=4), torch.randn(64, 4)
    expected = head.run(vectors)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(head.run, [vectors] * 200):
            assert torch.equal(found, expected)


def test_overflow_is_an_error_that_names_its_rows():
    network = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(9)])
    for tensor in network.state_dict().values():
        tensor.fill_(1e38)
    head = read(file(network), ["linear"] * 9, dim=1)
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        head.run(torch.tensor([[0.0], [1.0], [2.0]]))
    assert (caught.value.field, caught.value.rows) == ("head", [1, 2])


X = torch.ones


@pytest.mark.parametrize(
    ("architecture", "changes", "says"),
    [
        (SIMPLE, {"_0_weight": None}, "must have the tensors 0.weight, 3.weight"),
        (["linear", "relu", "linear"], {}, "must have the tensors 0.weight, 2.weight"),
        (SIMPLE, {"_1_weight": X(8)}, "and no other"),
        (SIMPLE, {"_extra": X(1)}, "and no other; it has .*extra"),
        (SIMPLE, {"_0_weight": X(8, 5)}, r"0.weight` must have shape \[8, 4\].*; got \[8, 5\]"),
        (
            SIMPLE,
            {"_0_weight": X(9, 4), "_0_bias": X(9)},
            r"3.weight` must have shape \[2, 9\].*; got \[2, 8\]",
        ),
        (SIMPLE, {"_3_bias": X(3)}, r"3.bias` must have shape \[2\].*; got \[3\]"),
    ],
)
def test_tensors_must_match_the_architecture(architecture, changes, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        read(file(simple(), **changes), architecture, dim=4)
    assert caught.value.field == "safetensors"


@pytest.mark.parametrize(
    ("architecture", "error", "says"),
    [
        (["relu"], InvalidHead, "at least one 'linear'"),
        (["linear", "layer_norm"], InvalidHead, "unknown module 'layer_norm'. Use linear, .*ONNX"),
    ],
)
def test_invalid_architectures_are_rejected(architecture, error, says):
    with pytest.raises(error, match=says) as caught:
        read(file(simple()), architecture, dim=4)
    assert caught.value.field == "architecture"


# --- files ----------------------------------------------------------------------------------------


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
