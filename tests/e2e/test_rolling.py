"""A rolling restart under load of two API processes on one PostgreSQL and Redis."""

from __future__ import annotations

import base64
import itertools
import signal
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

CLIENTS = 6


class Balancer:
    """Sends requests to ready servers in turn. Retries only refused connections."""

    def __init__(self, urls):
        self._https = {
            url: httpx2.Client(base_url=url, timeout=60, trust_env=False) for url in urls
        }
        self._ready = dict.fromkeys(urls, True)
        self._turns = itertools.count()
        self._ended = threading.Event()
        self._watches = [threading.Thread(target=self._watch, args=(url,)) for url in urls]

    def __enter__(self):
        for thread in self._watches:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._watches:
            thread.join()
        for http in self._https.values():
            http.close()

    def _watch(self, url):
        while not self._ended.wait(0.05):
            try:
                self._ready[url] = (
                    httpx2.get(f"{url}/readyz", timeout=30, trust_env=False).status_code == 200
                )
            except httpx2.TransportError:
                self._ready[url] = False

    def send(self, verb, path, body):
        while True:
            urls = [url for url, ready in self._ready.items() if ready]
            if not urls:
                self._ended.wait(0.02)
                continue
            try:
                return self._https[urls[next(self._turns) % len(urls)]].request(
                    verb, path, json=body
                )
            except httpx2.ConnectError:
                continue


@pytest.mark.long
def test_a_rolling_restart_under_load_drops_no_request(
    process, postgres_url, redis_url, redis_prefix
):
    settings = {
        "database_url": postgres_url,
        "redis_url": redis_url,
        "redis_prefix": redis_prefix,
        "drain_s": 1,
    }
    servers = [process(**settings).start() for _ in range(2)]
    for server in servers:
        server.ready()
    numbers = [float(i % 5 == j) for i in range(20) for j in range(4)]
    packed = {
        "dtype": "float32",
        "shape": [20, 4],
        "base64": base64.b64encode(struct.pack("<80f", *numbers)).decode(),
    }
    with Balancer([server.url for server in servers]) as balancer:
        for name in ("first", "second"):
            assert balancer.send("POST", "/encoders", {"name": name, "dim": 4}).status_code == 201
        body = {"name": "items", "embeddings": {"first": packed, "second": packed}}
        assert balancer.send("POST", "/anchor-sets", body).status_code == 201
        pair = {"source": "first", "target": "second", "anchor_set": "items"}
        assert balancer.send("POST", "/translators", pair).status_code == 201
        ended = threading.Event()
        made = itertools.count()

        def load(_):
            answers = []
            while not ended.is_set():
                answers.append(
                    balancer.send(
                        "POST", "/translate", {**pair, "vectors": packed, "encoding": "base64"}
                    )
                )
                name = f"made-{next(made)}"
                answers.append(balancer.send("POST", "/encoders", {"name": name, "dim": 3}))
                answers.append(balancer.send("GET", f"/encoders/{name}", None))
            return answers

        with ThreadPoolExecutor(CLIENTS) as pool:
            try:
                loads = [pool.submit(load, number) for number in range(CLIENTS)]
                statuses = []
                for server in servers:
                    statuses.append(server.stop())
                    server.start().ready()
            finally:
                ended.set()
            answers = [answer for found in loads for answer in found.result()]
    assert set(statuses) <= {0, -signal.SIGTERM}
    assert {answer.status_code for answer in answers} == {200, 201}, [
        answer.text for answer in answers if answer.is_error
    ][:3]
    assert len(answers) > 100
    vectors = {
        answer.json()["vectors"]["base64"] for answer in answers if "vectors" in answer.json()
    }
    assert len(vectors) == 1
    assert not [
        server.log.read_text() for server in servers if "Traceback" in server.log.read_text()
    ]
