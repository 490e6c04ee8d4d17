"""Heads of every kind: answers, quality, and wrong files."""

from __future__ import annotations

import base64
import pickle
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from app.heads.base import MAX_HEAD_BYTES

DIM = 6  # dimension of `second`, the encoder of these heads


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def network(outputs: int = 3, dim: int = DIM) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(dim, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, outputs)
    ).eval()


ARCHITECTURE = ["linear", "gelu", "dropout", "linear"]


def layers(model: nn.Module) -> dict:
    return {
        "architecture": ARCHITECTURE,
        "safetensors": text(save(dict(model.state_dict()))),
    }


CLASSES = {"classes": ["cat", "dog", "owl"]}


@pytest.fixture
def make(stocked):
    """POST /heads, of `second` unless another is named; the answer must be 201."""

    def post(**more):
        body = {"name": "h", **({} if "anchor_set" in more else {"encoder": "second"}), **more}
        answer = stocked.post("/heads", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return post


@pytest.fixture
def ask(stocked, embeddings):
    """POST /stitch to the head `h`: vectors of `first` through the set, or of `second` as is."""

    def post(encoder="second", rows=10, **more):
        body = {
            "encoder": encoder,
            "head": "h",
            "vectors": embeddings[encoder][:rows].tolist(),
            **more,
        }
        if encoder == "first":
            body["anchor_set"] = "items"
        answer = stocked.post("/stitch", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post


def by_torch(model: nn.Module, vectors) -> np.ndarray:
    with torch.no_grad():
        return model(torch.as_tensor(np.asarray(vectors), dtype=torch.float32)).numpy()


# --- kinds ----------------------------------------------------------------------------------------


def test_a_classifier_answers_what_torch_does(make, ask, stocked, embeddings):
    model = network()
    head = make(**layers(model), **CLASSES)
    assert (head["kind"], head["dim"], head["outputs"], head["output"]) == ("linear", DIM, 3, None)
    assert head["architecture"] == ARCHITECTURE
    assert stocked.get("/heads/h").json() == head
    answer = ask()
    expected = torch.softmax(
        torch.from_numpy(by_torch(model, embeddings["second"][:10])), dim=1
    ).numpy()
    np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)
    assert answer["labels"] == [CLASSES["classes"][place] for place in expected.argmax(axis=1)]
    translated = stocked.post(
        "/translate",
        json={
            "source": "first",
            "target": "second",
            "anchor_set": "items",
            "vectors": embeddings["first"][:10].tolist(),
        },
    ).json()["vectors"]
    stitched = torch.softmax(torch.from_numpy(by_torch(model, translated)), dim=1).numpy()
    np.testing.assert_allclose(ask("first")["scores"], stitched, atol=1e-4)


def test_an_onnx_head_is_the_operators_file_that_a_client_names(serve, tmp_path):
    pytest.importorskip("onnxruntime")
    model, vectors = network(), np.random.default_rng(0).normal(size=(5, DIM))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecation warning of the library
        torch.onnx.export(
            model, torch.randn(2, DIM), str(tmp_path / "pets.onnx"), dynamo=False,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
        )  # fmt: skip
    client = serve(heads_dir=tmp_path)
    client.post("/encoders", json={"name": "second", "dim": DIM})
    body = {"name": "h", "encoder": "second", "kind": "onnx", "file": "pets.onnx", **CLASSES}
    head = client.post("/heads", json=body).json()
    assert (head["kind"], head["dim"], head["outputs"]) == ("onnx", DIM, 3)
    stitch = {"encoder": "second", "head": "h", "vectors": vectors.tolist()}
    expected = torch.softmax(torch.from_numpy(by_torch(model, vectors)), dim=1).numpy()
    answer = client.post("/stitch", json=stitch)
    np.testing.assert_allclose(answer.json()["scores"], expected, atol=1e-5)
    wrong = client.post("/heads", json={**body, "name": "other", "classes": ["cat", "dog"]})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "classes")


