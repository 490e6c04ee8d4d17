"""JSON bodies: the worst one delays nobody, and their limit is smaller than that of npy."""

from __future__ import annotations

import http.client
import io
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from app.http.bodies import MAX_CONTAINERS
from tests.waiting import slack

#: JSON of 8 MiB that takes as much memory and time as possible
COSTLY = {
    "lists": b"[" + b"[]," * (MAX_CONTAINERS - 1) + b"1]",
    "too many": b"[" + b"{}," * (2**23 // 3 - 1) + b"1]",
    "texts": b"[" + b'"",' * (2**23 // 3 - 1) + b"1]",
    "nesting": b"[" * 2**23,
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_worst_json_is_refused_while_others_are_answered(listen, name):
    address, data = listen(), COSTLY[name]

    def send(_number: int) -> int:
        with closing(http.client.HTTPConnection(*address, timeout=60)) as client:
            client.request("POST", "/translate", data, {"Content-Type": "application/json"})
            return client.getresponse().status

    def ask() -> float:
        begun = time.monotonic()
        with closing(http.client.HTTPConnection(*address, timeout=60)) as client:
            client.request("GET", "/livez")
            assert client.getresponse().status == 200
        return time.monotonic() - begun

    with ThreadPoolExecutor(4) as pool:
        bodies = pool.map(send, range(4))
        slowest = max(ask() for _ in range(20))
        assert set(bodies) <= {400, 413, 422}
    assert slowest < 5 * slack()  # far below the time of all bodies, also on a loaded machine


def test_json_has_a_smaller_limit_than_npy(serve, refused):
    client = serve(max_json=2_000, max_body_bytes=4_000)
    headers = {"content-type": "application/json"}
    body = b" " * 2_001
    for content in (body, iter([body])):  # the second one is chunked
        answer = client.post("/relative", content=content, headers=headers)
        assert refused(answer, 413, "body-too-large")["limit"] == 2_000
    file = io.BytesIO()
    np.save(file, np.ones((3, 300), np.float32))
    path, headers = "/relative?encoder=x&anchor_set=y", {"content-type": "application/x-npy"}
    answer = client.post(path, content=file.getvalue(), headers=headers)
    refused(answer, 404, "anchor-set-not-found", "anchor_set")


@pytest.mark.parametrize("count", [1, 60, 900])  # parsed at once, and in a thread
def test_bodies_of_every_size_are_answered_and_refused_alike(stocked, refused, count):
    rows = np.random.default_rng(count).normal(size=(count, 8)).tolist()
    body = {"encoder": "first", "anchor_set": "items", "encoding": "base64"}
    whole = stocked.post("/relative", json={**body, "vectors": rows}).json()
    assert (whole["count"], whole["flags"]) == (count, [])
    for wrong, code in ((None, "bad-dtype"), (1e39, "value-out-of-range")):
        rows[-1][7] = wrong
        answer = stocked.post("/relative", json={**body, "vectors": rows})
        refused(answer, 422, code, "vectors", [count - 1])
