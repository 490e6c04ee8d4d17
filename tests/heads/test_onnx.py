"""ONNX heads: what is accepted and computes what torch computes, and what is refused without harm."""

from __future__ import annotations

import hashlib
import pickle
import random
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from io import BytesIO
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from app.errors import AnchorageError, HeadTooLarge, HeadTooSlow, InvalidHead
from app.heads import onnx_graph, onnx_trial
from app.heads.onnx import OnnxHead, load_onnx, make_onnx
from app.heads.registry import load, make

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402  # after the check that it is there

DIM = 16
DTYPE = TensorProto.FLOAT


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


@pytest.mark.parametrize(("opset", "dynamic"), [(13, True), (20, True), (17, False)])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_computes_what_torch_computes(name, dynamic, opset):
    head = load_onnx(export(NETWORKS[name], opset=opset, dynamic=dynamic, batch=2 if dynamic else 1), dim=DIM)
    vectors = torch.randn(37, DIM, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = NETWORKS[name](vectors).flatten(1)
    assert (head.dim, head.shape, head.outputs) == (DIM, SHAPES[name], expected.shape[1])
    torch.testing.assert_close(head.run(vectors), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 3, 1023, 1024, 2049])
def test_any_number_of_rows_is_run(n):
    vectors = torch.randn(n, DIM)
    with torch.no_grad():
        torch.testing.assert_close(
            load_onnx(EXPORTS["mlp"], dim=DIM).run(vectors), NETWORKS["mlp"](vectors), atol=1e-5, rtol=1e-5
        )


def test_rows_in_other_memory_orders_are_the_same_rows():
    head, vectors = load_onnx(EXPORTS["mlp"], dim=DIM), torch.randn(2 * DIM, 6)
    assert torch.equal(head.run(vectors.T[:, ::2]), head.run(vectors.T[:, ::2].contiguous()))


def test_tensors_make_the_same_head_again_and_hold_nothing_of_who_exported_it():
    model = onnx.load_model_from_string(EXPORTS["decoder"])
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "/home/ada/secret"
    model.graph.node[0].metadata_props.add(key="stack", value="/home/ada/secret")
    model.metadata_props.add(key="ort_config", value="/home/ada/secret")
    head = make("onnx", model.SerializeToString(), dim=DIM)
    again = load("onnx", head.tensors(), dim=DIM)
    vectors = torch.randn(3, DIM)
    assert torch.equal(again.run(vectors), head.run(vectors))
    assert torch.equal(again.tensors()["onnx"], head.tensors()["onnx"])
    assert b"ada" not in head.tensors()["onnx"].numpy().tobytes()


