"""The routes on PostgreSQL, with Redis and a worker. Most other tests use SQLite."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import psycopg
import pytest
from sqlalchemy import func, select

from app.services.access.idempotency import REQUEST_LEASE_S
from app.storage import tables
from tests.services.reindexing.moving import make_table
from tests.waiting import until
from workers.main import Worker

JSON = {"content-type": "application/json"}


@pytest.fixture
def client(serve, postgres_url, redis_url, redis_prefix, models, pgvector_url):
    """An API process on PostgreSQL and Redis; nobody runs its jobs."""
    return serve(
        database_url=postgres_url,
        redis_url=redis_url,
        redis_prefix=redis_prefix,
        models_dir=models,
        stores={"main": pgvector_url},
    )


@pytest.fixture
def worker(client):
    """A worker beside it."""
    worker = Worker(client.app.state.services, threading.Event())
    worker.start()
    yield
    worker.stop()


def unit_rows(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def move_a_store(call, finished, table):
    """Every operation of stores and reindexings, on a table with vectors of `first`."""
    place = {"kind": "pgvector", "address": "main", "collection": table}
    call("POST", "/stores", {"name": "docs", **place, "encoder": "first", "text_field": "body"})
    call("GET", "/stores")
    call("GET", "/stores/{name}", name="docs")
    search = {"target": "second", "anchor_set": "items", "queries": [[0.5] * 6]}
    call("POST", "/stores/{name}/search", search, name="docs")
    plan = {"store": "docs", "target": "second", "anchor_set": "items"}
    given_up = call("POST", "/reindexings", plan).json()["id"]
    call("GET", "/reindexings")
    call("POST", "/reindexings/{id}/abandon", id=given_up)
    moved = call("POST", "/reindexings", {**plan, "min_recall": 0.5}).json()
    call("PUT", "/reindexings/{id}/plan", {**moved["plan"], "batch": 10}, id=moved["id"])
    call("POST", "/reindexings/{id}/run", id=moved["id"])

    def shown():
        return call("GET", "/reindexings/{id}", id=moved["id"]).json()

    call("POST", "/reindexings/{id}/pause", id=moved["id"])
    for action in ("run", "sync", "verify"):
        until(lambda action=action: action in shown()["next"])
        job = call("POST", "/reindexings/{id}/" + action, id=moved["id"]).json()
        assert finished(call.client, job["id"])["state"] == "succeeded"
    for step in ("cutover", "rollback", "cutover", "finish"):
        answer = call("POST", "/reindexings/{id}/" + step, id=moved["id"]).json()
    assert (answer["state"], answer["next"]) == ("finished", [])
    assert call("GET", "/stores/{name}", name="docs").json()["encoder"] == "second"
    call("DELETE", "/stores/{name}", name="docs")


def test_every_operation_succeeds_on_postgresql(
    stocked, worker, embeddings, finished, new_key, pgvector_server
):
    done = set()

    def call(verb, path, body=None, headers=None, **names):
        answer = stocked.request(verb, path.format(**names), json=body, headers=headers)
        assert answer.status_code in (200, 201, 202, 204), (verb, path, answer.text)
        done.add((verb, path.partition("?")[0]))
        return answer

    call.client = stocked
    first = embeddings["first"]
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    call("POST", "/encoders", {"name": "third", "dim": 8})
    call("GET", "/encoders/{name}", name="third")
    call(
        "PUT",
        "/anchor-sets/{name}/embeddings/{encoder}",
        {"vectors": first.tolist()},
        name="items",
        encoder="third",
    )
    call("POST", "/anchor-sets", {"name": "other", "embeddings": {"third": first[:5].tolist()}})
    assert [row["name"] for row in call("GET", "/anchor-sets").json()["anchor_sets"]] == [
        "items",
        "other",
    ]
    assert call("GET", "/anchor-sets/{name}", name="items").json()["encoders"] == [
        "first",
        "second",
        "third",
    ]
    call(
        "POST",
        "/anchor-sets/{name}/items",
        {"embeddings": {"third": first[5:8].tolist()}},
        name="other",
    )
    call(
        "PUT",
        "/anchor-sets/{name}/samples/{encoder}",
        {"vectors": first.tolist(), "store_size": 1_000},
        name="other",
        encoder="third",
    )
    call("DELETE", "/anchor-sets/{name}/samples/{encoder}", name="other", encoder="third")
    call("DELETE", "/anchor-sets/{name}", name="other")
    assert (
        call(
            "POST",
            "/relative",
            {"encoder": "first", "anchor_set": "items", "vectors": first.tolist()},
        ).json()["dim"]
        == 40
    )
    translated = call("POST", "/translate", {**pair, "vectors": first.tolist()}).json()
    candidates = [{"ids": list(range(40)), "vectors": first.tolist()}]
    queries = embeddings["second"][:1].tolist()
    found = call("POST", "/rescore", {**pair, "queries": queries, "candidates": candidates})
    assert len(found.json()["results"][0]["ids"]) == 40
    assert call("POST", "/advice", pair).json()["advice"] == "keep"
    made = call("POST", "/translators", pair).json()
    assert call("GET", "/translators/{id}", id=translated["translator"]).json() == made
    call("GET", "/translators/{id}/file", id=translated["translator"])
    named = made["id"]
    assert [each["id"] for each in call("GET", "/translators").json()["translators"]] == [named]
    assert call("GET", "/translators/{id}/threshold?source=0.5", id=named).json()["source"] == 0.5
    call("GET", "/translators/{id}/calibration", id=named)
    contract = {"name": "items", "source": "first", "target": "second"}
    call(
        "PUT",
        "/anchor-sets/{name}/contracts/{source}/{target}",
        {"min_quality": {"cosine": 0.1}},
        **contract,
    )
    assert len(call("GET", "/anchor-sets/{name}/contracts", name="items").json()["contracts"]) == 1
    call("POST", "/translate", {**pair, "vectors": first.tolist()})
    call("DELETE", "/anchor-sets/{name}/contracts/{source}/{target}", **contract)
    items = {"vectors": first.tolist(), "native": embeddings["second"].tolist()}
    assert call("POST", "/evaluate", {**pair, **items}).json()["n"] == 40
    job = call("POST", "/evaluate", {**pair, **items}, {"Prefer": "respond-async"}).json()
    assert finished(stocked, job["id"])["state"] == "succeeded"
    call("GET", "/anchor-sets/{name}/report", name="items")
    call(
        "POST",
        "/anchor-sets/{name}/suggest",
        {"encoder": "first", "pool": first.tolist(), "count": 2},
        name="items",
    )
    call(
        "POST",
        "/anchor-sets/{name}/drift",
        {"encoder": "first", "vectors": first.tolist()},
        name="items",
    )
    job = call(
        "POST", "/translators", {**pair, "method": "ridge"}, {"Prefer": "respond-async"}
    ).json()
    assert finished(stocked, job["id"])["state"] == "succeeded"
    call(
        "POST",
        "/heads",
        {
            "name": "head",
            "encoder": "second",
            "classes": ["a", "b"],
            "weight": [[1.0] * 6, [0.0] * 6],
        },
    )
    call("GET", "/heads/{name}", name="head")
    body = {"encoder": "first", "head": "head", "anchor_set": "items", "vectors": first.tolist()}
    assert len(call("POST", "/stitch", body).json()["labels"]) == 40
    pools = {
        "source_pool": first.tolist(),
        "target_pool": embeddings["second"].tolist(),
        "seeds": [[i, i] for i in range(8)],
    }
    how = {"method": "paper", "min_right": 0, "size": 9, "options": {"steps": 5}}
    body = {"name": "grown", "source": "first", "target": "second", **pools, **how}
    job = call("POST", "/bootstrap", body).json()
    assert finished(stocked, job["id"])["state"] == "succeeded"
    assert call("GET", "/anchor-sets/{name}", name="grown").json()["provenance"]["job"] == job["id"]
    assert call("GET", "/anchor-sets/{name}/pairs", name="grown").json()["pairs"][:8] == [
        [i, i] for i in range(8)
    ]
    call("PUT", "/pools/{name}", {"encoder": "first", "vectors": first[:30].tolist()}, name="x")
    assert (
        call(
            "POST",
            "/pools/{name}/vectors",
            {"offset": 30, "vectors": first[30:].tolist()},
            name="x",
        ).json()["items"]
        == 40
    )
    named = call("POST", "/bootstrap", {**body, "name": "named", "source_pool": "x"}).json()
    assert finished(stocked, named["id"])["state"] == "succeeded"
    both = [
        call("GET", "/anchor-sets/{name}/pairs", name=name).json() for name in ("grown", "named")
    ]
    assert both[0] == both[1]
    assert call("GET", "/pools").json() == {
        "pools": [call("GET", "/pools/{name}", name="x").json()]
    }
    call("DELETE", "/pools/{name}", name="x")
    events = call("GET", "/jobs/{id}/events", id=job["id"]).text
    assert "event: end" in events
    call("GET", "/jobs/{id}", id=job["id"])
    assert len(call("GET", "/jobs").json()["jobs"]) == 4
    body = {**body, "name": "never", "options": {"steps": 2000, "sinkhorn_steps": 100}}
    call("POST", "/jobs/{id}/cancel", id=call("POST", "/bootstrap", body).json()["id"])
    call("POST", "/encoders", {"name": "toy", "kind": "sentence-transformers", "model": "toy"})
    texts = ["a card", "the rate", "cash", "a loan", "my rent", "fees"]
    job = call(
        "POST",
        "/anchor-sets",
        {"name": "texts", "inputs": texts, "encoders": ["toy"]},
        {"Prefer": "respond-async"},
    ).json()
    assert finished(stocked, job["id"])["state"] == "succeeded"
    call(
        "PUT",
        "/anchor-sets/{name}/embeddings/{encoder}",
        {"vectors": first[:6].tolist()},
        name="texts",
        encoder="first",
    )
    made = call("POST", "/v1/embeddings", {"model": "toy->first@texts", "input": texts}).json()
    assert len(made["data"][5]["embedding"]) == 8
    assert {model["id"] for model in call("GET", "/v1/models").json()["data"]} == {
        "toy",
        "toy->first@texts",
    }
    call("GET", "/v1/models/{model}", model="toy")
    call("PUT", "/aliases/{name}", {"model": "toy->first@texts"}, name="plain")
    call("PUT", "/aliases/{name}", {"model": "toy"}, name="plain")
    shown = call("GET", "/aliases/{name}", name="plain").json()
    assert (call("GET", "/aliases").json(), shown["model"]) == ({"aliases": [shown]}, "toy")
    call("POST", "/v1/embeddings", {"model": "plain", "input": texts})
    call("DELETE", "/aliases/{name}", name="plain")
    made = call("POST", "/v1/embeddings", {"model": "toy", "input": texts}).json()["data"]
    own = [each["embedding"] for each in made]
    assert call(
        "POST", "/encoders/{name}/verify", {"inputs": texts, "vectors": own}, name="toy"
    ).json()["matches"]
    call("DELETE", "/heads/{name}", name="head")
    assert call("GET", "/heads").json() == {"heads": []}
    key = call("POST", "/api-keys", {"name": "x", "expires_at": "2100-01-01T00:00:00+02:00"}).json()
    shown = call("GET", "/api-keys/{id}", id=key["id"]).json()
    assert datetime.fromisoformat(shown["expires_at"]) == datetime(2099, 12, 31, 22, tzinfo=UTC)
    assert shown["last_used_at"] is None
    call("POST", "/api-keys/{id}/rotate", {"grace_s": 60}, id=key["id"])
    call("DELETE", "/api-keys/{id}", id=key["id"])
    assert len(call("GET", "/api-keys").json()["api_keys"]) == 2
    actions = Counter(row["action"] for row in call("GET", "/audit").json()["writes"])
    assert actions["create"] >= 10
    assert (
        actions["rotate"],
        actions["revoke"],
        actions["cancel"],
        actions["embed"],
        actions["delete"],
    ) == (1, 1, 1, 2, 5)
    assert actions["append"] == 2
    call(
        "DELETE",
        "/encoders/{name}",
        name=call("POST", "/encoders", {"name": "brief", "dim": 2}).json()["name"],
    )
    move_a_store(call, finished, make_table(pgvector_server, unit_rows(first)))
    for path in (
        "/encoders",
        "/livez",
        "/readyz",
        "/metrics",
    ):
        call("GET", path)
    paths = stocked.get("/openapi.json").json()["paths"]
    assert done == {(verb.upper(), path) for path, verbs in paths.items() for verb in verbs}


def test_no_text_in_an_address_is_a_fault_of_the_service(stocked):
    for text in ("%00", "a%00b", "%ED%A0%80", "%F0%9F%A6%8A", "%27", "%5C", "%25"):
        for path in (
            f"/encoders?after={text}",
            f"/heads?after={text}",
            f"/aliases?after={text}",
            f"/anchor-sets?after={text}",
        ):
            assert stocked.get(path).status_code in ((422,) if "%00" in text else (200, 422)), path
        for path in (
            f"/encoders/{text}",
            f"/jobs/{text}",
            f"/jobs?state={text}",
            f"/audit?before={text}",
            f"/api-keys/{text}",
            f"/aliases/{text}",
        ):
            assert stocked.get(path).status_code in (404, 422), path


HEAD = '"encoder": "second", "weight": [[1,1,1,1,1,1],[0,0,0,0,0,0]]'

#: bodies with a place for text, which no value of these fields may hold
TEXTS = [
    ("/encoders", '{"name": "%s", "dim": 2}'),
    ("/encoders", '{"name": "x", "%s": 2}'),
    ("/encoders", '{"name": "x", "kind": "sentence-transformers", "model": "%s"}'),
    ("/encoders", '{"name": "x", "kind": "sentence-transformers", "model": "m", "revision": "%s"}'),
    ("/anchor-sets", '{"name": "x", "embeddings": {"%s": [[1, 2]]}}'),
    ("/anchor-sets", '{"name": "x", "inputs": ["a"], "encoders": ["%s"]}'),
    ("/heads", '{"name": "%s", "classes": ["a", "b"], ' + HEAD + "}"),
    (
        "/translate",
        '{"source": "first", "target": "%s", "anchor_set": "items", "vectors": [[1, 2]]}',
    ),
    (
        "/translate",
        '{"source": "first", "target": "second", "anchor_set": "items", "inputs": ["%s"]}',
    ),
    ("/bootstrap", '{"name": "%s"}'),
    ("/v1/embeddings", '{"model": "toy", "input": ["x"], "input_type": "%s"}'),
    ("/api-keys", '{"name": "%s"}'),
    ("/api-keys", '{"name": "x", "rate_limit": "%s"}'),
]


def test_no_text_in_a_body_is_a_fault_of_the_service(stocked):
    for text in (r"\u0000", r"a\u0000b", r"\ud800", r"\udc00\ud800"):
        for path, body in TEXTS:
            answer = stocked.post(path, content=body.replace("%s", text), headers=JSON)
            assert answer.status_code in (400, 422), (path, body, text, answer.text)


@pytest.mark.parametrize("label", [r"\u0000", r"\ud800", "\U0001f98a", ""])
def test_a_class_is_kept_as_it_was_sent_or_refused(stocked, label):
    body = ('{"name": "x", "classes": ["%s", "b"], ' + HEAD + "}").replace("%s", label)
    answer = stocked.post("/heads", content=body.encode(), headers=JSON)
    assert answer.status_code in (201, 400, 422), answer.text
    if answer.status_code == 201:
        assert stocked.get("/heads/x").json() == answer.json()


def test_of_many_equal_requests_at_once_one_makes_something(stocked):
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    wanted = [
        ("/encoders", {"name": "new", "dim": 2}, tables.EncoderRow),
        ("/translators", pair, tables.TranslatorRow),
    ]
    wanted += [("/api-keys", {"name": "new"}, tables.ApiKeyRow)]
    assert REQUEST_LEASE_S > 30, (
        "else a slow machine's second try could take the first one's claim over"
    )
    for path, body, table in wanted:
        with stocked.app.state.services.db.transaction() as session:
            before = session.scalar(select(func.count()).select_from(table))

        def send(_: int, path: str = path, body: dict = body) -> object:
            return stocked.post(path, json=body, headers={"Idempotency-Key": path})

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(16)))
        codes = {answer.json().get("code", "made") for answer in answers}
        assert codes <= {
            "made",
            "request-in-progress",
            "resource-gone" if table is tables.ApiKeyRow else "made",
        }
        assert "made" in codes
        with stocked.app.state.services.db.transaction() as session:
            assert session.scalar(select(func.count()).select_from(table)) == before + 1
            made = select(func.count()).where(
                tables.AuditRow.origin.is_not(None), tables.AuditRow.action == "create"
            )
            assert (
                session.scalar(
                    made.where(
                        tables.AuditRow.resource == {"/encoders": "encoder"}.get(path, path[1:-1])
                    )
                )
                == before + 1
            )


def test_without_keys_of_the_same_name_one_of_many_requests_wins(stocked):
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: stocked.post("/encoders", json={"name": "new", "dim": 2}), range(16))
        )
    assert Counter(answer.status_code for answer in answers) == {201: 1, 409: 15}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {
        "name-taken",
        "conflict",
    }


def test_two_processes_that_fit_one_translator_at_once_both_answer(
    stocked, serve, postgres_url, redis_url, redis_prefix, tmp_path
):
    other = serve(database_url=postgres_url, redis_url=redis_url, redis_prefix=redis_prefix)
    # FastAPI completes a route at its first request, and suppresses warnings in a way that two
    # threads break.
    assert other.post("/translate", json={}).status_code == 422
    pair = {
        "source": "first",
        "target": "second",
        "anchor_set": "items",
        "method": "ridge",
        "vectors": [[0.5] * 8],
    }
    with ThreadPoolExecutor(8) as pool:
        for ridge in range(1, 25):
            body = {**pair, "options": {"ridge": ridge}}
            answers = list(
                pool.map(
                    lambda place, body=body: (stocked, other)[place % 2].post(
                        "/translate", json=body
                    ),
                    range(8),
                )
            )
            assert {answer.status_code for answer in answers} == {200}, [
                answer.text for answer in answers
            ]
            assert len({answer.json()["translator"] for answer in answers}) == 1


@pytest.fixture
def away(postgres_server, postgres_url):
    """Take this test's database away, and give it back."""
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_server.replace("+psycopg", ""), autocommit=True) as connection:

        def change(there):
            connection.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS {there}')
            if not there:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                    [name],
                )

        yield change


