"""Confidence of translations: columns in JSON and Arrow, flags, and refused requests."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc
from starlette.testclient import TestClient

from app.demo.pack import load_pack

ARROW, NPY = "application/vnd.apache.arrow.stream", "application/x-npy"
SOURCE, TARGET = "minilm-l6", "static"
PAIR = {"source": SOURCE, "target": TARGET, "anchor_set": "bank"}
COLUMNS = ("cosine", "low", "high", "p_value")
ANCHORS, ASKED = 300, 400


def lean(vectors: np.ndarray) -> dict[str, Any]:
    """Vectors in base64. As lists they would be longer than the limit of a body."""
    data = base64.b64encode(vectors.astype("<f4").tobytes()).decode()
    return {"dtype": "float32", "shape": list(vectors.shape), "base64": data}


@pytest.fixture(scope="module")
def pack() -> dict[str, np.ndarray]:
    """The first items of the demo's pack by two encoders: anchors, then items to translate."""
    vectors = load_pack().vectors
    found = dict(zip((SOURCE, TARGET), list(vectors.values())[:2], strict=True))
    return {name: each[: ANCHORS + ASKED].double().numpy() for name, each in found.items()}


@pytest.fixture(scope="module")
def service(stock: Callable[..., TestClient], pack: dict[str, np.ndarray]) -> TestClient:
    """A service with the pack's anchors, and sets of twelve and twenty-four of them."""
    return stock(pack, sets={"bank": ANCHORS, "few": 12, "some": 24})


@pytest.fixture
def ask(service: TestClient, pack: dict[str, np.ndarray]) -> Callable[..., Any]:
    """POST /translate of the other items, with confidence; a value of ... leaves a field out."""

    def post(**more: Any) -> Any:
        body = {**PAIR, "vectors": lean(pack[SOURCE][ANCHORS:]), "confidence": True, **more}
        return service.post(
            "/translate", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


def told(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()["confidence"]


def table(found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(found[name], float) for name in COLUMNS}


def true_cosines(answer: Any, pack: dict[str, np.ndarray]) -> np.ndarray:
    mean = pack[TARGET][:ANCHORS].mean(axis=0)
    made, truth = np.array(answer.json()["vectors"]) - mean, pack[TARGET][ANCHORS:] - mean
    return (made * truth).sum(axis=1) / np.linalg.norm(made, axis=1) / np.linalg.norm(truth, axis=1)


def strange(answer: Any) -> set[int]:
    return {flag["row"] for flag in answer.json()["flags"] if flag["code"] == "out-of-distribution"}


def send(
    client: TestClient, vectors: np.ndarray, media: str, query: str = "&confidence=true"
) -> Any:
    path = f"/translate?source={SOURCE}&target={TARGET}&anchor_set=bank{query}"
    sink = io.BytesIO()
    if media == NPY:
        np.save(sink, vectors.astype("f4"))
    else:
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.astype("f4").ravel()), vectors.shape[1]
        )
        batch = pa.record_batch([pa.array(range(len(vectors))), column], names=["id", "vector"])
        with ipc.new_stream(sink, batch.schema) as writer:
            for start in range(0, len(vectors), 150):
                writer.write_batch(batch.slice(start, 150))
    return client.post(path, content=sink.getvalue(), headers={"content-type": media})


# --- good -----------------------------------------------------------------------------------------


def test_real_items_are_told_their_cosine_within_the_interval(ask, pack):
    answer = ask()
    found = told(answer)
    columns, truth = table(found), true_cosines(answer, pack)
    assert (found["level"], found["reason"], found["held_out"], found["threshold"]) == (
        0.9,
        None,
        ANCHORS,
        0.01,
    )
    assert np.all((columns["low"] < columns["cosine"]) & (columns["cosine"] < columns["high"]))
    assert 0.8 < np.mean((columns["low"] <= truth) & (truth <= columns["high"])) < 0.98
    assert np.corrcoef(columns["cosine"], truth)[0, 1] > 0.6
    assert len(strange(answer)) < 0.05 * ASKED


def test_garbage_is_flagged_in_json_and_nothing_else_changes(ask, pack):
    draw = np.random.default_rng(0)
    source = pack[SOURCE]
    garbage = {
        "random directions": draw.normal(size=(20, source.shape[1])) / source.shape[1] ** 0.5,
        "zero": np.zeros((1, source.shape[1])),
    }
    for name, vectors in garbage.items():
        answer = ask(vectors=lean(vectors))
        assert answer.status_code == 200
        assert len(strange(answer)) >= 0.9 * len(vectors), name
        plain = ask(vectors=lean(vectors), confidence=False).json()
        assert answer.json()["vectors"] == plain["vectors"]
        assert [
            flag for flag in answer.json()["flags"] if flag["code"] != "out-of-distribution"
        ] == plain["flags"]
        assert "confidence" not in plain


# --- few anchors ----------------------------------------------------------------------------------


# --- bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"confidence": 1}, "invalid-request", "confidence"),
        ({"confidence_level": 0.49}, "invalid-request", "confidence_level"),
        ({"confidence_level": 1}, "invalid-request", "confidence_level"),
        ({"confidence": ..., "confidence_level": 0.9}, "invalid-request", "confidence_level"),
        ({"vectors": ..., "relative": [[0.1] * ANCHORS]}, "invalid-request", "confidence"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(ask, refused, change, code, field):
    refused(ask(**change), 422, code, field)


def test_npy_has_no_columns_for_it(service, pack, refused):
    vectors = pack[SOURCE][ANCHORS:]
    refused(send(service, vectors, NPY), 422, "invalid-request", "confidence")
    refused(
        send(service, vectors, ARROW, "&confidence_level=0.9"),
        422,
        "invalid-request",
        "confidence_level",
    )
    assert send(service, vectors, NPY, "&confidence=false").status_code == 200