def test_threads_share_a_head():
    head, vectors, answers = load_onnx(EXPORTS["mlp"], dim=DIM), torch.randn(500, DIM), {}
    threads = [Thread(target=lambda i=i: answers.__setitem__(i, head.run(vectors))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(torch.equal(answer, answers[0]) for answer in answers.values())


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


def opened(made: onnx.ModelProto) -> OnnxHead:
    return load_onnx(made.SerializeToString(), dim=DIM)


def refusal(made: onnx.ModelProto | bytes, error: type[AnchorageError] = InvalidHead) -> str:
    """What is said of a model that is refused, within a second."""
    start = time.perf_counter()
    with pytest.raises(AnchorageError) as caught:
        load_onnx(made if isinstance(made, bytes) else made.SerializeToString(), dim=DIM)
    assert type(caught.value) is error
    assert caught.value.field == "onnx"
    assert time.perf_counter() - start < 5
    return caught.value.detail


def test_a_product_is_a_product():
    vectors = torch.randn(9, DIM)
    torch.testing.assert_close(opened(model()).run(vectors), vectors @ torch.tensor(numpy_helper.to_array(W)))


def test_weights_may_be_constants_or_listed_as_inputs_and_of_other_floats():
    vectors, weight = torch.randn(3, DIM), torch.tensor(numpy_helper.to_array(W))
    constant = model(node("Constant", [], ["w"], value=W), NODE, constants=[])
    torch.testing.assert_close(opened(constant).run(vectors), vectors @ weight)
    listed = model(inputs=[value("x", ["n", DIM]), value("w", [DIM, 4])])
    torch.testing.assert_close(opened(listed).run(vectors), vectors @ weight)
    for dtype in (np.float16, np.float64):
        half = tensor(numpy_helper.to_array(W), "half", dtype)
        cast = opened(model(node("Cast", ["half"], ["w"], to=DTYPE), NODE, constants=[half]))
        torch.testing.assert_close(cast.run(vectors), vectors @ torch.tensor(numpy_helper.to_array(half)).float())


def test_a_batch_that_the_file_fixes_is_run_row_by_row_if_it_is_one_or_told_to_be_free():
    fixed = [node("MatMul", ["x", "w"], ["z"]), node("Reshape", ["z", "shape"])]
    one = model(*fixed, constants=[W, tensor([1, 4, 1], "shape", np.int64)], inputs=[value("x", [1, DIM])])
    vectors = torch.randn(5, DIM)
    torch.testing.assert_close(opened(one).run(vectors), opened(model()).run(vectors))
    two = model(*fixed, constants=[W, tensor([2, 4, 1], "shape", np.int64)], inputs=[value("x", [2, DIM])])
    assert "one row is answered by [2, 4, 1]" in refusal(two)
    assert opened(model(inputs=[value("x", [7, DIM])], outputs=[value("y", [7, 4])])).run(vectors).shape == (5, 4)


def test_what_is_not_finite_at_run_time_names_its_rows():
    root = opened(model(node("MatMul", ["x", "w"], ["z"]), node("Exp", ["z"])))
    vectors = torch.zeros(4, DIM)
    vectors[2] = 1e4 * torch.tensor(numpy_helper.to_array(W))[:, 0]
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        root.run(vectors)
    assert (caught.value.field, caught.value.rows) == ("head", [2])


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"hello, world",
        b"\x80\x04K\x01.",
        b"PK\x03\x04" + bytes(100),
        hashlib.sha512(b"noise").digest() * 16,
        b"\x08\x09" * 10,
        bytes(10_000),
        pickle.dumps(W.raw_data),
        b"ORTM" * 20,
        b"\x08" + b"\xff" * 20,
    ],
)
def test_what_is_no_model_is_refused(data):
    assert "ONNX model" in refusal(data)


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


def training() -> onnx.ModelProto:
    made = model()
    made.training_info.add()
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


def short() -> onnx.TensorProto:
    return onnx.TensorProto(name="w", data_type=DTYPE, dims=[DIM, 4], raw_data=bytes(7))


def dims(*sides: int, **content: object) -> onnx.TensorProto:
    return onnx.TensorProto(name="w", data_type=DTYPE, dims=sides, **content)


