"""The routes on PostgreSQL, with Redis and a worker. Most other tests use SQLite."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

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


#: bodies with a place for text, which no value of these fields may hold
TEXTS = [
    ("/encoders", '{"name": "x", "kind": "sentence-transformers", "model": "%s"}'),
    ("/anchor-sets", '{"name": "x", "embeddings": {"%s": [[1, 2]]}}'),
    ("/translate", '{"source": "first", "target": "%s", "anchor_set": "items", "vectors": [[1]]}'),
    ("/v1/embeddings", '{"model": "toy", "input": ["x"], "input_type": "%s"}'),
    ("/api-keys", '{"name": "%s"}'),
]


def test_no_text_is_a_fault_of_the_service(stocked):
    for text in ("%00", "%ED%A0%80", "%27"):
        for path in (f"/encoders/{text}", f"/jobs?state={text}", f"/audit?before={text}"):
            assert stocked.get(path).status_code in (404, 422), path
    for text in (r"\u0000", r"a\u0000b", r"\ud800", r"\udc00\ud800"):
        for path, body in TEXTS:
            answer = stocked.post(path, content=body.replace("%s", text), headers=JSON)
            assert answer.status_code in (400, 422), (path, body, text, answer.text)


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
        waiting = [
            pool.submit(stocked.request, verb, path, json=body) for verb, path, body in calls
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
        answer = stocked.request(verb, path, json=body)
        assert answer.status_code < 500, answer.text
    assert locked.get("/encoders", headers=key).status_code == 200
