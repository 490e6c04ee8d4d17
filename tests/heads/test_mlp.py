"""MLPs: their checks, and outputs equal to torch.nn.Sequential."""

from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from app.errors import AnchorageError, HeadTooLarge, InvalidHead
from app.heads import mlp
from app.heads.registry import load, make

SIMPLE = ["linear", "relu", "dropout", "linear"]

CURVES = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
}
MODULES = {
    **CURVES,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
    "dropout": nn.Dropout,
    "identity": nn.Identity,
}
NORMS = {"layer_norm": nn.LayerNorm, "batch_norm": nn.BatchNorm1d}


def sequential(architecture: list[str], widths: list[int], seed: int = 0) -> nn.Sequential:
    """A network in evaluation mode, with statistics other than zero and one."""
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    width, *rest = widths
    for name in architecture:
        if name == "linear":
            modules.append(nn.Linear(width, rest[0]))
            width = rest.pop(0)
        else:
            modules.append(NORMS[name](width) if name in NORMS else MODULES[name]())
    network = nn.Sequential(*modules)
    for name, tensor in network.state_dict().items():
        if tensor.ndim == 1 and tensor.is_floating_point():
            tensor.copy_(
                torch.rand(tensor.shape) + 0.5
                if name.endswith("var")
                else torch.randn(tensor.shape)
            )
    return network.eval()


def file(network: nn.Module, **changes: torch.Tensor | None) -> bytes:
    """A saved state_dict, with tensors added, replaced or removed."""
    tensors = {
        **network.state_dict(),
        **{name[1:].replace("_", ".", 1): tensor for name, tensor in changes.items()},
    }
    return save({name: tensor for name, tensor in tensors.items() if tensor is not None})


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[str], list[int], int]:
    architecture = draw(st.lists(st.sampled_from(mlp.KNOWN_MODULES), min_size=1, max_size=10))
    architecture.insert(draw(st.integers(0, len(architecture))), "linear")
    widths = draw(
        st.lists(
            st.integers(1, 20),
            min_size=1 + architecture.count("linear"),
            max_size=1 + architecture.count("linear"),
        )
    )
    return architecture, widths, draw(st.integers(0, 99))


@given(networks(), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_outputs_equal_torchs(drawn, n):
    architecture, widths, seed = drawn
    network = sequential(architecture, widths, seed)
    head = make("mlp", file(network), architecture, dim=widths[0])
    assert (head.dim, head.outputs) == (widths[0], widths[-1])
    vectors = torch.randn(n, widths[0])
    with torch.no_grad():
        expected = network.double()(vectors.double()).float()
    torch.testing.assert_close(head.run(vectors), expected, atol=1e-6, rtol=1e-6)


def test_every_module_exists_in_torch():
    assert {*mlp.KNOWN_MODULES} == {*MODULES, *NORMS, "linear"}


def test_outputs_do_not_depend_on_the_pieces(monkeypatch):
    network = sequential([*SIMPLE, "batch_norm"], [6, 16, 3])
    head = make("mlp", file(network), [*SIMPLE, "batch_norm"], dim=6)
    vectors = torch.randn(100, 6)
    once = head.run(vectors)
    monkeypatch.setattr(mlp, "MLP_PIECE_NUMBERS", 16 * 7)
    torch.testing.assert_close(head.run(vectors), once, atol=1e-7, rtol=1e-7)


def test_stored_tensors_rebuild_the_head():
    architecture = ["linear", "batch_norm", "gelu", "layer_norm", "linear"]
    head = make("mlp", file(sequential(architecture, [4, 8, 2])), architecture, dim=4)
    again = load("mlp", head.tensors(), architecture, dim=4)
    vectors = torch.randn(5, 4)
    assert torch.equal(again.run(vectors), head.run(vectors))
    assert head.nbytes == sum(tensor.nbytes for tensor in head.tensors().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_format_is_read(dtype):
    network = sequential(SIMPLE, [4, 8, 2]).to(dtype)
    head = make("mlp", file(network), SIMPLE, dim=4)
    torch.testing.assert_close(
        head.run(torch.eye(4)), network.double()(torch.eye(4).double()).float().detach()
    )


def test_optional_tensors_may_be_missing():
    network = nn.Sequential(
        nn.Linear(3, 5, bias=False),
        nn.LayerNorm(5, elementwise_affine=False),
        nn.BatchNorm1d(5, affine=False),
    )
    head = make("mlp", file(network.eval()), ["linear", "layer_norm", "batch_norm"], dim=3)
    torch.testing.assert_close(
        head.run(torch.eye(3)), network(torch.eye(3)).detach(), atol=1e-6, rtol=1e-6
    )


def test_overflow_is_an_error_that_names_its_rows():
    network = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(9)], nn.LayerNorm(1))
    for tensor in network.state_dict().values():
        tensor.fill_(1e38)
    head = make("mlp", file(network), [*["linear"] * 9, "layer_norm"], dim=1)
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        head.run(torch.tensor([[0.0], [1.0], [2.0]]))
    assert (caught.value.field, caught.value.rows) == ("head", [1, 2])


X = torch.ones