def integers(*values: int) -> onnx.TensorProto:
    return tensor(values, "i", np.int64)


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
    "function": (function, "functions of its own"),
    "training": (training, "training information"),
    "domain": (lambda: model(node("Relu", ["x"], domain="com.microsoft")), "operator 'com.microsoft.Relu' is not allowed"),
    "ml": (lambda: model(node("LinearRegressor", ["x"], domain="ai.onnx.ml")), "is not allowed"),
    "branch": (
        lambda: model(node("If", ["c"], then_branch=branch(), else_branch=branch()), constants=[tensor(True, "c", bool)]),
        "operator 'If' is not allowed",
    ),
    "a branch in a harmless node": (lambda: model(node("Relu", ["x"], body=branch())), "graphs inside a graph"),
    "branches in a harmless node": (lambda: model(with_list(helper.make_attribute("body", [branch()]))), "graphs inside a graph"),
    "tensors in a list": (lambda: model(with_list(helper.make_attribute("t", [external()]))), "lists of tensors"),
    "loop": (lambda: model(node("Loop", ["m", "c", "x"], body=branch())), "operator 'Loop' is not allowed"),
    "random": (lambda: model(node("RandomNormalLike", ["x"])), "operator 'RandomNormalLike' is not allowed"),
    "old": (lambda: model(opset=10), "operator set 10 is too old"),
    "older": (lambda: model(opset=0), "operator set 0 is too old"),
    "negative": (lambda: model(opset=-5), "operator set -5 is too old"),
    "new": (lambda: model(opset=999), "operator set 999 is newer than this server"),
    "no operators": (lambda: model(opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)]), "imports the operators of ONNX once"),
    "two sets": (lambda: model(opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("", 18)]), "once"),
    "no nodes": (
        lambda: helper.make_model(helper.make_graph([], "g", [value("x", ["n", DIM])], [value("x", ["n", DIM])])),
        "nodes",
    ),
    "constants alone": (lambda: model(node("Constant", [], value=W), constants=[]), "constants alone"),
    "two inputs": (lambda: model(inputs=[value("x", ["n", DIM]), value("z", ["n", DIM])]), "one input"),
    "no input": (lambda: model(node("Relu", ["w"]), inputs=[value("w", [DIM, 4])]), "one input"),
    "two outputs": (lambda: model(outputs=[value("y", ["n", 4]), value("x", ["n", DIM])]), "one output"),
    "other dimension": (lambda: model(inputs=[value("x", ["n", 17])]), "reads 17 numbers"),
    "three axes": (lambda: model(inputs=[value("x", ["n", 4, 4])]), "has 3 axes"),
    "no shape": (lambda: model(inputs=[value("x", None)]), "has 0 axes"),
    "whole numbers in": (
        lambda: model(inputs=[value("x", ["n", DIM], TensorProto.INT64)]),
        "input 'x' must be a tensor of float32",
    ),
    "text in": (lambda: model(inputs=[value("x", ["n", DIM], TensorProto.STRING)]), "must be a tensor of float32"),
    "doubles out": (
        lambda: model(node("Cast", ["x"], to=TensorProto.DOUBLE), outputs=[value("y", ["n", DIM], TensorProto.DOUBLE)]),
        "output 'y' must be a tensor of float32",
    ),
    "a sequence": (
        lambda: model(outputs=[helper.make_tensor_sequence_value_info("y", DTYPE, ["n", 4])]),
        "output 'y' must be a tensor",
    ),
    "input is output": (lambda: model(outputs=[value("x", ["n", DIM])]), "no node computes the output 'x'"),
    "constant is output": (lambda: model(outputs=[value("w", [DIM, 4])]), "no node computes the output 'w'"),
    "nobody's output": (lambda: model(outputs=[value("q", ["n", 4])]), "no node computes"),
    "transposed": (
        lambda: model(node("MatMul", ["x", "w"], ["z"]), node("Transpose", ["z"])),
        "first axis must be the batch|must have shape",
    ),
    "one answer for all": (lambda: model(node("ReduceSum", ["x"])), "first axis|must have shape"),
    "the batch times two": (lambda: model(node("Concat", ["x", "x"], axis=0)), "first axis"),
    "mixed by softmax": (lambda: model(node("Softmax", ["x"], axis=0)), "mixes rows"),
    "mixed by its mean": (
        lambda: model(node("ReduceMean", ["x", "i"], ["m"], keepdims=1), node("Sub", ["x", "m"]), constants=[integers(0)]),
        "mixes rows",
    ),
    "NaN weight": (lambda: model(constants=[tensor(np.full((DIM, 4), np.nan))]), "holds NaN"),
    "infinite weight": (lambda: model(constants=[tensor(np.full((DIM, 4), -np.inf))]), "holds NaN, infinity"),
    "huge weight": (
        lambda: model(node("Cast", ["w"], ["v"], to=1), constants=[tensor(1e300, "w", np.float64)]),
        "beyond float32",
    ),
    "text weight": (
        lambda: model(constants=[helper.make_tensor("w", TensorProto.STRING, [1], [b"a"])]),
        "type that is not allowed",
    ),
    "short data": (lambda: model(constants=[short()]), "has 7 bytes, and its shape needs 256"),
    "no data": (lambda: model(constants=[dims(DIM, 4)]), "has 0 values, and its shape needs 64"),
    "negative dims": (lambda: model(constants=[dims(-DIM, -4, raw_data=bytes(256))]), "shape that is not allowed"),
    "overflowing dims": (lambda: model(constants=[dims(2**32, 2**32, raw_data=b"")]), "needs"),
    "zero dims": (lambda: model(constants=[dims(DIM, 0, raw_data=b"")]), "shape that is not allowed"),
    "many dims": (lambda: model(constants=[dims(*[1] * 500, raw_data=bytes(4))]), "shape that is not allowed"),
    "cycle": (
        lambda: model(node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"])),
        "nothing before it gives",
    ),
    "a node of itself": (lambda: model(node("Add", ["x", "y"])), "nothing before it gives"),
    "unknown name": (lambda: model(node("Relu", ["q"])), "reads 'q', which nothing before it gives"),
    "one name, two nodes": (lambda: model(node("Relu", ["x"]), node("Abs", ["x"])), "has a giver already"),
    "one name, two weights": (lambda: model(constants=[W, W]), "'w' is given twice"),
    "a node gives a weight": (lambda: model(node("Relu", ["x"], ["w"]), NODE), "has a giver already"),
    "a node gives the input": (lambda: model(node("Relu", ["x"], ["x"]), NODE), "has a giver already"),
    "long name": (lambda: model(node("Relu", ["x"], ["q" * 600]), NODE), "1 to 512 characters"),
    "no inputs": (lambda: model(node("MatMul", [])), "not a valid ONNX model"),
    "too many inputs": (lambda: model(node("Relu", ["x", "x", "x"])), "not a valid ONNX model"),
    "unknown attribute": (lambda: model(node("Relu", ["x"], surprise=1)), "not a valid ONNX model"),
    "wrong attribute": (lambda: model(node("Softmax", ["x"], axis=0.5)), "not a valid ONNX model"),
    "later operator": (lambda: model(node("Gelu", ["x"]), opset=18), "not a valid ONNX model"),
    "axis": (lambda: model(node("Softmax", ["x"], axis=7)), "do not fit together"),
    "far axis": (lambda: model(node("Softmax", ["x"], axis=2**62)), "must be between"),
    "product": (lambda: model(node("MatMul", ["x", "x"])), "do not fit together"),
    "to text": (lambda: model(node("Cast", ["x"], to=TensorProto.STRING)), "type that is not allowed"),
    "to anything": (lambda: model(node("Cast", ["x"], to=2**20)), "type that is not allowed"),
    "training mode": (
        lambda: model(node("BatchNormalization", ["x", "w", "w", "w", "w"], ["y", "m", "v"], training_mode=1)),
        "training mode",
    ),
    "dropout": (lambda: model(node("Dropout", ["x", "", "t"]), constants=[tensor(True, "t", bool)]), "training mode"),
    "overflow": (lambda: model(node("Reshape", ["x", "i"]), constants=[integers(2**40, -1)]), "whole number beyond"),
    "shape from data": (
        lambda: model(
            node("Cast", ["x"], ["c"], to=7),
            node("Reshape", ["c", "i"], ["s"]),
            node("Expand", ["x", "s"]),
            constants=[integers(-1)],
        ),
        "cannot be told in advance|first axis|do not fit",
    ),
    "division by zero": (
        lambda: model(
            node("Cast", ["x"], ["c"], to=7), node("Div", ["c", "i"], ["d"]), node("Cast", ["d"], to=1), constants=[integers(0)]
        ),
        "positive constant",
    ),
    "division by data": (
        lambda: model(node("Cast", ["x"], ["c"], to=7), node("Mod", ["c", "c"], ["d"]), node("Cast", ["d"], to=1)),
        "positive constant",
    ),
    "infinite answer": (lambda: model(node("Sub", ["x", "x"], ["z"]), node("Div", ["x", "z"])), "NaN or infinity"),
    "power": (
        lambda: model(node("Exp", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Exp", ["b"], ["c"]), node("Exp", ["c"])),
        "NaN or infinity",
    ),
    "rank": (lambda: model(node("Unsqueeze", ["x", "i"]), constants=[integers(*range(2, 30))]), "which is not allowed"),
    "a long list": (
        lambda: model(
            node("Reshape", ["j", "i"], ["s"]),
            node("Expand", ["x", "s"]),
            constants=[integers(2**31 - 1), tensor([1], "j", np.int64)],
        ),
        "list of 2147483647|do not fit",
    ),
    "a segment": (
        lambda: model(constants=[dims(DIM, 4, raw_data=bytes(256), segment=TensorProto.Segment(begin=0, end=1))]),
        "segments",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_allowed_is_refused_and_named(name):
    make_it, says = REFUSED[name]
    detail = refusal(make_it())
    assert any(part in detail for part in says.split("|")), detail


IMAGE = [value("x", ["n", DIM])]


def conv(op: str = "Conv", **attributes: object) -> onnx.ModelProto:
    return model(
        node("Reshape", ["x", "i"], ["a"]),
        node(op, ["a", "k"] if op.startswith("Conv") else ["a"], **attributes),
        constants=[integers(-1, 1, 4, 4), tensor(np.ones((1, 1, 2, 2)), "k")],
        inputs=IMAGE,
        outputs=[value("y", None)],
    )


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [0, 1]},
        {"strides": [-1, 1]},
        {"dilations": [0, 1]},
        {"dilations": [2**40, 1]},
        {"pads": [-1, 0, 0, 0]},
        {"pads": [2**62] * 4},
        {"kernel_shape": [0, 2]},
        {"kernel_shape": [2**31, 2**31]},
        {"group": 0},
        {"group": -1},
        {"pads": [5, 0, 0, 0]},
        {"kernel_shape": [3, 3]},
        {"kernel_shape": [1000, 1000]},
        {"dilations": [2**20, 2**20]},
        {"strides": [1] * 9},
        {"auto_pad": "up"},
    ],
    ids=str,
)
def test_windows_of_any_kind_are_run_or_refused_never_worse(op, attributes):
    if op in ("MaxPool", "AveragePool"):
        attributes = {"kernel_shape": [2, 2], **attributes}
    try:
        opened(conv(op, **attributes)).run(torch.randn(3, DIM))
    except AnchorageError as error:
        assert error.field in ("onnx", "head")  # noqa: PT017  # some are fine


def bomb() -> onnx.ModelProto:
    """Constants that double, and would be 2^43 numbers when folded."""
    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)]
    return model(
        *nodes, node("ReduceSum", ["c40"], ["s"], keepdims=0), node("Add", ["x", "s"]), constants=[tensor(np.ones(8), "c0")]
    )


