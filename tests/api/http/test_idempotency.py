"""Idempotency-Key: a creating request that is sent again makes nothing again."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import func, select

from app.storage import tables

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
DRAW = np.random.default_rng(4)
POOL = {
    "source_pool": DRAW.normal(size=(100, 8)).tolist(),
    "target_pool": DRAW.normal(size=(100, 6)).tolist(),
}
HEAD = {"name": "new", "encoder": "second", "weight": [[1.0] * 6, [0.0] * 6]}
SEEDS = {"seeds": [[0, 0], [1, 1]], "size": 2}

#: what each creating request makes, its body, and a body that is another request
CREATING = {
    "/encoders": (tables.EncoderRow, {"name": "new", "dim": 2}, {"name": "new", "dim": 3}),
    "/anchor-sets": (
        tables.AnchorSetRow,
        *(
            {"name": "new", "embeddings": {"second": [[1.0] * 6, [last] * 6]}}
            for last in (0.0, 0.5)
        ),
    ),
    "/heads": (tables.HeadRow, *({**HEAD, "classes": ["a", last]} for last in "bc")),
    "/translators": (tables.TranslatorRow, PAIR, {**PAIR, "method": "ridge"}),
    "/bootstrap": (
        tables.JobRow,
        *(
            {"name": name, "source": "first", "target": "second", **POOL, **SEEDS}
            for name in ("new", "newer")
        ),
    ),
}


def rows(client, table):
    with client.app.state.services.db.transaction() as session:
        return session.scalar(select(func.count()).select_from(table))


def send(client, path, body, key="again"):
    return client.post(path, json=body, headers={"Idempotency-Key": key})


@pytest.mark.parametrize("path", CREATING)
def test_a_repeated_request_has_the_same_answer_one_row_and_one_audit_row(stocked, path):
    table, body, _ = CREATING[path]
    before = rows(stocked, table), rows(stocked, tables.AuditRow)
    first, second = send(stocked, path, body), send(stocked, path, body)
    assert first.status_code in (201, 202), first.text
    assert (second.status_code, second.headers["location"]) == (
        first.status_code,
        first.headers["location"],
    )
    if path == "/bootstrap":  # it may run meanwhile
        assert second.json()["id"] == first.json()["id"]
        stocked.post(f"/jobs/{first.json()['id']}/cancel")
        with stocked.app.state.services.db.transaction() as session:
            made = select(tables.AuditRow).where(
                tables.AuditRow.resource == "job", tables.AuditRow.action == "create"
            )
            assert len(session.scalars(made).all()) == 1
        assert rows(stocked, table) == before[0] + 1
    else:
        assert second.json() == first.json()
        assert (rows(stocked, table), rows(stocked, tables.AuditRow)) == (
            before[0] + 1,
            before[1] + 1,
        )


def test_the_same_key_with_another_preference_is_refused(stocked, refused):
    assert send(stocked, "/translators", PAIR).status_code == 201
    answer = stocked.post(
        "/translators", json=PAIR, headers={"Idempotency-Key": "again", "Prefer": "respond-async"}
    )
    refused(answer, 422, "idempotency-key-reused", "Idempotency-Key")


@pytest.mark.parametrize("path", ["/api-keys", "/api-keys/{id}/rotate"])
def test_a_repeated_key_request_makes_one_key_and_does_not_show_it_again(
    client, refused, new_key, path
):
    id_ = new_key(client).split("_")[1]
    path, body = (path.replace("{id}", id_), {} if "{id}" in path else {"name": "new"})
    first = send(client, path, body)
    again = send(client, path, body)
    assert first.status_code == 201
    problem = refused(again, 409, "resource-gone", detail=first.json()["id"])
    assert first.json()["key"] not in str(problem)
    assert first.json()["key"].split("_", 2)[2] not in again.text
    assert rows(client, tables.ApiKeyRow) == 2
    assert rows(client, tables.AuditRow) == 2
    other = send(client, path, {"grace_s": 1} if "rotate" in path else {"name": "other"})
    refused(other, 422, "idempotency-key-reused", "Idempotency-Key")


@pytest.mark.parametrize("path", CREATING)
def test_the_same_key_with_another_body_is_refused(stocked, refused, path):
    table, body, other = CREATING[path]
    made = send(stocked, path, body)
    count = rows(stocked, table)
    refused(send(stocked, path, other), 422, "idempotency-key-reused", "Idempotency-Key")
    refused(send(stocked, path, {**body, "surplus": 1}), 422, "unknown-field", "surplus")
    assert rows(stocked, table) == count
    if path == "/bootstrap":
        stocked.post(f"/jobs/{made.json()['id']}/cancel")


@pytest.mark.parametrize("key", ["", "a" * 256, "\u00e9", "a\tb", "a\x7f"])
def test_a_key_that_is_none_is_refused(client, refused, key):
    for path, body in (("/encoders", {"name": "new", "dim": 2}), ("/api-keys", {"name": "new"})):
        answer = client.post(path, json=body, headers={"Idempotency-Key": key.encode()})
        refused(answer, 422, "invalid-request", "Idempotency-Key")
    assert client.get("/encoders").json() == {"encoders": []}


@pytest.mark.parametrize("key", ["a", "~" * 255, '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "a b"])
def test_any_printable_key_will_do(client, key):
    answers = [send(client, "/encoders", {"name": "new", "dim": 2}, key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
