"""/heads and /stitch: answers equal to torch's, and what is refused."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

DIM = 6  # dimension of `second`, the encoder of these heads
CLASSES = {"classes": ["cat", "dog", "owl"]}
ARCHITECTURE = ["linear", "gelu", "dropout", "linear"]
WEIGHT = np.random.default_rng(5).normal(size=(3, DIM)).tolist()
LINEAR = {**CLASSES, "weight": WEIGHT, "bias": [0.5, -0.5, 0.0]}
#: of a changed request, whose value ... leaves a field out
NO_WEIGHT = {"weight": ..., "bias": ...}


def network(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(DIM, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, outputs)
    ).eval()


def layers(model: nn.Module) -> dict:
    file = base64.b64encode(save(dict(model.state_dict()))).decode()
    return {"architecture": ARCHITECTURE, "safetensors": file}


def without_omitted(body: dict) -> dict:
    """The body without the fields whose value is ...."""
    return {key: value for key, value in body.items() if value is not ...}


@pytest.fixture
def make(stocked):
    """POST /heads of a head of `second`."""

    def post(**more):
        body = {"name": "h", "encoder": "second", **more}
        return stocked.post("/heads", json=without_omitted(body))

    return post


@pytest.fixture
def ask(stocked, embeddings):
    """POST /stitch to the head `h`: ten vectors of `first` through the set, or of `second`."""

    def post(encoder="second", /, **more):
        body = {"encoder": encoder, "head": "h", "vectors": embeddings[encoder][:10].tolist()}
        if encoder == "first":
            body["anchor_set"] = "items"
        return stocked.post("/stitch", json=without_omitted({**body, **more}))

    return post


def by_torch(model: nn.Module, vectors) -> np.ndarray:
    """The probabilities of the model."""
    with torch.no_grad():
        rows = torch.as_tensor(np.asarray(vectors), dtype=torch.float32)
        return torch.softmax(model(rows), dim=1).numpy()


def test_a_classifier_answers_what_torch_does_for_its_own_and_for_translated_vectors(
    make, ask, stocked, embeddings
):
    model = network()
    head = make(**layers(model), **CLASSES).json()
    assert (head["kind"], head["dim"], head["outputs"], head["output"]) == ("linear", DIM, 3, None)
    assert head["architecture"] == ARCHITECTURE
    assert stocked.get("/heads/h").json() == head
    answer = ask().json()
    expected = by_torch(model, embeddings["second"][:10])
    np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)
    assert answer["labels"] == [CLASSES["classes"][place] for place in expected.argmax(axis=1)]
    assert (answer["method"], answer["translator"]) == (None, None)
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    body = {**pair, "vectors": embeddings["first"][:10].tolist()}
    translated = stocked.post("/translate", json=body).json()
    stitched = ask("first").json()
    expected = by_torch(model, translated["vectors"])
    np.testing.assert_allclose(stitched["scores"], expected, atol=1e-4)
    assert stitched["translator"] == translated["translator"]
    assert stocked.delete("/heads/h").status_code == 204
    assert stocked.get("/heads").json() == {"heads": []}


def test_an_onnx_head_is_the_operators_file_that_a_client_names(serve, folder, export):
    pytest.importorskip("onnxruntime")
    model, vectors = network(), np.random.default_rng(0).normal(size=(5, DIM))
    client = serve(heads_dir=folder)
    client.post("/encoders", json={"name": "second", "dim": DIM})
    body = {"name": "h", "encoder": "second", "kind": "onnx", "file": export(model), **CLASSES}
    head = client.post("/heads", json=body).json()
    assert (head["kind"], head["dim"], head["outputs"]) == ("onnx", DIM, 3)
    stitch = {"encoder": "second", "head": "h", "vectors": vectors.tolist()}
    answer = client.post("/stitch", json=stitch)
    np.testing.assert_allclose(answer.json()["scores"], by_torch(model, vectors), atol=1e-5)


def test_a_head_of_unit_vectors_answers_the_same_for_vectors_of_any_length(make, ask, embeddings):
    model, vectors = network(), embeddings["second"][:10]
    make(**layers(model), **CLASSES, scale=1.0)
    expected = by_torch(model, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    for factor in (0.001, 1e6):
        scores = ask(vectors=(vectors * factor).tolist()).json()["scores"]
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_relative_head_reads_relative_vectors_of_its_power(make, ask, stocked, embeddings):
    weight = np.random.default_rng(2).normal(size=(3, 40))
    options = {"encode_power": 0.5, "ridge": 0.2}
    relative = {"encoder": ..., "anchor_set": "items", "output": {"kind": "numbers"}, **options}
    head = make(weight=weight.tolist(), **relative).json()
    assert {**options, "anchor_set": "items", "encoder": None}.items() <= head.items()
    for encoder in ("first", "second"):
        vectors = embeddings[encoder][:10].tolist()
        body = {"encoder": encoder, "anchor_set": "items", "vectors": vectors, **options}
        relative = stocked.post("/relative", json=body).json()["vectors"]
        answer = ask(encoder).json()
        np.testing.assert_allclose(
            answer["outputs"], np.array(relative) @ weight.T, atol=1e-4, rtol=1e-4
        )
        assert (answer["method"], answer["translator"]) == (None, None)


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"encoder": "unknown"}, 404, "encoder-not-found", "encoder"),
        ({"encoder": ...}, 422, "not-exactly-one", "encoder"),
        ({"classes": ["cat", "dog", "cat"]}, 422, "invalid-head", "classes"),
        ({"classes": ...}, 422, "not-exactly-one", "classes"),
        (NO_WEIGHT, 422, "not-exactly-one", "weight"),
        ({"weight": ..., **layers(network())}, 422, "not-exactly-one", "bias"),
        ({"classes": ["cat", "dog"]}, 422, "invalid-head", "classes"),
        ({"kind": "onnx"}, 422, "invalid-head", "kind"),
        ({"architecture": ARCHITECTURE}, 422, "invalid-head", "architecture"),
        ({"encode_power": 0.5}, 422, "invalid-head", "encode_power"),
        ({**NO_WEIGHT, "safetensors": "not base64!"}, 422, "bad-base64", "safetensors"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_head_is_refused_and_leaves_nothing(
    make, stocked, refused, change, status, code, field
):
    rows = [2] if change.get("classes") == ["cat", "dog", "cat"] else None
    refused(make(**{**LINEAR, **change}), status, code, field, rows)
    assert stocked.get("/heads").json() == {"heads": []}


def test_wrong_requests(make, ask, refused):
    make(**LINEAR)
    refused(ask("first", head="nothing"), 404, "head-not-found", "head")
    refused(ask("first", anchor_set=...), 422, "missing-field", "anchor_set")
    refused(ask(method="irp"), 422, "invalid-head", "method")  # of the head's own vectors


def test_a_relative_head_takes_no_method_and_no_other_set(make, ask, stocked, embeddings, refused):
    make(encoder=..., anchor_set="items", **{**LINEAR, "weight": np.ones((3, 40)).tolist()})
    refused(ask("first", method="irp"), 422, "invalid-head", "method")
    refused(ask("first", options={"ridge": 1}), 422, "invalid-head", "method")
    refused(ask("first", index=100), 422, "invalid-head", "index")
    other = {"name": "other", "embeddings": {"first": embeddings["first"].tolist()}}
    stocked.post("/anchor-sets", json=other)
    refused(ask("first", anchor_set="other"), 422, "invalid-head", "anchor_set", detail="'items'")
