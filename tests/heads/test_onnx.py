"""ONNX heads: outputs equal to torch's, the operator's folder, and files of another kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from app.errors import InvalidHead
from app.heads.onnx import ONNX_ROWS, open_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

DIM = 6


class Summing(nn.Module):
    """One number for each vector, without an axis of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=1)


class Exponential(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x


NETWORKS = {
    "mlp": nn.Sequential(nn.Linear(DIM, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
    "decoder": nn.Sequential(
        nn.Linear(DIM, 16), nn.Unflatten(1, (4, 2, 2)), nn.ConvTranspose2d(4, 3, 4, 2, 1)
    ),
    "sum": Summing(),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rows", [0, ONNX_ROWS + 1])
def test_outputs_are_torchs_flattened(folder, export, name, rows):
    head = open_onnx(folder, export(NETWORKS[name]), dim=DIM)
    vectors = torch.randn(2 * DIM, rows).T[:, ::2]  # in an unusual order in memory
    with torch.no_grad():
        expected = NETWORKS[name](vectors).reshape(rows, head.outputs)
    assert (head.dim, head.outputs) == (DIM, {"mlp": 3, "decoder": 48, "sum": 1}[name])
    torch.testing.assert_close(head.run(vectors), expected, atol=1e-5, rtol=1e-5)


def test_a_stored_head_is_read_from_its_file_again_unless_the_file_has_changed(folder, export):
    name = export(NETWORKS["mlp"])
    head = open_onnx(folder, name, dim=DIM)
    again = open_onnx(folder, name, dim=DIM, digest=head.digest)
    vectors = torch.randn(3, DIM)
    assert torch.equal(again.run(vectors), head.run(vectors))
    export(NETWORKS["sum"])
    with pytest.raises(InvalidHead, match="has changed since the head was registered"):
        open_onnx(folder, name, dim=DIM, digest=head.digest)
    (folder / name).unlink()
    with pytest.raises(InvalidHead, match="no ONNX file"):
        open_onnx(folder, name, dim=DIM, digest=head.digest)


@pytest.mark.parametrize(
    "name",
    ["none.onnx", "../out.onnx", "sub/in.onnx", "link.onnx", "sub", "\0.onnx"],
)
def test_only_files_of_the_operators_folder_are_opened(folder, export, name):
    export(NETWORKS["mlp"]), export(NETWORKS["mlp"], "../out.onnx")
    (folder / "sub").mkdir()
    export(NETWORKS["mlp"], "sub/in.onnx")
    (folder / "link.onnx").symlink_to(folder / "head.onnx")
    (folder / "none.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidHead) as caught:
        open_onnx(folder, name, dim=DIM)
    assert caught.value.field == "file"
    assert str(folder) not in caught.value.detail


def test_without_a_folder_or_the_runtime_the_error_says_what_to_do(folder, export, monkeypatch):
    name = export(NETWORKS["mlp"])
    with pytest.raises(InvalidHead, match="ANCHORAGE_HEADS_DIR"):
        open_onnx(None, name, dim=DIM)
    monkeypatch.setattr("app.heads.onnx.find_spec", lambda name: None)
    with pytest.raises(InvalidHead, match=r"anchorage-server\[onnx\]"):
        open_onnx(folder, name, dim=DIM)


@pytest.mark.parametrize(
    ("network", "dim", "dynamic", "says"),
    [
        (NETWORKS["mlp"], DIM + 1, True, f"vectors of {DIM + 1} dimensions"),
        (NETWORKS["mlp"], DIM, False, "cannot run"),
        (Pair(), DIM, True, "2 outputs"),
        (nn.Sequential(nn.Linear(DIM, 2), nn.Flatten(0)), DIM, True, "dynamic batch axis"),
    ],
    ids=["other dimension", "one row", "two outputs", "rows mixed"],
)
def test_a_model_of_other_inputs_or_outputs_is_refused_when_it_is_opened(
    folder, export, network, dim, dynamic, says
):
    with pytest.raises(InvalidHead, match=says) as caught:
        open_onnx(folder, export(network, dynamic=dynamic), dim=dim)
    assert caught.value.field == "file"


def test_errors_name_the_rows_of_non_finite_outputs(folder, export):
    head = open_onnx(folder, export(Exponential()), dim=DIM)
    vectors = torch.zeros(4, DIM)
    vectors[2] = 1e4
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        head.run(vectors)
    assert (caught.value.field, caught.value.rows) == ("head", [2])
