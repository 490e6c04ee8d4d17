"""ONNX heads: outputs equal to torch's, and files written by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from app.errors import InvalidHead
from app.heads.onnx.head import OnnxHead
from app.heads.onnx.process import OnnxRunner
from app.heads.registry import load, make

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import numpy_helper  # noqa: E402  # after the check that it is installed

from tests.heads.onnx.models import (  # noqa: E402
    DIM,
    EXPORTS,
    NETWORKS,
    PRODUCT,
    SHAPES,
    VECTORS,
    W,
    export,
    hold,
    make_head,
    model,
    open_here,
    product,
    reload_head,
    tensor,
)


@pytest.mark.parametrize(("opset", "dynamic"), [(13, True), (20, True), (17, False)])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_of_an_export_equal_torchs(name, dynamic, opset):
    session = open_here(export(NETWORKS[name], opset=opset, dynamic=dynamic))
    vectors = torch.randn(37, DIM, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = NETWORKS[name](vectors)
    assert tuple(session.shape) == SHAPES[name] == tuple(expected.shape[1:])
    torch.testing.assert_close(
        torch.from_numpy(session.run(vectors.numpy())), expected, atol=1e-5, rtol=1e-4
    )


@pytest.fixture(scope="module")
def mlp(runner: OnnxRunner) -> OnnxHead:
    return make_head(EXPORTS["mlp"], runner)


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
    np.testing.assert_allclose(open_here(data).run(VECTORS), product(VECTORS, weight), rtol=1e-5)


def test_an_output_may_have_one_axis(runner):
    head = make_head(
        model("y = ReduceSum <keepdims=0> (x, i)", more="int64[1] i = {1}", y="float[n] y"), runner
    )
    again = reload_head(head, runner)
    assert (head.shape, again.shape, again.outputs) == ((), (), 1)
    vectors = torch.from_numpy(VECTORS)
    torch.testing.assert_close(again.run(vectors)[:, 0], vectors.sum(dim=1))


def test_errors_name_the_rows_of_non_finite_outputs(runner):
    head = make_head(model("z = MatMul(x, w) y = Exp(z)"), runner)
    vectors = torch.zeros(4, DIM)
    vectors[2] = 1e4 * torch.tensor(numpy_helper.to_array(W))[:, 0]
    with pytest.raises(InvalidHead, match="NaN or infinity") as caught:
        head.run(vectors)
    assert (caught.value.field, caught.value.rows) == ("head", [2])
