"""ONNX files for the tests, and functions that try them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
import pytest
import torch
from torch import nn

from app.heads.onnx.head import OnnxHead, load_onnx, make_onnx
from app.heads.onnx.process import OnnxRunner

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper, parser  # noqa: E402  # after the check that it is installed

from app.heads.onnx import child  # noqa: E402  # as above

DIM = 16


def make_head(data: bytes, runner: OnnxRunner) -> OnnxHead:
    """Try a client's file and return its head."""
    return make_onnx(data, dim=DIM, runner=runner, owner="")


def reload_head(head: OnnxHead, runner: OnnxRunner) -> OnnxHead:
    """Load a head from the stored tensors of another."""
    return load_onnx(head.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=runner, owner="")


def export(network: nn.Module, *, opset: int = 17, dynamic: bool = True) -> bytes:
    """A file of torch.onnx.export; without `dynamic` its batch has one row."""
    file, rows = BytesIO(), torch.randn(2 if dynamic else 1, DIM)
    names = {
        "input_names": ["x"],
        "output_names": ["y"],
        "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}} if dynamic else None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its deprecation
        torch.onnx.export(network.eval(), rows, file, dynamo=False, opset_version=opset, **names)
    return file.getvalue()


class View(nn.Module):
    """A common decoder: the graph computes the batch size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 4, 2, 2)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    curves = [
        nn.ELU,
        nn.SELU,
        nn.CELU,
        nn.SiLU,
        nn.Mish,
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.Softplus,
        nn.Softsign,
        nn.Hardtanh,
    ]
    curves += [nn.LeakyReLU, nn.Tanh, nn.Sigmoid]
    norms = [
        nn.GELU(),
        nn.LayerNorm(32),
        nn.Dropout(),
        nn.Linear(32, 8),
        nn.BatchNorm1d(8),
        nn.PReLU(),
    ]
    up = [
        nn.ReLU(),
        nn.Unflatten(1, (8, 2, 2)),
        nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 8, 4, 2, 1),
        nn.SiLU(),
    ]
    image = [
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Sigmoid(),
    ]
    square = [
        nn.Unflatten(1, (4, 4, 4)),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.MaxPool2d(2),
    ]
    pools = [
        nn.InstanceNorm2d(4, affine=True),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    found = {
        "mlp": nn.Sequential(nn.Linear(DIM, 32), *norms),
        "activations": nn.Sequential(
            nn.Linear(DIM, 8), *(curve() for curve in curves), nn.Softmax(1), nn.LogSoftmax(1)
        ),
        "decoder": nn.Sequential(nn.Linear(DIM, 32), *up, *image),
        "view": nn.Sequential(
            nn.Linear(DIM, 32), View(), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 3, 2, 2)
        ),
        "pools": nn.Sequential(nn.Linear(DIM, 64), *square, *pools),
    }
    for network in found.values():
        for name, tensor in network.state_dict().items():
            if name.endswith(("running_mean", "running_var")):
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return found


NETWORKS = networks()
SHAPES = {
    "mlp": (8,),
    "activations": (8,),
    "decoder": (3, 16, 16),
    "view": (3, 8, 8),
    "pools": (4,),
}
EXPORTS = {name: export(network) for name, network in NETWORKS.items()}


def open_here(data: bytes) -> child.OnnxSession:
    """Try and open a client's file in this process."""
    return child.open_session(child.try_file(data, DIM)[1])


def tensor(values: object, name: str = "w", dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


W = tensor(np.random.default_rng(0).normal(size=(DIM, 4)))
PRODUCT = "y = MatMul(x, w)"


def model(
    nodes: str = PRODUCT,
    *,
    constants: Sequence[onnx.TensorProto] = (W,),
    more: str = "",
    x: str = "float[n,16] x",
    y: str = "float[n,4] y",
    opsets: Sequence[tuple[str, int]] = (("", 18),),
    edit: Callable[[onnx.ModelProto], object] = lambda model: None,
) -> bytes:
    """A file from ONNX's text form: nodes, input x, output y, and constants."""
    graph = parser.parse_graph(f"g ({x}) => ({y}) <{more}> {{ {nodes} }}")
    graph.initializer.extend(constants)
    found = helper.make_model(
        graph, ir_version=9, opset_imports=[helper.make_opsetid(*opset) for opset in opsets]
    )
    edit(found)
    return found.SerializeToString()


def hold(model: onnx.ModelProto, name: str, value: object) -> None:
    """Set an attribute of the first node that has no text form."""
    model.graph.node[0].attribute.append(helper.make_attribute(name, value))


def product(vectors: np.ndarray, weight: onnx.TensorProto = W) -> np.ndarray:
    return vectors @ numpy_helper.to_array(weight).astype(np.float32)


VECTORS = np.random.default_rng(1).standard_normal((9, DIM), dtype=np.float32)
