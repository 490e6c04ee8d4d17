"""Checks of ONNX files: rejected files, attacks and damage."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import AnchorageError, HeadTooSlow, InvalidHead
from app.heads.onnx import process as onnx_process
from app.heads.onnx.process import OnnxProcess, ProcessDied

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, parser  # noqa: E402  # after the check that it is installed

from tests.heads.onnx.models import (  # noqa: E402
    DIM,
    EXPORTS,
    PRODUCT,
    VECTORS,
    W,
    hold,
    make_head,
    model,
    open_here,
    product,
    tensor,
)


def test_a_file_may_fix_its_batch_at_one_row_and_at_no_other_number(trial):
    fixed = "z = MatMul(x, w) y = Reshape(z, shape)"
    one = open_here(model(fixed, more="int64[3] shape = {1, 4, 1}", x="float[1,16] x"))
    assert (one.most, one.shape) == (1, [4, 1])
    np.testing.assert_allclose(one.run(VECTORS)[..., 0], product(VECTORS), rtol=1e-5)
    two = model(fixed, more="int64[3] shape = {2, 4, 1}", x="float[2,16] x")
    assert "cannot run the model on 1 rows" in refusal(trial, two)
    free = open_here(model(x="float[7,16] x", y="float[7,4] y"))
    assert (free.most, free.run(VECTORS[:5]).shape) == (1024, (5, 4))


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
        make_head(data, runner)
    assert (caught.value.code, caught.value.field) == (code, "onnx")
    assert time.monotonic() - start < 25
    assert memory() - before < 4 * len(data) + 64 * 2**20


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package_the_error_says_what_to_install(monkeypatch, runner, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidHead, match=r"pip install 'anchorage-server\[onnx\]'"):
        make_head(EXPORTS["mlp"], runner)


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
