"""ONNX heads: they compute what torch computes, in a process that no file can use to harm the service."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from torch import nn

from app.errors import AnchorageError, HeadTooSlow, InvalidHead, Overloaded, TooMuchAtOnce
from app.heads import onnx_process
from app.heads.onnx import OnnxHead, load_onnx, make_onnx
from app.heads.onnx_process import Died, Line, OnnxRunner, Process
from app.heads.registry import load, make
from app.main import create_app
from app.settings import Settings

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402  # after the check that it is there

from app.heads import onnx_child  # noqa: E402  # as above

DIM = 16
DTYPE = TensorProto.FLOAT


@pytest.fixture(scope="module")
def runner() -> Iterator[OnnxRunner]:
    """The process that the heads of these tests share."""
    made = OnnxRunner()
    yield made
    made.close()


# --- what torch exports ---------------------------------------------------------------------------------------------------


def export(network: nn.Module, *, opset: int = 17, dynamic: bool = True, batch: int = 2) -> bytes:
    """A file as torch.onnx.export writes it."""
    file = BytesIO()
    axes = {"x": {0: "batch"}, "y": {0: "batch"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own deprecation
        torch.onnx.export(
            network.eval(),
            torch.randn(batch, DIM),
            file,
            dynamo=False,
            opset_version=opset,
            dynamic_axes=axes,
            input_names=["x"],
            output_names=["y"],
        )
    return file.getvalue()


class View(nn.Module):
    """The way to an image that most decoders are written in: its batch size is computed in the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 4, 2, 2)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    found = {
        "mlp": nn.Sequential(
            nn.Linear(DIM, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(), nn.Linear(32, 8), nn.BatchNorm1d(8), nn.PReLU()
        ),
        "activations": nn.Sequential(
            nn.Linear(DIM, 8),
            nn.ELU(),
            nn.SELU(),
            nn.CELU(),
            nn.SiLU(),
            nn.Mish(),
            nn.Hardswish(),
            nn.Hardsigmoid(),
            nn.Softplus(),
            nn.Softsign(),
            nn.Hardtanh(),
            nn.LeakyReLU(),
            nn.Tanh(),
            nn.Sigmoid(),
            nn.Softmax(1),
            nn.LogSoftmax(1),
        ),
        "decoder": nn.Sequential(
            nn.Linear(DIM, 32),
            nn.ReLU(),
            nn.Unflatten(1, (8, 2, 2)),
            nn.BatchNorm2d(8),
            nn.ConvTranspose2d(8, 8, 4, 2, 1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(8, 12, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Sigmoid(),
        ),
        "view": nn.Sequential(nn.Linear(DIM, 32), View(), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 3, 2, 2)),
        "pools": nn.Sequential(
            nn.Linear(DIM, 64),
            nn.Unflatten(1, (4, 4, 4)),
            nn.GroupNorm(2, 4),
            nn.Conv2d(4, 4, 3, padding=1, groups=2),
            nn.MaxPool2d(2),
            nn.InstanceNorm2d(4, affine=True),
            nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
    }
    for network in found.values():
        for name, tensor in network.state_dict().items():
            if name.endswith(("running_mean", "running_var")):
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return found


NETWORKS = networks()
SHAPES = {"mlp": (8,), "activations": (8,), "decoder": (3, 16, 16), "view": (3, 8, 8), "pools": (4,)}
EXPORTS = {name: export(network) for name, network in NETWORKS.items()}


def here(data: bytes) -> onnx_child.Session:
    """A client's file, tried and opened in this process."""
    return onnx_child.open_model(onnx_child.try_file(data, DIM)[1])


@pytest.mark.parametrize(("opset", "dynamic"), [(13, True), (20, True), (17, False)])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_computes_what_torch_computes(name, dynamic, opset):
    session = here(export(NETWORKS[name], opset=opset, dynamic=dynamic, batch=2 if dynamic else 1))
    vectors = torch.randn(37, DIM, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = NETWORKS[name](vectors)
    assert tuple(session.shape) == SHAPES[name] == tuple(expected.shape[1:])
    torch.testing.assert_close(torch.from_numpy(session.run(vectors.numpy())), expected, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def mlp(runner: OnnxRunner) -> OnnxHead:
    return make_onnx(EXPORTS["mlp"], dim=DIM, runner=runner, owner="")


@pytest.mark.parametrize("n", [0, 1, 3, 1023, 1024, 2049])
def test_any_number_of_rows_is_run(mlp, n):
    vectors = torch.randn(n, DIM)
    with torch.no_grad():
        torch.testing.assert_close(mlp.run(vectors), NETWORKS["mlp"](vectors), atol=1e-5, rtol=1e-5)


def test_rows_in_other_memory_orders_are_the_same_rows(mlp):
    vectors = torch.randn(2 * DIM, 6)
    torch.testing.assert_close(mlp.run(vectors.T[:, ::2]), mlp.run(vectors.T[:, ::2].contiguous()))


def test_tensors_make_the_same_head_again_and_hold_nothing_of_who_exported_it(runner):
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
    vectors, answers = torch.randn(500, DIM), {}
    threads = [Thread(target=lambda i=i: answers.__setitem__(i, mlp.run(vectors))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    for answer in answers.values():
        torch.testing.assert_close(answer, answers[0])


# --- what is built by hand ------------------------------------------------------------------------------------------------


def tensor(values: object, name: str = "w", dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def value(name: str, shape: list[object] | None, dtype: int = DTYPE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


W = tensor(np.random.default_rng(0).normal(size=(DIM, 4)))
NODE = helper.make_node("MatMul", ["x", "w"], ["y"])


def model(
    *nodes: onnx.NodeProto,
    constants: Sequence[onnx.TensorProto] = (W,),
    inputs: object = None,
    outputs: object = None,
    opset: int = 18,
    **more: object,
) -> onnx.ModelProto:
    """A model from x (n, 16) to y (n, 4), unless told otherwise."""
    graph = helper.make_graph(
        list(nodes) or [NODE], "g", inputs or [value("x", ["n", DIM])], outputs or [value("y", ["n", 4])], list(constants)
    )
    return helper.make_model(graph, **{"ir_version": 9, "opset_imports": [helper.make_opsetid("", opset)], **more})


def node(op: str, inputs: list[str], outputs: Sequence[str] = ("y",), **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def opened(made: onnx.ModelProto) -> onnx_child.Session:
    return here(made.SerializeToString())


def product(vectors: np.ndarray, weight: onnx.TensorProto = W) -> np.ndarray:
    return vectors @ numpy_helper.to_array(weight).astype(np.float32)


VECTORS = np.random.default_rng(1).standard_normal((9, DIM), dtype=np.float32)


def test_weights_may_be_constants_or_listed_as_inputs_and_of_other_floats():
    np.testing.assert_allclose(opened(model()).run(VECTORS), product(VECTORS), rtol=1e-5)
    constant = model(node("Constant", [], ["w"], value=W), NODE, constants=[])
    np.testing.assert_allclose(opened(constant).run(VECTORS), product(VECTORS), rtol=1e-5)
    listed = model(inputs=[value("x", ["n", DIM]), value("w", [DIM, 4])])
    np.testing.assert_allclose(opened(listed).run(VECTORS), product(VECTORS), rtol=1e-5)
    for dtype in (np.float16, np.float64):
        half = tensor(numpy_helper.to_array(W), "half", dtype)
        cast = opened(model(node("Cast", ["half"], ["w"], to=DTYPE), NODE, constants=[half]))
        np.testing.assert_allclose(cast.run(VECTORS), product(VECTORS, half), rtol=1e-5)


def test_a_batch_that_the_file_fixes_is_run_row_by_row_if_it_is_one_or_told_to_be_free(trial):
    fixed = [node("MatMul", ["x", "w"], ["z"]), node("Reshape", ["z", "shape"])]
    one = opened(model(*fixed, constants=[W, tensor([1, 4, 1], "shape", np.int64)], inputs=[value("x", [1, DIM])]))
    assert (one.most, one.shape) == (1, [4, 1])
    np.testing.assert_allclose(one.run(VECTORS)[..., 0], product(VECTORS), rtol=1e-5)
    two = model(*fixed, constants=[W, tensor([2, 4, 1], "shape", np.int64)], inputs=[value("x", [2, DIM])])
    assert "cannot run the model on 1 rows" in refusal(trial, two)
    free = opened(model(inputs=[value("x", [7, DIM])], outputs=[value("y", [7, 4])]))
    assert (free.most, free.run(VECTORS[:5]).shape) == (1024, (5, 4))


def test_a_number_for_each_row_needs_no_axis_of_its_own(runner):
    made = model(node("ReduceSum", ["x", "i"], keepdims=0), constants=[integers(1)], outputs=[value("y", ["n"])])
    head = make_onnx(made.SerializeToString(), dim=DIM, runner=runner, owner="")
    again = load_onnx(head.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=runner, owner="")
    assert (head.shape, again.shape, again.outputs) == ((), (), 1)
    vectors = torch.from_numpy(VECTORS)
    torch.testing.assert_close(again.run(vectors)[:, 0], vectors.sum(dim=1))


def test_what_is_not_finite_at_run_time_names_its_rows(runner):
    root = model(node("MatMul", ["x", "w"], ["z"]), node("Exp", ["z"]))
    head = make_onnx(root.SerializeToString(), dim=DIM, runner=runner, owner="")
    vectors = torch.zeros(4, DIM)
    vectors[2] = 1e4 * torch.tensor(numpy_helper.to_array(W))[:, 0]
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        head.run(vectors)
    assert (caught.value.field, caught.value.rows) == ("head", [2])


# --- what is refused ------------------------------------------------------------------------------------------------------


class Trials:
    """One process for the trials of many files: a new one starts only after a death."""

    def __init__(self) -> None:
        self.process: Process | None = None

    def __call__(self, data: bytes) -> None:
        """Raises the error that a file is refused with, or Died."""
        self.process = self.process or Process(onnx_process.TRIAL_BYTES)
        try:
            self.process.ask({"op": "try", "dim": DIM}, data, seconds=20.0, field="onnx")
        except (Died, HeadTooSlow):
            self.process = None
            raise


@pytest.fixture(scope="module")
def trial() -> Iterator[Trials]:
    trials = Trials()
    yield trials
    if trials.process is not None:
        trials.process.close()


def refusal(trial: Trials, made: onnx.ModelProto | bytes) -> str:
    """What is said of a file that is refused."""
    with pytest.raises(AnchorageError) as caught:
        trial(made if isinstance(made, bytes) else made.SerializeToString())
    assert caught.value.field == "onnx"
    return caught.value.detail


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, world",
        hashlib.sha512(b"noise").digest() * 16,
        pickle.dumps(W.raw_data),
        b"ORTM" * 20,
    ],
)
def test_what_is_no_model_is_refused(trial, data):
    assert "not an ONNX model" in refusal(trial, data)


def external(name: str = "w") -> onnx.TensorProto:
    found = onnx.TensorProto(name=name, data_type=DTYPE, dims=[DIM, 4], data_location=TensorProto.EXTERNAL)
    found.external_data.add(key="location", value="/etc/passwd")
    return found


def only_named() -> onnx.TensorProto:
    found = onnx.TensorProto()
    found.CopyFrom(W)
    found.external_data.add(key="location", value="../secret")
    return found


def sparse() -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(tensor([1.0], "w"), tensor([0], "i", np.int64), [DIM, 4])


def branch() -> onnx.GraphProto:
    return helper.make_graph([node("Identity", ["x"], ["b"])], "b", [], [value("b", ["n", DIM])])


def with_list(attribute: onnx.AttributeProto) -> onnx.NodeProto:
    made = node("Relu", ["x"])
    made.attribute.append(attribute)
    return made


def function() -> onnx.ModelProto:
    made = model()
    made.functions.append(
        helper.make_function("own", "f", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 18)])
    )
    return made


def sparse_initialiser() -> onnx.ModelProto:
    made = model(constants=[])
    made.graph.sparse_initializer.append(sparse())
    return made


def dims(*sides: int, **content: object) -> onnx.TensorProto:
    return onnx.TensorProto(name="w", data_type=DTYPE, dims=sides, **content)


def integers(*values: int) -> onnx.TensorProto:
    return tensor(values, "i", np.int64)


def to(kind: int, *then: onnx.NodeProto) -> onnx.ModelProto:
    """The vectors cast to another type, and what is done to them then."""
    return model(node("Cast", ["x"], ["c"], to=kind), *then, constants=[integers(0)])


INT64 = TensorProto.INT64
REFUSED = {
    "external data": (lambda: model(constants=[external()]), "outside the file"),
    "the name of external data": (lambda: model(constants=[only_named()]), "outside the file"),
    "external data in a constant": (
        lambda: model(node("Constant", [], ["w"], value=external()), NODE, constants=[]),
        "outside the file",
    ),
    "external data in an attribute": (
        lambda: model(node("ConstantOfShape", ["i"], value=external()), constants=[integers(1, 4)]),
        "outside the file",
    ),
    "sparse initialiser": (sparse_initialiser, "sparse"),
    "sparse constant": (lambda: model(node("Constant", [], ["w"], sparse_value=sparse()), NODE, constants=[]), "sparse"),
    "function": (function, "functions, training information"),
    "domain": (lambda: model(node("Relu", ["x"], domain="com.microsoft")), "operator 'com.microsoft.Relu' is not allowed"),
    "branch": (
        lambda: model(node("If", ["c"], then_branch=branch(), else_branch=branch()), constants=[tensor(True, "c", bool)]),
        "operator 'If' is not allowed",
    ),
    "loop": (lambda: model(node("Loop", ["m", "c", "x"], body=branch())), "operator 'Loop' is not allowed"),
    "random": (lambda: model(node("RandomNormalLike", ["x"])), "operator 'RandomNormalLike' is not allowed"),
    "a branch in a harmless node": (lambda: model(node("Relu", ["x"], body=branch())), "Relu.'body' holds g;"),
    "tensors in a list": (lambda: model(with_list(helper.make_attribute("t", [external()]))), "holds tensors;"),
    "old": (lambda: model(opset=10), "operator set 10 is not supported"),
    "new": (lambda: model(opset=999), "operator set 999 is not supported"),
    "no nodes": (
        lambda: helper.make_model(helper.make_graph([], "g", [value("x", ["n", DIM])], [value("x", ["n", DIM])])),
        "no nodes",
    ),
    "two inputs": (lambda: model(inputs=[value("x", ["n", DIM]), value("z", ["n", DIM])]), "one input"),
    "no input": (lambda: model(node("Relu", ["w"]), inputs=[value("w", [DIM, 4])]), "one input"),
    "other dimension": (lambda: model(inputs=[value("x", ["n", 17])]), "it has ['?', 17]"),
    "three axes": (lambda: model(inputs=[value("x", ["n", 4, 4])]), "it has ['?', 4, 4]"),
    "whole numbers in": (lambda: model(inputs=[value("x", ["n", DIM], INT64)]), "input 'x' must be a tensor of float32"),
    "nobody's output": (lambda: model(outputs=[value("q", ["n", 4])]), "not a valid ONNX model"),
    "a constant answer": (lambda: model(outputs=[value("w", [DIM, 4])]), "dynamic batch axis"),
    "transposed": (lambda: model(node("MatMul", ["x", "w"], ["z"]), node("Transpose", ["z"])), "dynamic batch axis"),
    "one answer for all": (lambda: model(node("ReduceSum", ["x"])), "dynamic batch axis"),
    "mixed by softmax": (lambda: model(node("Softmax", ["x"], axis=0)), "mixes rows"),
    "mixed by its mean": (
        lambda: model(node("ReduceMean", ["x", "i"], ["m"], keepdims=1), node("Sub", ["x", "m"]), constants=[integers(0)]),
        "mixes rows",
    ),
    "dropout": (lambda: model(node("Dropout", ["x", "", "t"]), constants=[tensor(True, "t", bool)]), "evaluation mode"),
    "training mode": (
        lambda: model(node("BatchNormalization", ["x", "w", "w", "w", "w"], ["y", "m", "v"], training_mode=1)),
        "evaluation mode",
    ),
    "NaN weight": (lambda: model(constants=[tensor(np.full((DIM, 4), np.nan))]), "NaN, infinity"),
    "infinite answer": (lambda: model(node("Sub", ["x", "x"], ["z"]), node("Div", ["x", "z"])), "NaN, infinity"),
    "text weight": (lambda: model(constants=[helper.make_tensor("w", TensorProto.STRING, [1], [b"a"])]), "must be dense"),
    "a segment": (
        lambda: model(constants=[dims(DIM, 4, raw_data=bytes(256), segment=TensorProto.Segment(begin=0, end=1))]),
        "must be dense",
    ),
    "short data": (lambda: model(constants=[dims(DIM, 4, raw_data=bytes(7))]), "256 bytes required"),
    "negative dims": (lambda: model(constants=[dims(-DIM, -4, raw_data=bytes(256))]), "none of them negative"),
    "cycle": (
        lambda: model(node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"])),
        "topologically sorted",
    ),
    "one name, two nodes": (lambda: model(node("Relu", ["x"]), node("Abs", ["x"])), "single static assignment"),
    "far axis": (lambda: model(node("Softmax", ["x"], axis=2**62)), "must lie between"),
    "shape from the vectors": (
        lambda: to(INT64, node("Reshape", ["c", "i"], ["s"]), node("Expand", ["x", "s"])),
        "floats or truth values",
    ),
    "a float shape": (lambda: model(node("Expand", ["x", "x"])), "depend on the vectors"),
    "places from the vectors": (lambda: model(node("Greater", ["x", "w"], ["g"]), node("Gather", ["w", "g"])), "depend on"),
    "division by the vectors": (lambda: to(INT64, node("Div", ["c", "c"], ["d"]), node("Cast", ["d"], to=1)), "truth values"),
    "places of maxima": (lambda: model(node("MaxPool", ["x"], ["y", "p"], kernel_shape=[2])), "one output"),
    "overflow": (lambda: model(node("Reshape", ["x", "i"]), constants=[integers(2**40, -1)]), "onnxruntime cannot run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_allowed_is_refused_and_named(trial, name):
    make_it, says = REFUSED[name]
    assert says in refusal(trial, make_it())


def test_a_window_of_any_kind_is_run_or_refused(trial):
    """By attributes that other runtimes divide by, or allocate by."""
    attributes = [
        {"strides": [0, 1]},
        {"strides": [-1, 1]},
        {"dilations": [2**40, 1]},
        {"pads": [2**62] * 4},
        {"kernel_shape": [0, 2]},
        {"kernel_shape": [2**31, 2**31]},
        {"group": 0},
        {"pads": [5, 0, 0, 0]},
        {"kernel_shape": [1000, 1000]},
        {"dilations": [2**20, 2**20]},
        {"strides": [1] * 9},
        {"auto_pad": "up"},
    ]
    for op in ("Conv", "ConvTranspose", "MaxPool"):
        for each in attributes:
            made = model(
                node("Reshape", ["x", "i"], ["a"]),
                node(op, ["a", "k"], **each) if op != "MaxPool" else node(op, ["a"], **{"kernel_shape": [2, 2], **each}),
                constants=[integers(-1, 1, 4, 4), tensor(np.ones((1, 1, 2, 2)), "k")],
                outputs=[value("y", None)],
            )
            try:
                trial(made.SerializeToString())
            except AnchorageError as error:
                assert error.field == "onnx"  # noqa: PT017  # some are fine


# --- what would harm the service ------------------------------------------------------------------------------------------


def sums(*nodes: onnx.NodeProto, constants: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    """A model that adds the sum of `c`, which the nodes make of constants, to its input."""
    last = [node("ReduceSum", ["c"], ["s"], keepdims=0), node("Add", ["x", "s"])]
    return model(*nodes, *last, constants=constants, outputs=[value("y", ["n", DIM])])


def doubling() -> onnx.ModelProto:
    """Constants that double, and would be 2^43 numbers."""
    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)]
    return sums(*nodes, node("Identity", ["c40"], ["c"]), constants=[tensor(np.ones(8), "c0")])


def outer(power: int) -> onnx.ModelProto:
    """A product of two long vectors."""
    filled = node("ConstantOfShape", ["i"], ["a"], value=tensor([1.0]))
    return sums(
        filled,
        node("Transpose", ["a"], ["t"]),
        node("MatMul", ["t", "a"], ["c"]),
        constants=[integers(1, 2**power)],
    )


def costly() -> onnx.ModelProto:
    """2^33 multiply-adds, a thousand times."""
    filled = node("ConstantOfShape", ["i"], ["c0"], value=tensor([1e-3]))
    nodes = [node("MatMul", [f"c{i}", "c0"], [f"c{i + 1}"]) for i in range(990)]
    return sums(filled, *nodes, node("Identity", ["c990"], ["c"]), constants=[integers(2**11, 2**11)])


def long_list() -> onnx.ModelProto:
    return model(node("Expand", ["j", "i"], ["s"]), node("Expand", ["x", "s"]), constants=[integers(2**31 - 1), integers_as("j")])


def integers_as(name: str) -> onnx.TensorProto:
    return tensor([1], name, np.int64)


def zero_division() -> onnx.ModelProto:
    """Of whole numbers that only a run computes."""
    zero = [node("Shape", ["x"], ["n"]), node("Sub", ["n", "n"], ["z"])]
    return model(*zero, node("Div", ["n", "z"], ["d"]), node("Expand", ["x", "d"]), outputs=[value("y", None)])


def wide() -> onnx.ModelProto:
    return model(
        node("Unsqueeze", ["x", "j"], ["a"]),
        node("Expand", ["a", "i"]),
        constants=[integers(1, DIM, 2**18), tensor([2], "j", np.int64)],
        outputs=[value("y", None)],
    )


def long_model() -> onnx.ModelProto:
    return model(*[node("Relu", ["x"], [f"c{i}"]) for i in range(1001)])


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


ATTACKS = {
    "constants that double": (doubling, "invalid-head"),
    "a product of 4 GiB": (lambda: outer(15), "invalid-head"),
    "a product of 2^60 numbers": (lambda: outer(30), "invalid-head"),
    "minutes of products": (costly, "head-too-slow"),
    "a list of 2^31 numbers": (long_list, "invalid-head"),
    "a division by zero": (zero_division, "invalid-head"),
    "answers of 16 MiB": (wide, "head-too-large"),
    "1001 nodes": (long_model, "head-too-large"),
    "eight million empty nodes": (lambda: message(7, message(1, b"") * 2**23), "head-too-large"),
    "nested graphs": (nested, "invalid-head"),
    "external data": (lambda: model(constants=[external()]), "invalid-head"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings_ = Settings(data_dir=tmp_path_factory.mktemp("attacked"))
    with TestClient(create_app(settings_), base_url="http://127.0.0.1", raise_server_exceptions=False) as made:
        made.post("/encoders", json={"name": "e", "dim": DIM})
        yield made


def upload(client: TestClient, name: str, data: bytes):
    body = {"name": name, "kind": "onnx", "encoder": "e", "output": {"kind": "numbers"}, "onnx": base64.b64encode(data).decode()}
    return client.post("/heads", json=body)


def memory() -> int:
    """Bytes of this process, which is the service's."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_the_service_goes_on(client, monkeypatch, name):
    make_it, code = ATTACKS[name]
    if code == "head-too-slow":
        monkeypatch.setattr(onnx_process, "TRIAL_S", 4.0)
    made = make_it()
    data = made if isinstance(made, bytes) else made.SerializeToString()
    before, start = memory(), time.monotonic()
    answer = upload(client, "attack", data)
    assert 400 <= answer.status_code < 500
    assert answer.json()["code"] == code, answer.text
    assert time.monotonic() - start < 25
    assert memory() - before < 4 * len(data) + 64 * 2**20
    assert client.get("/heads").json()["heads"] == []


def children() -> int:
    """ONNX processes of this one."""
    found = 0
    for child in Path("/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            try:
                found += b"app.heads.onnx_child" in Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # it has ended
                continue
    return found


def test_uploads_wait_for_few_processes_and_further_ones_are_refused(client, monkeypatch):
    line = Line("try an ONNX file", at_once=1, most=3, share=3, wait_s=30.0)
    monkeypatch.setattr(client.app.state.services.onnx, "_trials", line)
    before, most, answers = children(), 0, []
    threads = [Thread(target=lambda i=i: answers.append(upload(client, f"u{i}", EXPORTS["mlp"]))) for i in range(12)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, children())
        time.sleep(0.01)
    for place in range(12):
        client.delete(f"/heads/u{place}")
    codes = sorted(answer.status_code for answer in answers)
    assert most <= before + 1
    assert set(codes) == {201, 429}
    assert codes.count(201) >= 4
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)


# --- the process ----------------------------------------------------------------------------------------------------------


def slow_model(nodes: int = 200) -> bytes:
    made = [node("MatMul", [f"c{i}" if i else "x", "w"], [f"c{i + 1}"]) for i in range(nodes)]
    return model(*made, constants=[tensor(np.eye(DIM))], outputs=[value(f"c{nodes}", ["n", DIM])]).SerializeToString()


def test_a_head_that_is_slow_is_stopped_and_works_again_after(runner):
    slow = make_onnx(slow_model(), dim=DIM, runner=runner, owner="")
    vectors = torch.randn(300_000, DIM)
    with pytest.raises(HeadTooSlow, match=r"within 0\.05 s"):
        slow.run(vectors, seconds=0.05)
    torch.testing.assert_close(slow.run(vectors[:100]), vectors[:100])


def test_a_killed_process_costs_nobody_an_answer(mlp, runner):
    expected = mlp.run(torch.ones(1, DIM))
    for _ in range(2):
        killed = runner._process._child
        killed.kill()
        torch.testing.assert_close(mlp.run(torch.ones(1, DIM)), expected)
        assert killed.poll() == -signal.SIGKILL


def test_a_process_that_does_not_answer_is_replaced(mlp, runner, monkeypatch):
    expected = mlp.run(torch.ones(1, DIM))
    stuck = runner._process._child
    os.kill(stuck.pid, signal.SIGSTOP)
    monkeypatch.setattr(onnx_process, "RUN_S", 0.3)
    with pytest.raises(HeadTooSlow) as caught:
        mlp.run(torch.ones(1, DIM))
    assert caught.value.field == "head"
    assert stuck.poll() == -signal.SIGKILL
    monkeypatch.undo()
    torch.testing.assert_close(mlp.run(torch.ones(1, DIM)), expected)


def test_a_head_whose_process_dies_twice_is_refused(mlp, monkeypatch):
    monkeypatch.setattr(onnx_process, "RUN_BYTES", 2**26)  # too little to start
    dying = OnnxRunner()
    with pytest.raises(InvalidHead, match="crashes onnxruntime"):
        load_onnx(mlp.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=dying, owner="")
    monkeypatch.undo()
    assert load_onnx(mlp.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=dying, owner="").outputs == 8
    dying.close()


def test_a_trial_that_dies_is_a_refusal(runner, monkeypatch):
    monkeypatch.setattr(onnx_process, "TRIAL_BYTES", 2**26)  # too little to start
    with pytest.raises(InvalidHead, match="crashes onnxruntime"):
        runner.try_file(EXPORTS["mlp"], dim=DIM, owner="")


def test_the_process_opens_no_file_and_knows_no_secret(monkeypatch):
    monkeypatch.setenv("ANCHORAGE_DATABASE_URL", "postgresql://secret")
    process = Process(onnx_process.RUN_BYTES)
    try:
        process.ask({"op": "run", "key": "none", "rows": 1}, b"\0" * 4, seconds=10.0, field="head")
        here = Path(f"/proc/{process._child.pid}")
        assert b"secret" not in (here / "environ").read_bytes()
        limits = (here / "limits").read_text()
        files = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(files.split()[3]) <= 8
        assert (here / "oom_score_adj").read_text().strip() == "1000"
    finally:
        process.close()


ORPHAN = """
import sys, torch
from app.heads.onnx import make_onnx
from app.heads.onnx_process import OnnxRunner
runner = OnnxRunner()
head = make_onnx(open(sys.argv[1], "rb").read(), dim=16, runner=runner, owner="")
head.run(torch.ones(1, 16))
print(runner._process._child.pid, flush=True)
while True:
    head.run(torch.ones(100_000, 16))
"""


def test_the_process_ends_with_a_service_that_is_killed(tmp_path):
    (tmp_path / "slow.onnx").write_bytes(slow_model())
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "slow.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        child = Path(f"/proc/{int(service.stdout.readline())}")
        assert child.exists()
        service.kill()
    deadline = time.monotonic() + 20
    while child.exists() and "Z" not in child.joinpath("stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_closed_runner_refuses_and_leaves_no_process(mlp):
    closing = OnnxRunner()
    head = load_onnx(mlp.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=closing, owner="")
    head.run(torch.ones(1, DIM))
    child = closing._process._child
    closing.close()
    assert child.returncode is not None
    with pytest.raises(Overloaded, match="stopping"):
        head.run(torch.ones(1, DIM))


def test_owners_take_turns_and_have_their_share_of_the_line():
    order, threads = [], []
    line = Line("wait", at_once=1, most=5, share=3, wait_s=30.0)

    def wait(owner: str) -> None:
        with line.turn(owner):
            order.append(owner)

    def waiting() -> int:
        return sum(map(len, line._waiting.values()))

    with line.turn("first"):
        for owner in ["a", "a", "a", "b", "c"]:
            before = waiting()
            threads.append(threading.Thread(target=wait, args=(owner,)))
            threads[-1].start()
            while waiting() == before:
                time.sleep(0.001)
        with pytest.raises(TooMuchAtOnce), line.turn("a"):
            pass
        with pytest.raises(Overloaded), line.turn("d"):
            pass
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "a", "a"]
    assert waiting() == 0


def test_who_waits_too_long_leaves_the_line():
    line = Line("wait", at_once=2, most=5, share=5, wait_s=0.01)
    with line.turn("a"), line.turn("b"), pytest.raises(Overloaded, match="waited"), line.turn("c"):
        pass
    with line.turn("c"), line.turn("c"):
        assert not line._waiting


def test_without_a_process_to_start_the_server_is_overloaded(runner, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Overloaded, match="cannot start"):
        runner.try_file(EXPORTS["mlp"], dim=DIM, owner="")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package_the_error_says_what_to_install(monkeypatch, mlp, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidHead, match=r"pip install 'anchorage\[onnx\]'"):
        make_onnx(EXPORTS["mlp"], dim=DIM, runner=mlp._runner, owner="")


# --- damage ---------------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["mlp", "decoder", "pools", "view"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.floats(0.5, 1.5),
)
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_refused_or_read_never_worse(trial, name, changes, share):
    data = bytearray(EXPORTS[name])
    for place, byte in changes:
        data[int(place * (len(data) - 1))] = byte
    try:
        trial(bytes(data[: int(share * len(data))]))
    except (AnchorageError, Died):
        return  # a process that dies harms nobody
    assert share > 0.9