def expanded() -> onnx.ModelProto:
    return model(
        node("Expand", ["x", "i"], ["e"]),
        node("ReduceMax", ["e", "j"], keepdims=0),
        constants=[integers(2**20, 1, 2**10), tensor([0], "j", np.int64)],
        inputs=[value("x", ["n", DIM])],
    )


def outer(power: int) -> onnx.ModelProto:
    """A product of two long vectors."""
    return model(
        node("ConstantOfShape", ["i"], ["c"], value=tensor([1.0])),
        node("Transpose", ["c"], ["t"]),
        node("MatMul", ["t", "c"], ["p"]),
        node("ReduceSum", ["p"], ["s"], keepdims=0),
        node("Add", ["x", "s"]),
        constants=[integers(1, 2**power)],
    )


def costly() -> onnx.ModelProto:
    """2^30 multiply-adds, ten times."""
    nodes = [node("MatMul", [f"c{i}", "c0"], [f"c{i + 1}"]) for i in range(10)]
    return model(
        node("ConstantOfShape", ["i"], ["c0"], value=tensor([1e-3])),
        *nodes,
        node("ReduceSum", ["c10"], ["s"], keepdims=0),
        node("Add", ["x", "s"]),
        constants=[integers(2**10, 2**10)],
    )


def unrolled() -> onnx.ModelProto:
    """A convolution to one channel, whose unrolled image has 2^32 numbers."""
    return model(
        node("ConstantOfShape", ["i"], ["c"], value=tensor([1.0])),
        node("Conv", ["c", "k"], ["p"], pads=[2**11] * 4, dilations=[2**7] * 2),
        node("ReduceSum", ["p"], ["s"], keepdims=0),
        node("Add", ["x", "s"]),
        constants=[integers(1, 1, 64, 64), tensor(np.ones((1, 1, 16, 16)), "k")],
    )


