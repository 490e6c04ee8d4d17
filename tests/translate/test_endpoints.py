"""/translate, and resources after a restart."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.translate.translations import PAIR, asker


@pytest.fixture
def ask(stocked, embeddings):
    return asker(stocked, embeddings["first"])


def relative(client, vectors, **more):
    answer = client.post(
        "/relative", json={"encoder": "first", "anchor_set": "items", "vectors": vectors, **more}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["vectors"]


# --- good -----------------------------------------------------------------------------------------


def test_options_are_echoed_and_change_the_translator(ask):
    options = {"delta": 0, "omega": 3, "seed": 11, "renormalise": False, "keep_norms": True}
    changed = ask(method="irp", options=options).json()
    assert changed["options"] == options
    assert changed["translator"] != ask(method="irp").json()["translator"]


# --- relative vectors -----------------------------------------------------------------------------


def test_decoders_of_different_powers_are_remembered_apart(ask, stocked, embeddings):
    coordinates = relative(stocked, embeddings["first"][:3].tolist())
    answers = [
        ask(vectors=..., relative=coordinates, relative_power=power).json()["vectors"]
        for power in (0, 0.5, 1, 0, 0.5, 1)
    ]
    assert answers[:3] == answers[3:]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert answers[one] != answers[other]


def test_relative_vectors_need_no_source_and_everything_else_does(
    ask, stocked, embeddings, refused
):
    coordinates = relative(stocked, embeddings["first"][:3].tolist())
    assert (
        ask(vectors=..., relative=coordinates, source=...).json()
        == ask(vectors=..., relative=coordinates).json()
    )
    refused(
        ask(vectors=..., relative=coordinates, source="unknown"), 404, "encoder-not-found", "source"
    )
    refused(ask(source=...), 422, "missing-field", "source")
    refused(ask(vectors=..., inputs=["x"], source=...), 422, "missing-field", "source")
    refused(ask(relative_power=0), 422, "not-exactly-one", "relative_power")


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"relative": [[0.5] * 39]}, "dimension-mismatch", "relative"),
        ({"relative": [0.5] * 2}, "bad-shape", "relative"),
        ({"method": "procrustes"}, "method-not-independent", "method"),
        ({"method": "irp", "relative_power": 1}, "invalid-option", "relative_power"),
        ({"vectors": [[0.5] * 8]}, "not-exactly-one", "relative"),
    ],
    ids=str,
)
def test_relative_vectors_that_cannot_be_decoded_are_refused(ask, refused, change, code, field):
    answer = ask(**{"vectors": ..., "relative": [[0.5] * 40], **change})
    rows = [0, 1] if code == "bad-shape" else None
    refused(answer, 422, code, field, rows)


# --- bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"source": "unknown"}, 404, "encoder-not-found", "source"),
        ({"anchor_set": "nothing"}, 404, "anchor-set-not-found", "anchor_set"),
        ({"method": "magic"}, 422, "invalid-request", "method"),
        ({"options": {"surplus": 1}}, 422, "unknown-field", "options.surplus"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/translate", "/translators"])
def test_wrong_requests(ask, refused, path, change, status, code, field):
    answer = ask(path, **change) if path == "/translate" else ask(path, vectors=..., **change)
    refused(answer, status, code, field)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"vectors": ...}, "not-exactly-one", "vectors"),
        ({"vectors": [[1.0] * 6]}, "dimension-mismatch", "vectors"),
    ],
    ids=str,
)
def test_wrong_vectors(ask, refused, change, code, field):
    refused(ask(**change), 422, code, field)


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_encoder_that_did_not_embed_the_set_is_a_conflict(ask, stocked, refused, side):
    stocked.post("/encoders", json={"name": "third", "dim": 8})
    refused(ask(**{side: "third"}), 409, "anchors-not-embedded", "anchor_set", detail="'third'")
    refused(
        ask("/translators", vectors=..., **{side: "third"}),
        409,
        "anchors-not-embedded",
        "anchor_set",
    )


@pytest.mark.parametrize(
    ("method", "options", "field"),
    [
        ("irp", {"delta": -0.1}, "options.delta"),
        ("graded", {"renormalise": 1}, "options.renormalise"),
    ],
    ids=str,
)
def test_an_option_out_of_range_or_of_another_type_is_refused(ask, refused, method, options, field):
    refused(ask(method=method, options=options), 422, "invalid-request", field)


# --- restarts -------------------------------------------------------------------------------------


def test_everything_is_there_after_a_restart(tmp_path, embeddings):
    settings = Settings(data_dir=tmp_path / "a b" / "c")
    request = {**PAIR, "vectors": embeddings["first"].tolist()}
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        for name, vectors in embeddings.items():
            client.post("/encoders", json={"name": name, "dim": vectors.shape[1]})
        body = {
            "name": "items",
            "embeddings": {name: vectors.tolist() for name, vectors in embeddings.items()},
        }
        before_set = client.post("/anchor-sets", json=body).json()
        unasked = client.post("/translate", json=request).json()
        reported = client.post("/translators", json={**PAIR, "method": "irp"}).json()
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        assert client.get("/anchor-sets/items").json() == before_set
        assert (
            client.get(f"/translators/{unasked['translator']}").json()["id"]
            == unasked["translator"]
        )
        assert client.get(f"/translators/{reported['id']}").json() == reported
        assert client.post("/translate", json=request).json() == unasked
