"""/translate and /relative, and requests whose fit is long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from starlette.requests import Request

from app.db import tables
from app.errors import FitQueued
from app.jobs import answers

# --- relative vectors -----------------------------------------------------------------------------


@pytest.fixture
def relate(stocked, embeddings):
    """POST /relative of three vectors of `first`."""

    def post(**more):
        vectors = embeddings["first"][:3].tolist()
        body = {"encoder": "first", "anchor_set": "items", "vectors": vectors, **more}
        return stocked.post("/relative", json=body)

    return post


def test_relative_vectors_are_the_centred_cosines_to_the_anchors(relate, embeddings):
    anchors = embeddings["first"]
    vectors = np.random.default_rng(0).normal(size=(7, 8))
    vectors[6] = anchors.mean(axis=0)
    answer = relate(vectors=vectors.tolist()).json()
    assert (answer["count"], answer["dim"]) == (7, 40)
    assert answer["flags"] == [{"row": 6, "code": "equals-anchor-mean"}]
    assert not np.any(answer["vectors"][6])
    unit, centred = anchors - anchors.mean(axis=0), vectors[:6] - anchors.mean(axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(answer["vectors"][:6], centred @ unit.T, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"encode_power": 1.5}, 422, "invalid-option", "encode_power"),
        ({"ridge": 1}, 422, "unknown-option", "ridge"),  # it would have no effect
        ({"encoder": "unknown"}, 404, "encoder-not-found", "encoder"),
    ],
    ids=str,
)
def test_wrong_relative_vectors_are_refused(relate, refused, change, status, code, field):
    refused(relate(**change), status, code, field)


def test_decoders_of_different_powers_are_remembered_apart(ask, relate):
    coordinates = relate().json()["vectors"]
    answers = [
        ask(vectors=..., relative=coordinates, relative_power=power).json()["vectors"]
        for power in (0, 0.5, 1, 0, 0.5, 1)
    ]
    assert answers[:3] == answers[3:]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert answers[one] != answers[other]


def test_relative_vectors_need_no_source_and_everything_else_does(ask, relate, refused):
    coordinates = relate().json()["vectors"]
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
        ({"method": "irp", "options": {"delta": -0.1}}, 422, "invalid-request", "options.delta"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/translate", "/translators"])
def test_wrong_requests(ask, refused, path, change, status, code, field):
    answer = ask(path, **change) if path == "/translate" else ask(path, vectors=..., **change)
    refused(answer, status, code, field)


def test_the_shape_of_auto_is_the_clients_and_every_other_option_is_refused(ask, refused):
    assert ask(options={"renormalise": False}).json()["options"]["renormalise"] is False
    for option in ("ridge", "delta", "decode_power"):
        refused(ask(options={option: 0.5}), 422, "unknown-option", f"options.{option}")


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_encoder_that_did_not_embed_the_set_is_a_conflict(ask, stocked, refused, side):
    stocked.post("/encoders", json={"name": "third", "dim": 8})
    for answer in (ask(**{side: "third"}), ask("/translators", vectors=..., **{side: "third"})):
        refused(answer, 409, "anchors-not-embedded", "anchor_set", detail="'third'")


# --- long fits ------------------------------------------------------------------------------------


@pytest.fixture
def short(stocked, monkeypatch) -> Iterator[None]:
    """The service leaves every fit to jobs."""
    monkeypatch.setitem(stocked.app.state.services.__dict__, "request_fit_s", 0.0)


def test_a_long_fit_is_answered_with_its_job_and_the_repetition_with_the_result(
    ask, stocked, short, finished
):
    more = {"method": "ridge", "options": {"ridge": 0.1}}
    queued = ask(**more)
    assert (queued.status_code, queued.json()["kind"]) == (202, "fit")
    assert queued.headers["location"] == f"/jobs/{queued.json()['id']}"
    assert int(queued.headers["retry-after"]) >= 0
    job = finished(stocked, queued.json()["id"])
    assert job["state"] == "succeeded", job
    answer = ask(**more)
    assert answer.is_success, answer.text
    assert job["result"]["translator"] == answer.json()["translator"]


def test_clients_of_openai_are_told_to_come_again(stocked):
    scope = {"type": "http", "path": "/v1/embeddings", "headers": [], "app": stocked.app}
    error = FitQueued("A job makes it.", tables.JobRow(id="j"), retry_after_s=7)
    answer = asyncio.run(answers.fit_queued(Request(scope), error))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert b'"code":"fit-queued"' in answer.body
