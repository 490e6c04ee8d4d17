"""Texts for an endpoint: without another thread where a lane is free, in batches where none is."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.encoders.models.pool import ENDPOINT_LANES
from tests.encoders.conftest import endpoint as endpoint
from tests.encoders.models.remote.endpoints import DIM, VECTOR, expected_vectors
from tests.waiting import slack, until

CLIENTS = 3 * ENDPOINT_LANES


def register(http, endpoint, **options):
    """The encoder `ada`, which the service has loaded."""
    # Longer than all clients need to come: a request that times out gives its lane to another.
    options = {"url": endpoint.url, "timeout_s": 300, **options}
    body = {"name": "ada", "kind": "openai", "model": "truth", "options": options}
    answer = http.post("/encoders", json=body)
    assert answer.status_code == 201, answer.text
    endpoint.seen.clear()
    return http


@pytest.fixture
def http(serve, endpoint):
    return register(serve(remote_urls=endpoint.url), endpoint, prompts={"query": "query: "})


def ask(http, texts, **more):
    return http.post("/v1/embeddings", json={"model": "ada", "input": texts, **more})


def test_the_answer_is_the_endpoints_and_says_who_made_it(http, endpoint):
    made = ask(http, ["a", "b"], input_type="query", dimensions=5)
    found = [each["embedding"] for each in made.json()["data"]]
    expected = expected_vectors(["query: a", "query: b"])[:, :5]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert made.headers["anchorage-encoder"] == "ada"
    assert made.json()["usage"]["prompt_tokens"] == 6
    assert len(endpoint.seen) == 1
    assert ask(http, ["x"] * 33).json()["data"][32]["index"] == 32  # more than a batch
    assert len(endpoint.seen) == 3


def test_an_endpoint_gets_as_many_requests_as_it_has_lanes_and_the_rest_as_batches(http, endpoint):
    released = threading.Event()

    def hold(vector, text):
        assert released.wait(slack() * 20)
        return vector

    endpoint.drift = hold
    texts = [f"text {number}" for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(ask, http, text) for text in texts]
        waiting = http.app.state.services.encoders._lanes_of(endpoint.url)._owners
        until(lambda: len(waiting.get("default", ())) == CLIENTS - ENDPOINT_LANES)
        until(lambda: len(endpoint.seen) == ENDPOINT_LANES)
        released.set()
        for text, answer in zip(texts, answers, strict=True):
            [made] = answer.result().json()["data"]
            np.testing.assert_allclose([made["embedding"]], expected_vectors([text]), atol=1e-6)
    assert sorted(endpoint.texts) == sorted(texts)
    assert len(endpoint.seen) < CLIENTS
    assert ask(http, "after").status_code == 200


WRONG = {"data": [{"index": 0, "embedding": [*VECTOR[:-1], 1e39]}], "model": "truth-2026-01"}
OTHER = {"data": [{"index": 0, "embedding": VECTOR}], "model": "another"}


@pytest.mark.parametrize(
    ("answer", "status", "code", "param", "wait_s"),
    [
        ((429, {"Retry-After": "700"}, {}), 503, "encoder-failed", "input", "700"),
        ((422, {}, {}), 400, "invalid-input", "input", None),
        ((401, {}, {}), 400, "encoder-unavailable", "model", None),
        ((200, {}, WRONG), 503, "encoder-failed", "input", "1"),
        ((200, {}, {"data": []}), 503, "encoder-failed", "input", "1"),
        ((200, {}, OTHER), 400, "encoder-changed", "model", None),
    ],
)
def test_a_fault_of_the_endpoint_is_said(
    http, endpoint, complaint, answer, status, code, param, wait_s
):
    endpoint.refusals = [answer]
    refused = ask(http, "a")
    assert complaint(refused) == (status, code)
    assert refused.json()["error"]["param"] == param
    assert refused.headers.get("retry-after") == wait_s
    assert ask(http, "a").status_code == 200


def test_a_request_ends_when_its_client_leaves(listen, endpoint):
    import httpx2

    host, port = listen(remote_urls=endpoint.url)
    with httpx2.Client(base_url=f"http://{host}:{port}", trust_env=False) as http:
        register(http, endpoint)
        ended = []

        def stall(handler):
            handler.body()
            ended.append(handler.rfile.read(1))

        assert ask(http, "a").status_code == 200
        endpoint.behaviour = stall
        body = json.dumps({"model": "ada", "input": "b"}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: len(endpoint.seen) == 2)
            assert ended == []
        until(lambda: ended == [b""])
        endpoint.behaviour = None
        [made] = ask(http, "c").json()["data"]
        assert len(made["embedding"]) == DIM
