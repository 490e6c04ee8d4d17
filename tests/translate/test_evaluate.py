"""/evaluate."""

from __future__ import annotations

import numpy as np
import pytest

from app.translate import evaluate as evaluation

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def items() -> dict[str, np.ndarray]:
    """Thirty new items by both encoders of `embeddings`."""
    generator = np.random.default_rng(7)
    generator.normal(size=(40, 8))
    rotation, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    first = np.random.default_rng(1).normal(size=(30, 8)) + 0.5
    second = (
        3.0 * (first @ rotation)[:, :6] + 0.05 * np.random.default_rng(2).normal(size=(30, 6)) - 2.0
    )
    return {"vectors": first, "native": second}


@pytest.fixture
def ask(stocked, items):
    """POST /evaluate of the thirty items; a value of ... leaves a field out."""

    def post(headers=None, client=None, **more):
        body = {
            **PAIR,
            "vectors": items["vectors"].tolist(),
            "native": items["native"].tolist(),
            **more,
        }
        body = {key: value for key, value in body.items() if value is not ...}
        return (client or stocked).post("/evaluate", json=body, headers=headers)

    return post


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- as a job -------------------------------------------------------------------------------------


def test_what_takes_long_is_done_by_a_job_unasked(ask, stocked, finished, monkeypatch):
    now = good(ask())
    cost = 3 * 30 * 30 * (8 + evaluation.MULTIPLICATIONS_PER_COSINE) + 3 * 40 * 8 * 8
    monkeypatch.setattr(evaluation, "REQUEST_MULTIPLICATIONS", cost)
    assert ask().status_code == 200
    monkeypatch.setattr(evaluation, "REQUEST_MULTIPLICATIONS", cost - 1)
    answer = ask()
    assert (answer.status_code, "preference-applied" in answer.headers) == (202, False)
    assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
    job = finished(stocked, answer.json()["id"])
    assert (job["kind"], job["result"]) == ("evaluate", now)
    assert job["progress"]["done"] == job["progress"]["total"] > 0


def test_a_key_that_reads_may_ask_and_one_that_writes_may_leave_a_job(
    locked, new_key, bearing, refused, items, embeddings
):
    admin, reader, writer = (
        bearing(new_key(locked, scope)) for scope in ("admin", "read", "write")
    )
    for name, vectors in embeddings.items():
        locked.post("/encoders", json={"name": name, "dim": vectors.shape[1]}, headers=admin)
    sets = {
        "name": "items",
        "embeddings": {name: vectors.tolist() for name, vectors in embeddings.items()},
    }
    locked.post("/anchor-sets", json=sets, headers=admin)
    body = {**PAIR, "vectors": items["vectors"].tolist(), "native": items["native"].tolist()}
    assert locked.post("/evaluate", json=body, headers=reader).status_code == 200
    refused(
        locked.post("/evaluate", json=body, headers={**reader, **ASYNC}),
        403,
        "scope-missing",
        detail="write",
    )
    assert locked.get("/jobs", headers=reader).json() == {"jobs": []}
    assert locked.post("/evaluate", json=body, headers={**writer, **ASYNC}).status_code == 202


# --- bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"vectors": ..., "native": ...}, 422, "missing-field", "vectors", None),
        ({"source": "unknown"}, 404, "encoder-not-found", "source", None),
        ({"vectors": [[1.0] * 8, [1.0] * 7, [2.0] * 8]}, 422, "ragged-rows", "vectors", [1]),
        ({"corpus": [[1.0] * 8] * 30}, 422, "dimension-mismatch", "corpus", None),
        ({"corpus": [[1.0] * 6] * 2001}, 413, "too-many-vectors", "corpus", None),
        ({"k": 3, "corpus": [[1.0] * 6] * 2}, 422, "invalid-request", "k", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_refused_and_no_job_remains(
    ask, stocked, refused, change, status, code, field, rows
):
    refused(ask(**change), status, code, field, rows)
    refused(ask(ASYNC, **change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}


def test_an_option_that_only_a_fit_finds_wrong_is_refused_or_fails_the_job(
    ask, stocked, refused, finished
):
    change = {"method": "irp", "options": {"omega": 41}}
    refused(ask(**change), 422, "invalid-option", "options.omega")
    job = finished(stocked, ask(ASYNC, **change).json()["id"])
    assert (job["state"], job["error"]["code"], job["error"]["field"]) == (
        "failed",
        "invalid-option",
        "options.omega",
    )


def test_a_project_that_evaluates_as_much_as_it_may_is_refused(ask, stocked, refused, monkeypatch):
    services = stocked.app.state.services
    monkeypatch.setitem(services.__dict__, "turn_wait_s", 0.01)
    with services.take(services.turns.evaluations, "default"):
        refused(ask(), 429, "too-much-at-once", detail="evaluations")
    assert ask().status_code == 200