def test_a_head_of_unit_vectors_answers_the_same_for_vectors_of_any_length(
    make, ask, stocked, embeddings
):
    model = network()
    make(**layers(model), **CLASSES, scale=1.0)
    vectors = embeddings["second"][:10]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = torch.softmax(torch.from_numpy(by_torch(model, unit)), dim=1).numpy()
    for factor in (1.0, 0.001, 1e6):
        np.testing.assert_allclose(
            ask(vectors=(vectors * factor).tolist())["scores"], expected, atol=1e-5
        )
    stocked.delete("/heads/h")
    make(**layers(model), **CLASSES)
    assert np.abs(np.array(ask(vectors=(vectors * 10).tolist())["scores"]) - expected).max() > 1e-3


@pytest.mark.parametrize(("power", "ridge"), [(0.5, 0.2)])
def test_a_relative_head_reads_relative_vectors_of_its_power(
    make, ask, stocked, embeddings, power, ridge
):
    weight = np.random.default_rng(2).normal(size=(3, 40))
    options = {"encode_power": power, **({} if ridge is None else {"ridge": ridge})}
    head = make(anchor_set="items", weight=weight.tolist(), output={"kind": "numbers"}, **options)
    assert (head["encode_power"], head["ridge"], head["anchor_set"], head["encoder"]) == (
        power,
        ridge,
        "items",
        None,
    )
    for encoder in ("first", "second"):
        body = {
            "encoder": encoder,
            "anchor_set": "items",
            "vectors": embeddings[encoder][:10].tolist(),
        }
        relative = stocked.post("/relative", json={**body, **options})
        assert relative.status_code == 200, relative.text
        expected = np.array(relative.json()["vectors"]) @ weight.T
        answer = ask(encoder)
        np.testing.assert_allclose(answer["outputs"], expected, atol=1e-4, rtol=1e-4)
        assert (answer["method"], answer["translator"]) == (None, None)


# --- what is no head ------------------------------------------------------------------------------


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, where) -> None:
        self.where = where

    def __reduce__(self):
        return open, (self.where, "w")


BAD = {
    "a pickle as safetensors": lambda where: {"safetensors": text(pickle.dumps(Trap(where)))},
    "a path for a module": lambda where: {
        **layers(network()),
        "architecture": ["../../etc/passwd", "linear"],
    },
    "layers of other classes": lambda where: layers(network(4)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_head_is_refused_and_nothing_is_written(stocked, tmp_path, name):
    services = stocked.app.state.services
    before = {path for path in services.blobs.root.rglob("*") if path.is_file()}
    answer = stocked.post(
        "/heads",
        json={"name": "h", "encoder": "second", **CLASSES, **BAD[name](str(tmp_path / "sprung"))},
    )
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert stocked.get("/heads").json() == {"heads": []}
    assert {path for path in services.blobs.root.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "sprung").exists()
    assert (
        stocked.post(
            "/heads", json={"name": "h", "encoder": "second", **CLASSES, **layers(network())}
        ).status_code
        == 201
    )


def test_a_file_above_the_limit_is_too_large_whatever_the_body_may_be(serve, complaint):
    client = serve(max_json=2**27, max_body_bytes=2**27)
    client.post("/encoders", json={"name": "second", "dim": DIM})
    large = text(b"\0" * (MAX_HEAD_BYTES + 1))
    body = {"name": "h", "encoder": "second", **CLASSES, "safetensors": large}
    assert complaint(client.post("/heads", json=body)) == (413, "head-too-large")
    assert client.get("/heads").json() == {"heads": []}


@pytest.mark.parametrize(
    "model",
    ["../../etc/passwd", "linked"],
)
@pytest.mark.parametrize("kind", ["sentence-transformers", "timm"])
def test_a_models_name_leads_nowhere_but_into_the_operators_folder(serve, tmp_path, kind, model):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text('{"secret": "xyzzy"}')
    (folder / "linked").symlink_to(tmp_path / "secret")
    client = serve(models_dir=folder)
    answer = client.post("/encoders", json={"name": "x", "kind": kind, "model": model})
    assert (answer.status_code, answer.json()["field"]) == (422, "model"), answer.text
    assert answer.json()["code"] in ("invalid-request", "encoder-unavailable")
    assert "xyzzy" not in answer.text
    assert str(tmp_path) not in answer.text
    assert client.get("/encoders").json() == {"encoders": []}