@pytest.mark.parametrize(
    ("architecture", "changes", "says"),
    [
        (SIMPLE, {"_0_weight": None}, "no tensor '0.weight', which module 0"),
        (["linear", "relu", "linear"], {}, "no tensor '2.weight'"),
        (SIMPLE, {"_1_weight": X(8)}, "'1.weight' belongs to no module"),
        (SIMPLE, {"_extra": X(1)}, "'extra' belongs to no module"),
        (SIMPLE, {"_0_num_batches_tracked": X(1)}, "'0.num_batches_tracked' belongs to no module"),
        (SIMPLE, {"_0_weight": X(8, 5)}, r"0.weight` must have shape \[8, 4\]; got \[8, 5\]"),
        (SIMPLE, {"_0_weight": X(8)}, r"0.weight` must have shape \[outputs, 4\]"),
        (SIMPLE, {"_0_weight": X(0, 4)}, r"0.weight` must have shape \[outputs, 4\]"),
        (
            SIMPLE,
            {"_0_weight": X(9, 4), "_0_bias": X(9)},
            r"3.weight` must have shape \[2, 9\]; got \[2, 8\]",
        ),
        (SIMPLE, {"_3_bias": X(3)}, r"3.bias` must have shape \[2\]; got \[3\]"),
        (SIMPLE, {"_3_bias": X(2).long()}, "3.bias` must hold floats"),
        (SIMPLE, {"_3_bias": X(2) * torch.nan}, "3.bias` contains NaN"),
        (SIMPLE, {"_0_weight": X(8, 4).double() * 1e39}, "beyond float32"),
        ([*SIMPLE, "batch_norm"], {}, "no tensor '4.running_mean'"),
        (
            [*SIMPLE, "batch_norm"],
            {"_4_running_mean": X(2), "_4_running_var": X(2) * 0},
            "4.running_var` must hold positive",
        ),
        (
            [*SIMPLE, "batch_norm"],
            {"_4_running_mean": X(2), "_4_running_var": X(3)},
            r"4.running_var` must have shape \[2\]",
        ),
        ([*SIMPLE, "layer_norm"], {"_4_bias": X(2)}, "`4.bias` without `4.weight`"),
    ],
)
def test_tensors_must_match_the_architecture(architecture, changes, says):
    with pytest.raises(InvalidHead, match=says) as caught:
        make("mlp", file(sequential(SIMPLE, [4, 8, 2]), **changes), architecture, dim=4)
    assert caught.value.field == "safetensors"


@pytest.mark.parametrize(
    ("architecture", "error", "says"),
    [
        ([], InvalidHead, "at least one 'linear'"),
        (["relu"], InvalidHead, "at least one 'linear'"),
        (["linear", "lstm"], InvalidHead, "unknown module 'lstm'. Use linear, "),
        (["linear", "__class__"], InvalidHead, "unknown module"),
        (["linear"] * 65, HeadTooLarge, "65 modules; the limit is 64"),
        (None, InvalidHead, "`architecture`"),
    ],
)
def test_invalid_architectures_are_rejected(architecture, error, says):
    with pytest.raises(error, match=says) as caught:
        make("mlp", file(sequential(SIMPLE, [4, 8, 2])), architecture, dim=4)
    assert caught.value.field == "architecture"


def test_sizes_are_bounded(monkeypatch):
    with pytest.raises(HeadTooLarge, match="16385 numbers; the limit is 16384"):
        make("mlp", save({"0.weight": torch.zeros(16_385, 1)}), ["linear"], dim=1)
    halves = save({"0.weight": torch.zeros(4200, 4096, dtype=torch.float16)})
    with pytest.raises(HeadTooLarge, match="in float32"):
        make("mlp", halves, ["linear"], dim=4096)
    with pytest.raises(HeadTooLarge, match="limit is 67108864"):
        make("mlp", bytes(2**26 + 1), ["linear"], dim=4096)


class Trap:
    def __init__(self, where: Path) -> None:
        self.where = str(where)

    def __reduce__(self):
        return Path.touch, (Path(self.where),)


def test_a_pickle_is_never_opened(tmp_path):
    for protocol in range(6):
        with pytest.raises(InvalidHead, match="not a safetensors file"):
            make("mlp", pickle.dumps(Trap(tmp_path / "sprung"), protocol), SIMPLE, dim=4)
    for new in (True, False):
        saved = BytesIO()
        torch.save(
            {"0.weight": Trap(tmp_path / "sprung")}, saved, _use_new_zipfile_serialization=new
        )
        with pytest.raises(InvalidHead, match=r"not a safetensors file. It is a pickle.*save_file"):
            make("mlp", saved.getvalue(), SIMPLE, dim=4)
    assert not (tmp_path / "sprung").exists()


FILE = file(sequential([*SIMPLE, "batch_norm"], [4, 8, 2]))


@given(
    st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, len(FILE)),
)
@settings(max_examples=200, deadline=None)
def test_a_file_with_wrong_bytes_is_read_or_rejected(changes, cut):
    data = bytearray(FILE)
    for place, byte in changes:
        data[place] = byte
    for damaged in (bytes(data), FILE[:cut]):
        try:
            make("mlp", damaged, [*SIMPLE, "batch_norm"], dim=4).run(torch.ones(2, 4))
        except AnchorageError as error:
            assert error.field in ("safetensors", "head")  # noqa: PT017  # most files raise, some do not
