"""ONNX heads: outputs equal to torch's, and files that cannot harm the service."""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from app.errors import AnchorageError, HeadTooSlow, InvalidHead
from app.heads.onnx import process as onnx_process
from app.heads.onnx.head import OnnxHead, load_onnx, make_onnx
from app.heads.onnx.process import OnnxProcess, OnnxRunner, ProcessDied
from app.heads.registry import load, make

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402  # after the check that it is installed

from app.heads.onnx import child  # noqa: E402  # as above

DIM = 16


def made(data: bytes, runner: OnnxRunner) -> OnnxHead:
    """Try a client's file and return its head."""
    return make_onnx(data, dim=DIM, runner=runner, owner="")


def stored(head: OnnxHead, runner: OnnxRunner) -> OnnxHead:
    """Load a head from the stored tensors of another."""
    return load_onnx(head.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=runner, owner="")


# Exports of torch


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


def here(data: bytes) -> child.OnnxSession:
    """Try and open a client's file in this process."""
    return child.open_session(child.try_file(data, DIM)[1])


@pytest.mark.parametrize(("opset", "dynamic"), [(13, True), (20, True), (17, False)])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_of_an_export_equal_torchs(name, dynamic, opset):
    session = here(export(NETWORKS[name], opset=opset, dynamic=dynamic))
    vectors = torch.randn(37, DIM, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = NETWORKS[name](vectors)
    assert tuple(session.shape) == SHAPES[name] == tuple(expected.shape[1:])
    torch.testing.assert_close(
        torch.from_numpy(session.run(vectors.numpy())), expected, atol=1e-5, rtol=1e-4
    )


@pytest.fixture(scope="module")
def mlp(runner: OnnxRunner) -> OnnxHead:
    return made(EXPORTS["mlp"], runner)


@pytest.mark.parametrize("n", [0, 1, 3, 1023, 1024, 2049])
def test_any_number_of_rows_runs(mlp, n):
    vectors = torch.randn(n, DIM)
    with torch.no_grad():
        torch.testing.assert_close(mlp.run(vectors), NETWORKS["mlp"](vectors), atol=1e-5, rtol=1e-5)


def test_the_memory_order_of_rows_does_not_matter(mlp):
    vectors = torch.randn(2 * DIM, 6)
    torch.testing.assert_close(mlp.run(vectors.T[:, ::2]), mlp.run(vectors.T[:, ::2].contiguous()))


def test_stored_tensors_rebuild_the_head_without_the_exporters_names(runner):
    model = onnx.load_model_from_string(EXPORTS["decoder"])
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "/home/ada/secret"
    model.graph.node[0].metadata_props.add(key="stack", value="/home/ada/secret")
    model.metadata_props.add(key="ort_config", value="/home/ada/secret")
    head = make("onnx", model.SerializeToString(), dim=DIM, runner=runner, owner="")
    again = load("onnx", head.tensors(), dim=DIM, runner=runner, owner="")
    vectors = torch.randn(3, DIM)
    assert (head.shape, again.shape) == (SHAPES["decoder"], SHAPES["decoder"])
    torch.testing.assert_close(again.run(vectors), head.run(vectors))
    assert b"ada" not in head.tensors()["onnx"].numpy().tobytes()


def test_threads_share_a_process(mlp):
    vectors = torch.randn(500, DIM)
    expected = mlp.run(vectors)
    with ThreadPoolExecutor(8) as threads:
        for answer in threads.map(mlp.run, [vectors] * 8):
            torch.testing.assert_close(answer, expected)


# Files written by hand


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
HALF, DOUBLE = (tensor(numpy_helper.to_array(W), "c", dtype) for dtype in (np.float16, np.float64))


@pytest.mark.parametrize(
    ("data", "weight"),
    [
        (model(), W),
        (
            model(
                "w = Constant() " + PRODUCT, constants=[], edit=lambda made: hold(made, "value", W)
            ),
            W,
        ),
        (model(x="float[n,16] x, float[16,4] w"), W),
        (model("w = Cast <to=1> (c) " + PRODUCT, constants=[HALF]), HALF),
        (model("w = Cast <to=1> (c) " + PRODUCT, constants=[DOUBLE]), DOUBLE),
    ],
    ids=["an initialiser", "a constant", "listed as an input", "of 16 bits", "of 64 bits"],
)
def test_weights_may_have_several_forms(data, weight):
    np.testing.assert_allclose(here(data).run(VECTORS), product(VECTORS, weight), rtol=1e-5)


def test_a_file_may_fix_its_batch_at_one_row_and_at_no_other_number(trial):
    fixed = "z = MatMul(x, w) y = Reshape(z, shape)"
    one = here(model(fixed, more="int64[3] shape = {1, 4, 1}", x="float[1,16] x"))
    assert (one.most, one.shape) == (1, [4, 1])
    np.testing.assert_allclose(one.run(VECTORS)[..., 0], product(VECTORS), rtol=1e-5)
    two = model(fixed, more="int64[3] shape = {2, 4, 1}", x="float[2,16] x")
    assert "cannot run the model on 1 rows" in refusal(trial, two)
    free = here(model(x="float[7,16] x", y="float[7,4] y"))
    assert (free.most, free.run(VECTORS[:5]).shape) == (1024, (5, 4))


def test_an_output_may_have_one_axis(runner):
    head = made(
        model("y = ReduceSum <keepdims=0> (x, i)", more="int64[1] i = {1}", y="float[n] y"), runner
    )
    again = stored(head, runner)
    assert (head.shape, again.shape, again.outputs) == ((), (), 1)
    vectors = torch.from_numpy(VECTORS)
    torch.testing.assert_close(again.run(vectors)[:, 0], vectors.sum(dim=1))


def test_errors_name_the_rows_of_non_finite_outputs(runner):
    head = made(model("z = MatMul(x, w) y = Exp(z)"), runner)
    vectors = torch.zeros(4, DIM)
    vectors[2] = 1e4 * torch.tensor(numpy_helper.to_array(W))[:, 0]
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        head.run(vectors)
    assert (caught.value.field, caught.value.rows) == ("head", [2])


# Rejected files


@pytest.fixture(scope="module")
def trial() -> Iterator[Callable[[bytes], None]]:
    """Tries files as the service does, in one process until it dies."""
    process: OnnxProcess | None = None

    def attempt(data: bytes) -> None:
        nonlocal process
        process = process or OnnxProcess(onnx_process.ONNX_TRIAL_BYTES)
        try:
            process.ask({"op": "try", "dim": DIM}, data, seconds=20.0, field="onnx")
        except (ProcessDied, HeadTooSlow):
            process = None
            raise

    yield attempt
    if process is not None:
        process.close()


def refusal(trial: Callable[[bytes], None], data: bytes) -> str:
    """The message for a rejected file."""
    with pytest.raises(AnchorageError) as caught:
        trial(data)
    assert caught.value.field == "onnx"
    return caught.value.detail


def holding(nodes: str, name: str, value: object) -> bytes:
    return model(nodes, edit=lambda made: hold(made, name, value))


def weight(*dims: int, **content: object) -> bytes:
    """A model whose weight is a tensor that numpy cannot build."""
    return model(
        constants=[
            onnx.TensorProto(name="w", **{"data_type": TensorProto.FLOAT, "dims": dims, **content})
        ]
    )


def external(**content: object) -> onnx.TensorProto:
    found = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[DIM, 4], **content)
    found.external_data.add(key="location", value="/etc/passwd")
    return found


