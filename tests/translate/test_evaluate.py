"""/evaluate."""

from __future__ import annotations

import numpy as np
import pytest

from app.translate import evaluate as evaluation
from tests.translate.translations import PAIR

ASYNC = {"Prefer": "respond-async"}


@pytest.fixture
def items(embeddings) -> dict[str, np.ndarray]:
    """Thirty items by both encoders, each near an anchor."""
    draw = np.random.default_rng(1)
    first, second = (rows[:30] + draw.normal(size=(30, 1)) for rows in embeddings.values())
    return {"vectors": first.tolist(), "native": second.tolist()}


@pytest.fixture
def ask(stocked, items):
    """POST /evaluate of the thirty items; a value of ... leaves a field out."""

    def post(headers=None, **more):
        body = {**PAIR, **items, **more}
        body = {key: value for key, value in body.items() if value is not ...}
        return stocked.post("/evaluate", json=body, headers=headers)

    return post


# --- as a job -------------------------------------------------------------------------------------


def test_what_takes_long_is_done_by_a_job_unasked(ask, stocked, finished, monkeypatch):
    now = ask().json()
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
    reader, writer = (bearing(new_key(locked, scope)) for scope in ("read", "write"))
    lists = {name: vectors.tolist() for name, vectors in embeddings.items()}
    for name, vectors in embeddings.items():
        locked.post("/encoders", json={"name": name, "dim": vectors.shape[1]}, headers=writer)
    locked.post("/anchor-sets", json={"name": "items", "embeddings": lists}, headers=writer)
    body = {**PAIR, **items}
    assert locked.post("/evaluate", json=body, headers=reader).status_code == 200
    answer = locked.post("/evaluate", json=body, headers={**reader, **ASYNC})
    refused(answer, 403, "scope-missing", detail="write")
    assert locked.get("/jobs", headers=reader).json() == {"jobs": []}
    assert locked.post("/evaluate", json=body, headers={**writer, **ASYNC}).status_code == 202


# --- bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"vectors": ..., "native": ...}, 422, "missing-field", "vectors", None),
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


def test_a_project_that_evaluates_as_much_as_it_may_is_refused(ask, stocked, refused, monkeypatch):
    services = stocked.app.state.services
    monkeypatch.setitem(services.__dict__, "turn_wait_s", 0.01)
    with services.take(services.turns.evaluations, "default"):
        refused(ask(), 429, "too-much-at-once", detail="evaluations")
    assert ask().status_code == 200