@pytest.mark.parametrize(
    "made",
    [bomb, lambda: outer(15), lambda: outer(30), costly, unrolled],
    ids=["bomb", "outer 15", "outer 30", "costly", "unrolled"],
)
def test_what_costs_too_much_is_refused_before_it_runs(made):
    assert "one row may take" in refusal(made(), HeadTooLarge)


def test_what_would_be_too_large_is_refused():
    refusal(bytes(2**26 + 1), HeadTooLarge)
    many = [node("Relu", ["x"], [f"c{i}"]) for i in range(1001)]
    assert "1000 nodes" in refusal(model(*many), HeadTooLarge)
    wide = model(node("Expand", ["a", "i"]), node("Unsqueeze", ["x", "j"], ["a"]), constants=[integers(1, DIM, 2**18)])
    wide.graph.node.reverse()
    wide.graph.initializer.append(tensor([2], "j", np.int64))
    assert "1048576 numbers" in refusal(wide, HeadTooLarge)


def message(number: int, content: bytes) -> bytes:
    """A field of protobuf's wire format that holds a message."""
    size, left = bytearray(), len(content)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([number << 3 | 2, *size, left]) + content


def test_a_file_that_parses_into_much_more_is_refused_before_it_is_parsed():
    assert refusal(message(7, message(1, b"") * 2**20)) == "the model has too many or too deeply nested parts"


def test_deep_nesting_is_refused():
    graph = b""
    for _ in range(500):  # a graph of a node of an attribute of a graph
        graph = message(1, message(5, message(6, graph)))
    assert refusal(message(7, graph)) == "the model has too many or too deeply nested parts"