def test_without_its_database_every_route_says_when_to_come_back(
    stocked, away, refused, new_key, bearing, serve, postgres_url, tmp_path
):
    locked = serve(database_url=postgres_url, auth="keys", data_dir=tmp_path / "locked")
    key = bearing(new_key(locked))
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    calls = [
        ("GET", path, None)
        for path in (
            "/encoders",
            "/encoders/first",
            "/anchor-sets",
            "/heads/x",
            "/jobs",
            "/audit",
            "/api-keys",
        )
    ]
    calls += [
        ("GET", f"/jobs/{'0' * 32}/events", None),
        ("GET", f"/translators/tr_{'0' * 32}", None),
    ]
    calls += [("DELETE", "/encoders/first", None), ("POST", f"/jobs/{'0' * 32}/cancel", None)]
    calls += [
        ("POST", "/encoders", {"name": "x", "dim": 2}),
        ("POST", "/translators", pair),
        ("POST", "/api-keys", {"name": "x"}),
    ]
    calls += [("POST", "/translate", {**pair, "method": "ridge", "vectors": [[0.5] * 8]})]
    warm = {**pair, "vectors": [[0.5] * 8]}
    answer = stocked.post("/translate", json=warm).json()
    away(False)
    assert (
        stocked.post("/translate", json=warm).json() == answer
    )  # what was asked for lately asks no database
    with ThreadPoolExecutor(len(calls) + 3) as pool:  # each waits a moment for the database
        headers = {"Idempotency-Key": "again"}
        waiting = [
            pool.submit(stocked.request, verb, path, json=body, headers=headers)
            for verb, path, body in calls
        ]
        ready, metrics, keyed = (
            pool.submit(stocked.get, "/readyz"),
            pool.submit(stocked.get, "/metrics"),
            pool.submit(locked.get, "/encoders", headers=key),
        )
    for answer in [*(found.result() for found in waiting), keyed.result()]:
        refused(answer, 503, "database-unavailable")
    answer = ready.result()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (answer.json()["status"], answer.json()["database"]) == ("unavailable", False)
    assert metrics.result().status_code == 200
    assert 'anchorage_dependency_up{dependency="database"} 0.0' in metrics.result().text
    assert stocked.get("/livez").status_code == 200
    away(True)
    assert stocked.get("/readyz").json()["status"] == "ok"
    for verb, path, body in calls:
        answer = stocked.request(
            verb, path, json=body, headers={"Idempotency-Key": f"again {path}"}
        )
        assert answer.status_code < 500, answer.text
    assert locked.get("/encoders", headers=key).status_code == 200
