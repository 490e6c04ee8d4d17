"""The routes on PostgreSQL, with Redis and a worker. Most other tests use SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from app.db.cache import MEMORY_S
from scripts.servers import Postgres
from tests.db.helpers import closed
from tests.waiting import slack, until

JSON = {"content-type": "application/json"}


@pytest.fixture
def client(serve, own_postgres, redis_url, redis_prefix, models):
    """An API process on PostgreSQL and Redis; nobody runs its jobs."""
    redis = {"redis_url": redis_url, "redis_prefix": redis_prefix}
    return serve(database_url=own_postgres.url, models_dir=models, **redis)


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
        for path in (f"/encoders/{text}", f"/jobs?state={text}"):
            assert stocked.get(path).status_code in (404, 422), path
    for text in (r"\u0000", r"a\u0000b", r"\ud800", r"\udc00\ud800"):
        for path, body in TEXTS:
            answer = stocked.post(path, content=body.replace("%s", text), headers=JSON)
            assert answer.status_code in (400, 422), (path, body, text, answer.text)


@contextmanager
def frozen(server: Postgres) -> Iterator[None]:
    """Its processes are stopped, and the kernel still takes connections and data."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@pytest.mark.parametrize("how", ["closed", "frozen"])
def test_without_its_database_every_route_says_when_to_come_back(
    stocked, refused, new_key, bearing, serve, own_postgres, tmp_path, how
):
    locked = serve(database_url=own_postgres.url, auth="keys", data_dir=tmp_path / "locked")
    key = bearing(new_key(locked))
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    warm = {**pair, "vectors": [[0.5] * 8]}
    no_job = f"/jobs/{'0' * 32}"
    lists = ("/encoders", "/encoders/first", "/anchor-sets", "/heads/x", "/jobs")
    ids = ("/api-keys", no_job, f"/translators/tr_{'0' * 32}")
    calls = [
        *(("GET", path, None) for path in (*lists, *ids)),
        ("DELETE", "/encoders/first", None),
        ("POST", f"{no_job}/cancel", None),
        ("POST", "/encoders", {"name": "x", "dim": 2}),
        ("POST", "/translators", pair),
        ("POST", "/api-keys", {"name": "x"}),
        ("POST", "/translate", {**warm, "method": "ridge"}),
    ]
    answer = stocked.post("/translate", json=warm).json()
    begun = time.monotonic()
    with closed(stocked.app.state.services.db) if how == "closed" else frozen(own_postgres):
        # what was asked for lately asks no database
        assert stocked.post("/translate", json=warm).json() == answer
        with ThreadPoolExecutor(len(calls) + 3) as pool:  # each waits a moment for the database
            waiting = [
                pool.submit(stocked.request, verb, path, json=body) for verb, path, body in calls
            ]
            ready = pool.submit(stocked.get, "/readyz")
            metrics = pool.submit(stocked.get, "/metrics")
            waiting.append(pool.submit(locked.get, "/encoders", headers=key))
        for found in waiting:
            refused(found.result(), 503, "database-unavailable")
        assert time.monotonic() - begun < slack() * 10
        assert (ready.result().status_code, ready.result().headers["retry-after"]) == (503, "1")
        found = ready.result().json()
        assert (found["status"], found["database"]) == ("unavailable", False)
        assert metrics.result().status_code == 200
        assert 'anchorage_dependency_up{dependency="database"} 0.0' in metrics.result().text
        assert stocked.get("/livez").status_code == 200
        time.sleep(2 * MEMORY_S)  # what is remembered is older than is trusted otherwise
        assert stocked.post("/translate", json=warm).json() == answer
    until(lambda: stocked.get("/readyz").json()["status"] == "ok", 10)
    for verb, path, body in calls:
        answer = stocked.request(verb, path, json=body)
        assert answer.status_code < 500, answer.text
    until(lambda: locked.get("/encoders", headers=key).status_code == 200, 10)