def test_a_head_with_the_most_nodes_loads_in_time():
    many = [node("Relu", [f"c{i}" if i else "x"], [f"c{i + 1}"]) for i in range(1000)]
    start = time.perf_counter()
    assert opened(model(*many, outputs=[value("c1000", ["n", DIM])])).outputs == DIM
    assert time.perf_counter() - start < 10


# --- time -----------------------------------------------------------------------------------------------------------------


def test_a_head_that_is_slow_is_stopped_and_works_again_after():
    nodes = [node("MatMul", [f"c{i}" if i else "x", "w"], [f"c{i + 1}"]) for i in range(200)]
    slow = opened(model(*nodes, constants=[tensor(np.eye(DIM))], outputs=[value("c200", ["n", DIM])]))
    vectors = torch.randn(300_000, DIM)
    start = time.perf_counter()
    with pytest.raises(HeadTooSlow, match=r"within 0\.05 s"):
        slow.run(vectors, seconds=0.05)
    assert time.perf_counter() - start < 1
    torch.testing.assert_close(slow.run(vectors[:100]), vectors[:100])


# --- the trial ------------------------------------------------------------------------------------------------------------


def test_a_clients_file_is_tried_in_another_process_with_the_same_answers():
    assert make_onnx(EXPORTS["decoder"], dim=DIM).shape == (3, 16, 16)
    with pytest.raises(InvalidHead, match="reads 16 numbers") as caught:
        onnx_trial.rehearse(EXPORTS["mlp"], dim=17)
    assert caught.value.field == "onnx"


def test_a_trial_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(onnx_trial, "SECONDS", 0.01)
    with pytest.raises(HeadTooSlow):
        onnx_trial.rehearse(EXPORTS["mlp"], dim=DIM)


def test_a_trial_that_dies_is_a_refusal(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(InvalidHead, match="crashes onnxruntime"):
        make_onnx(EXPORTS["decoder"], dim=DIM)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package_the_error_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidHead, match=r"pip install 'anchorage\[onnx\]'"):
        load_onnx(EXPORTS["mlp"], dim=DIM)


# --- damage ---------------------------------------------------------------------------------------------------------------


def survives(data: bytes) -> None:
    """Loads and runs, or is refused with an error of ours."""
    try:
        load_onnx(data, dim=DIM).run(torch.ones(3, DIM))
    except AnchorageError as error:
        assert error.field in ("onnx", "head")  # noqa: PT017  # most raise, some do not


@given(
    st.sampled_from(["mlp", "decoder", "pools"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_a_file_with_wrong_bytes_is_refused_or_read_never_worse(name, changes):
    data = bytearray(EXPORTS[name])
    for place, byte in changes:
        data[int(place * (len(data) - 1))] = byte
    survives(bytes(data))


@given(st.sampled_from(["mlp", "decoder"]), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_a_cut_file_is_refused(name, share):
    with pytest.raises(InvalidHead):
        load_onnx(EXPORTS[name][: int(share * (len(EXPORTS[name]) - 1))], dim=DIM)


NUMBERS = [0, 1, -1, 2, 7, 255, 2**20, -(2**31), 2**31 - 1, 2**63 - 1, -(2**63)]


@given(st.sampled_from(["mlp", "decoder", "pools", "view"]), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_a_graph_with_wrong_nodes_is_refused_or_run_never_worse(name, seed):
    draw, made = random.Random(seed), onnx.load_model_from_string(EXPORTS[name])
    for _ in range(draw.randint(1, 3)):
        changed = draw.choice(made.graph.node)
        match draw.randrange(4):
            case 0:
                changed.op_type = draw.choice(sorted(onnx_graph.OPS))
            case 1 if changed.input:
                changed.input[draw.randrange(len(changed.input))] = draw.choice([*draw.choice(made.graph.node).output, ""])
            case 2 if changed.attribute:
                attribute = draw.choice(changed.attribute)
                if attribute.HasField("i"):
                    attribute.i = draw.choice(NUMBERS)
                elif attribute.ints:
                    attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(NUMBERS)
                elif attribute.HasField("t"):
                    values = numpy_helper.to_array(attribute.t).copy()
                    values.flat[draw.randrange(values.size)] = draw.choice(NUMBERS if values.dtype.kind == "i" else [0.0, -1.0])
                    attribute.t.CopyFrom(numpy_helper.from_array(values))
            case _:
                made.opset_import[0].version = draw.randint(11, 26)
    survives(made.SerializeToString())