EXTERNAL = external(data_location=TensorProto.EXTERNAL)
SPARSE = helper.make_sparse_tensor(tensor([1.0], "w"), tensor([0], "i", np.int64), [DIM, 4])
BRANCH = parser.parse_graph("b () => (float[n,16] b) { b = Identity(x) }")
FIRST = "int64[1] i = {0}"
NO_MODEL, INVALID = "not an ONNX model", "ONNX model is not valid"
BATCH, MIXES, CAST = "dynamic batch axis", "depends on other rows", "floats or booleans"
CONSTANT, NORM = "w = Constant() " + PRODUCT, "BatchNormalization <training_mode=1> (x, w, w, w, w)"

REFUSED = {
    "nothing": (b"", NO_MODEL),
    "text": (b"hello, world", NO_MODEL),
    "a zip": (b"PK\x03\x04" + bytes(100), NO_MODEL),
    "a pickle": (pickle.dumps(W.raw_data), NO_MODEL),
    "onnxruntime's own format": (b"ORTM" * 20, NO_MODEL),
    "external data": (model(constants=[EXTERNAL]), "outside the file"),
    "the name of external data": (
        model(constants=[external(raw_data=W.raw_data)]),
        "outside the file",
    ),
    "external data in a constant": (holding(CONSTANT, "value", EXTERNAL), "outside the file"),
    "external data in an attribute": (
        holding("y = ConstantOfShape(x)", "value", EXTERNAL),
        "outside the file",
    ),
    "sparse initialiser": (
        model(edit=lambda made: made.graph.sparse_initializer.append(SPARSE)),
        "sparse tensors, which are not allowed",
    ),
    "sparse constant": (holding(CONSTANT, "sparse_value", SPARSE), "contains sparse_tensor."),
    "function": (
        model(edit=lambda made: made.functions.add(name="f")),
        "functions, training information",
    ),
    "training": (
        model(edit=lambda made: made.training_info.add()),
        "functions, training information",
    ),
    "domain": (model("y = com.microsoft.Relu(x)"), "Operator 'com.microsoft.Relu' is not allowed"),
    "branch": (model("y = If(x)"), "Operator 'If' is not allowed"),
    "loop": (model("y = Loop(x)"), "Operator 'Loop' is not allowed"),
    "random": (model("y = RandomNormalLike(x)"), "Operator 'RandomNormalLike' is not allowed"),
    "a branch in a harmless node": (
        holding("y = Relu(x)", "body", BRANCH),
        "Relu.'body' contains g.",
    ),
    "branches in a harmless node": (holding("y = Relu(x)", "body", [BRANCH]), "contains graphs."),
    "tensors in a list": (holding("y = Relu(x)", "t", [EXTERNAL]), "contains tensors."),
    "old": (model(opsets=[("", 10)]), "not support operator set 10"),
    "new": (model(opsets=[("", 999)]), "not support operator set 999"),
    "no operators": (model(opsets=[("ai.onnx.ml", 1)]), "must do so once"),
    "two sets": (model(opsets=[("", 13), ("", 18)]), "must do so once"),
    "no nodes": (model("", y="float[n,16] x"), "no nodes"),
    "two inputs": (model(x="float[n,16] x, float[n,16] z"), "must have one, of shape"),
    "no input": (model("y = Relu(w)", x="float[16,4] w"), "must have one, of shape"),
    "two outputs": (model(y="float[n,4] y, float[n,16] x"), "must have one"),
    "other dimension": (model(x="float[n,17] x"), "it has ['?', 17]"),
    "three axes": (model(x="float[n,4,4] x"), "it has ['?', 4, 4]"),
    "no shape": (model(x="float[] x"), "it has []"),
    "whole numbers in": (model(x="int64[n,16] x"), "input 'x' must be a tensor of float32"),
    "doubles out": (
        model("y = Cast <to=11> (x)", y="double[n,16] y"),
        "output 'y' must be a tensor of float32",
    ),
    "a sequence": (model(y="seq(float[n,4]) y"), "output 'y' must be a tensor"),
    "a constant answer": (model(y="float[16,4] w"), BATCH),
    "transposed": (model("z = MatMul(x, w) y = Transpose(z)"), BATCH),
    "one answer for all": (model("y = ReduceSum(x)"), BATCH),
    "the batch times two": (model("y = Concat <axis=0> (x, x)"), BATCH),
    "mixed by softmax": (model("y = Softmax <axis=0> (x)"), MIXES),
    "mixed by its mean": (
        model("m = ReduceMean <keepdims=1> (x, i) y = Sub(x, m)", more=FIRST),
        MIXES,
    ),
    "dropout": (model("y = Dropout(x, , t)", more="bool t = {1}"), "evaluation mode"),
    "training mode": (
        model("y, m, v = " + NORM),
        "the limit is 1. Export the model in evaluation mode",
    ),
    "training mode, one output": (model("y = " + NORM), "is in training mode"),
    "NaN weight": (model(constants=[tensor(np.full((DIM, 4), np.nan))]), "NaN, infinity"),
    "infinite answer": (model("z = Sub(x, x) y = Div(x, z)"), "NaN, infinity"),
    "empty weight": (weight(DIM, 0, raw_data=b""), "or no numbers"),
    "text weight": (weight(1, data_type=TensorProto.STRING, string_data=[b"a"]), "must be dense"),
    "a segment": (
        weight(DIM, 4, raw_data=bytes(256), segment=TensorProto.Segment(begin=0, end=1)),
        "must be dense",
    ),
    "short data": (weight(DIM, 4, raw_data=bytes(7)), "256 bytes required"),
    "no data": (weight(DIM, 4), INVALID),
    "negative dims": (weight(-DIM, -4, raw_data=bytes(256)), "none of negative length"),
    "overflowing dims": (weight(2**32, 2**32, raw_data=b""), INVALID),
    "many dims": (weight(*[1] * 500, raw_data=bytes(4)), "at most 8 axes"),
    "cycle": (model("a = Add(x, b) b = Relu(a) y = Relu(b)"), "topologically sorted"),
    "one name, two weights": (model(constants=[W, W]), "not unique"),
    "unknown attribute": (model("y = Relu <surprise=1> (x)"), INVALID),
    "later operator": (model("y = Gelu(x)"), INVALID),
    "axis": (model("y = Softmax <axis=7> (x)"), "onnxruntime cannot load"),
    "far axis": (model(f"y = Softmax <axis={2**62}> (x)"), "must be from"),
    "product": (model("y = MatMul(x, x)"), "onnxruntime cannot run"),
    "to text": (model("y = Cast <to=8> (x)"), CAST),
    "shape from the vectors": (
        model("c = Cast <to=7> (x) s = Reshape(c, i) y = Expand(x, s)", more=FIRST),
        CAST,
    ),
    "a float shape": (model("y = Expand(x, x)"), "depend on the vectors"),
    "places from the vectors": (
        model("g = Greater(x, w) y = Gather(w, g)"),
        "depend on the vectors",
    ),
    "places of maxima": (model("y, p = MaxPool <kernel_shape=[2]> (x)"), "the limit is 1"),
    "overflow": (
        model("y = Reshape(x, i)", more=f"int64[2] i = {{{2**40}, -1}}"),
        "onnxruntime cannot run",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_names_what_is_not_allowed(trial, name):
    data, says = REFUSED[name]
    assert says in refusal(trial, data)


HUGE = 2**62
WINDOWS = [
    "strides=[0, 1]",
    "strides=[-1, 1]",
    f"dilations=[{2**40}, 1]",
    f"pads=[{HUGE}, {HUGE}, {HUGE}, {HUGE}]",
    "group=0",
]
WINDOWS += [
    "kernel_shape=[0, 2]",
    f"kernel_shape=[{2**31}, {2**31}]",
    "kernel_shape=[1000, 1000]",
    "pads=[5, 0, 0, 0]",
]
WINDOWS += [f"dilations=[{2**20}, {2**20}]", "strides=[1, 1, 1, 1, 1, 1, 1, 1, 1]", 'auto_pad="up"']


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool"])
def test_any_window_runs_or_is_rejected(trial, op, window):
    """Attributes that other runtimes divide by, or allocate by."""
    side = ", kernel_shape=[2, 2]" if op == "MaxPool" and "kernel_shape" not in window else ""
    nodes = f"a = Reshape(x, i) y = {op} <{window}{side}> (a{'' if op == 'MaxPool' else ', k'})"
    try:
        trial(
            model(
                nodes,
                more="int64[4] i = {-1, 1, 4, 4}, float[1,1,2,2] k = {1, 1, 1, 1}",
                y="float[] y",
            )
        )
    except AnchorageError as error:
        assert error.field == "onnx"  # noqa: PT017  # some are fine


# Attacks


def sums(nodes: str, more: str) -> bytes:
    """A model that adds to its input the sum of `c`, which the nodes compute from constants."""
    return model(
        f"{nodes} s = ReduceSum <keepdims=0> (c) y = Add(x, s)",
        constants=[],
        more=more,
        y="float[n,16] y",
    )


def outer(power: int) -> bytes:
    """A product of two long vectors."""
    nodes = "a = ConstantOfShape <value = float[1] {1}> (i) t = Transpose(a) c = MatMul(t, a)"
    return sums(nodes, f"int64[2] i = {{1, {2**power}}}")


def doubling() -> bytes:
    """Constants that double up to 2^43 numbers."""
    nodes = [f"c{i + 1} = Concat <axis=0> (c{i}, c{i})" for i in range(40)]
    return sums(" ".join(nodes) + " c = Identity(c40)", "float[8] c0 = {1, 1, 1, 1, 1, 1, 1, 1}")


def costly() -> bytes:
    """2^33 multiply-adds, a thousand times."""
    nodes = [
        "c0 = ConstantOfShape <value = float[1] {0.001}> (i)",
        *(f"c{i + 1} = MatMul(c{i}, c0)" for i in range(990)),
    ]
    return sums(" ".join(nodes) + " c = Identity(c990)", "int64[2] i = {2048, 2048}")


def message(number: int, content: bytes) -> bytes:
    """A field of protobuf's wire format that holds a message."""
    size, left = bytearray(), len(content)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([number << 3 | 2, *size, left]) + content


def nested() -> bytes:
    graph = b""
    for _ in range(2_000):  # a graph of a node of an attribute of a graph
        graph = message(1, message(5, message(6, graph)))
    return message(7, graph)


LONG_LIST = "s = Expand(j, i) y = Expand(x, s)"
ZERO = "n = Shape(x) z = Sub(n, n) d = Div(n, z) y = Expand(x, d)"
WIDE = "a = Unsqueeze(x, j) y = Expand(a, i)"
ATTACKS = {
    "constants that double": (doubling, "invalid-head"),
    "a product of 4 GiB": (lambda: outer(15), "invalid-head"),
    "a product of 2^60 numbers": (lambda: outer(30), "invalid-head"),
    "minutes of products": (costly, "head-too-slow"),
    "a list of 2^31 numbers": (
        lambda: model(LONG_LIST, more=f"int64[1] i = {{{2**31 - 1}}}, int64[1] j = {{1}}"),
        "invalid-head",
    ),
    "a division by zero": (lambda: model(ZERO, y="float[] y"), "invalid-head"),
    "answers of 16 MiB": (
        lambda: model(WIDE, more="int64[3] i = {1, 16, 262144}, int64[1] j = {2}"),
        "head-too-large",
    ),
    "1001 nodes": (
        lambda: model(" ".join(f"c{i} = Relu(x)" for i in range(1001))),
        "head-too-large",
    ),
    "eight million empty nodes": (lambda: message(7, message(1, b"") * 2**23), "head-too-large"),
    "nested graphs": (nested, "invalid-head"),
}


def memory() -> int:
    """Bytes of this process, in the place of the service."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_rejected_in_time_without_memory_of_the_service(runner, monkeypatch, name):
    make_it, code = ATTACKS[name]
    if code == "head-too-slow":
        monkeypatch.setattr(onnx_process, "ONNX_TRIAL_S", 4.0)
    data = make_it()
    before, start = memory(), time.monotonic()
    with pytest.raises(AnchorageError) as caught:
        made(data, runner)
    assert (caught.value.code, caught.value.field) == (code, "onnx")
    assert time.monotonic() - start < 25
    assert memory() - before < 4 * len(data) + 64 * 2**20


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package_the_error_says_what_to_install(monkeypatch, runner, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidHead, match=r"pip install 'anchorage-server\[onnx\]'"):
        made(EXPORTS["mlp"], runner)


# Damage


@given(
    st.sampled_from(["mlp", "decoder", "pools", "view"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.floats(0.5, 1.5),
)
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_read_or_rejected(trial, name, changes, share):
    data = bytearray(EXPORTS[name])
    for place, byte in changes:
        data[int(place * (len(data) - 1))] = byte
    try:
        trial(bytes(data[: int(share * len(data))]))
    except (AnchorageError, ProcessDied):
        return  # the process died, and the service did not
    assert share > 0.9
