"""A store that accepts connections and never answers delays no other request."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.stores.handles import STORE_ANSWER_S
from tests.fixtures.shop import DOCUMENTS, QUERIES, embed, fill
from tests.waiting import slack

#: more than the threads and the queue of an address, so that some are refused at once
CALLS = 40


def test_a_frozen_store_delays_no_other_request(own_pgvector, tmp_path: Path) -> None:
    with psycopg.connect(own_pgvector.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE frozen (id bigint PRIMARY KEY, embedding vector(32))")
        for row, vector in enumerate(embed(DOCUMENTS[:40], "old").tolist()):
            connection.execute("INSERT INTO frozen VALUES (%s, %s)", [row, str(vector)])
    app = create_app(Settings(data_dir=tmp_path, stores={"main": own_pgvector.url}))
    search = {"target": "new", "anchor_set": "items", "queries": embed(QUERIES, "new").tolist()}
    with (
        TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client,
        ThreadPoolExecutor(CALLS) as pool,
    ):
        fill(client)
        body = {"name": "docs", "kind": "pgvector", "address": "main", "encoder": "old"}
        made = client.post("/stores", json={**body, "collection": "frozen"})
        assert made.status_code == 201, made.text
        assert client.post("/stores/docs/search", json=search).status_code == 200
        own_pgvector.freeze()
        began = time.monotonic()
        calls = [pool.submit(client.post, "/stores/docs/search", json=search) for _ in range(CALLS)]
        calls += [pool.submit(client.get, "/stores/docs") for _ in range(4)]
        for path in ("/livez", "/readyz", "/encoders", "/stores"):
            assert client.get(path).status_code == 200
        assert time.monotonic() - began < slack() * STORE_ANSWER_S
        for call in calls:
            answer = call.result()
            found = (answer.status_code, answer.json()["code"])
            assert found in ((503, "store-unavailable"), (429, "too-much-at-once")), answer.text
            assert "Retry-After" in answer.headers
            assert own_pgvector.url not in answer.text
        assert time.monotonic() - began < slack() * (3 * STORE_ANSWER_S)
        own_pgvector.thaw()
        until = time.monotonic() + 60 * slack()
        while client.get("/stores/docs").status_code != 200:
            assert time.monotonic() < until
