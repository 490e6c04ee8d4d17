"""A rolling restart under load of two API processes on one PostgreSQL and Redis."""

from __future__ import annotations

import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx2
import pytest

CLIENTS = 6


class Balancer:
    """Sends requests to ready servers in turn. Retries only refused connections."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = itertools.cycle(urls)
        self._http = httpx2.Client(timeout=60, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def send(self, verb: str, path: str, body: object) -> httpx2.Response:
        for url in self._urls:
            try:
                if self._http.get(f"{url}/readyz").status_code == 200:
                    return self._http.request(verb, url + path, json=body)
            except httpx2.ConnectError:
                pass
        raise AssertionError


@pytest.mark.long
def test_a_rolling_restart_under_load_drops_no_request(
    serve_process, postgres_url, redis_url, redis_prefix
):
    settings = {
        "database_url": postgres_url,
        "redis_url": redis_url,
        "redis_prefix": redis_prefix,
        "drain_s": 1,
    }
    servers = [serve_process(**settings) for _ in range(2)]
    urls = [server.url for server in servers]
    vectors = [[float(i % 5 == j) for j in range(4)] for i in range(20)]
    with closing(Balancer(urls)) as balancer:
        for name in ("first", "second"):
            assert balancer.send("POST", "/encoders", {"name": name, "dim": 4}).status_code == 201
        body = {"name": "items", "embeddings": {"first": vectors, "second": vectors}}
        assert balancer.send("POST", "/anchor-sets", body).status_code == 201
        pair = {"source": "first", "target": "second", "anchor_set": "items"}
        assert balancer.send("POST", "/translators", pair).status_code == 201
    ended, made = threading.Event(), itertools.count()

    def load(_: int) -> list[httpx2.Response]:
        answers = []
        with closing(Balancer(urls)) as client:
            while not ended.is_set():
                answers.append(client.send("POST", "/translate", {**pair, "vectors": vectors}))
                name = f"made-{next(made)}"
                answers.append(client.send("POST", "/encoders", {"name": name, "dim": 3}))
                answers.append(client.send("GET", f"/encoders/{name}", None))
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            loads = [pool.submit(load, number) for number in range(CLIENTS)]
            statuses = []
            for server in servers:
                statuses.append(server.stop())
                server.start()
        finally:
            ended.set()
        answers = [answer for found in loads for answer in found.result()]
    assert set(statuses) <= {0, -signal.SIGTERM}
    assert {answer.status_code for answer in answers} == {200, 201}, [
        answer.text for answer in answers if answer.is_error
    ][:3]
    assert len(answers) > 100
    found = {str(answer.json()["vectors"]) for answer in answers if "vectors" in answer.json()}
    assert len(found) == 1
    assert not [
        server.log.read_text() for server in servers if "Traceback" in server.log.read_text()
    ]
