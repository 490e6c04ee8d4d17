"""A silent PostgreSQL: requests that need it are refused soon; others are answered as usual."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import pytest

from app.access import service as api_keys
from app.context import RequestContext
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services
from tests.waiting import slack, until

#: for a machine that does much else
SLACK_S = 2.0


@dataclass
class Service:
    """A service on a PostgreSQL of its own, and a key of it; a translation has been asked for."""

    http: httpx2.Client
    body: dict
    headers: dict

    def translate(self) -> httpx2.Response:
        return self.http.post("/translate", json=self.body, headers=self.headers)

    def get(self, path: str) -> httpx2.Response:
        return self.http.get(path, headers=self.headers)


@pytest.fixture
def service(own_postgres, listen, tmp_path, parallel) -> Iterator[Service]:
    host, port = listen(database_url=own_postgres.url, auth="keys")
    services = make_services(Settings(data_dir=tmp_path, database_url=own_postgres.url))
    scopes = [Scope.write]
    _, key = api_keys.create_key(services, RequestContext("default"), name="k", scopes=scopes)
    services.close()
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    body = {**pair, "vectors": parallel["first"][:2].tolist()}
    headers = {"x-api-key": key}
    with httpx2.Client(base_url=f"http://{host}:{port}", timeout=60, trust_env=False) as http:
        for name, vectors in parallel.items():
            encoder = {"name": name, "dim": vectors.shape[1]}
            assert http.post("/encoders", json=encoder, headers=headers).status_code == 201
        embeddings = {name: vectors.tolist() for name, vectors in parallel.items()}
        anchors = {"name": "items", "embeddings": embeddings}
        assert http.post("/anchor-sets", json=anchors, headers=headers).status_code == 201
        service = Service(http, body, headers)
        assert service.translate().status_code == 200
        yield service
    own_postgres.thaw()  # before the service ends: it hands back what it holds


def timed(ask: Callable[[], httpx2.Response]) -> tuple[float, httpx2.Response]:
    begun = time.monotonic()
    answer = ask()
    return time.monotonic() - begun, answer


def test_whoever_needs_a_silent_postgresql_is_refused_soon_and_whoever_does_not_is_served(
    service, own_postgres
):
    expected = service.translate().json()
    own_postgres.freeze()
    frozen_at = time.monotonic()
    with ThreadPoolExecutor(4) as clients:
        ready = clients.submit(timed, lambda: service.http.get("/readyz"))
        listed = [clients.submit(timed, lambda: service.get("/encoders")) for _ in range(3)]
        for took_s, answer in [future.result() for future in listed]:
            assert (answer.status_code, answer.json()["code"]) == (503, "database-unavailable")
            assert answer.headers["retry-after"].isdecimal()
            assert took_s < slack() * (5 + SLACK_S)
        took_s, answer = ready.result()
        assert (answer.status_code, answer.json()["database"]) == (503, False)
        assert took_s < 2 * slack()
    # until the key and the names are older than is trusted otherwise
    while time.monotonic() - frozen_at < 2 * api_keys.KEY_TRUST_S + 1:
        for path in ("/readyz", "/encoders"):
            took_s, answer = timed(lambda path=path: service.get(path))
            assert (answer.status_code, took_s < 2 * slack()) == (503, True)
        took_s, answer = timed(service.translate)
        assert (answer.status_code, answer.json()) == (200, expected)
        assert took_s < slack() * SLACK_S
    stranger = service.http.get("/encoders", headers={"x-api-key": f"anc_{'0' * 32}_{'x' * 43}"})
    assert stranger.status_code == 503  # whether it opens anything, nobody can tell

    own_postgres.thaw()
    paths = ("/readyz", "/encoders")
    until(lambda: all(service.get(path).status_code == 200 for path in paths), 5 + SLACK_S)
    assert service.translate().json() == expected
