"""Requests and bytes in flight, slow and hostile connections, and limits outside bodies."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import httpx2
import pytest

from app.http import bodies
from app.http.connections import HEAD_BYTES, BoundedHttp
from app.main import create_app
from app.settings import Settings
from app.translate import fit as translators
from app.types import Scope
from tests.serving import listening
from tests.waiting import slack, until

ENCODER = json.dumps({"name": "x", "dim": 2}).encode()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server with default settings and no encoder, for tests that leave it so."""
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("connections")))
    with listening(app) as address:
        yield address


class Slow:
    """A client that has sent the first byte of its body, to a server that has begun to read it."""

    def __init__(self, address, body=ENCODER, *headers, length=None):
        self.socket = socket.create_connection(address, timeout=30)
        self.rest = body[1:]
        head = [
            "POST /encoders HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            "Expect: 100-continue",
            *headers,
            length or f"Content-Length: {len(body)}",
        ]
        first = b"" if length else body[:1]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + first)
        assert self.socket.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE

    def finish(self):
        self.socket.sendall(self.rest)
        return self.read()

    def read(self):
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        answer.read()
        self.socket.close()
        return answer.status


def ask(address, verb="GET", path="/encoders", **request):
    url = "http://{}:{}{}".format(*address, path)
    return httpx2.request(verb, url, timeout=60, trust_env=False, **request)


def post(address, path, body):
    return ask(address, "POST", path, json=body).status_code


# --- requests and bytes in flight -----------------------------------------------------------------


def test_requests_above_the_servers_room_are_refused_and_health_is_not(listen, refused):
    address = listen(max_in_flight=1)
    slow = Slow(address)
    assert refused(ask(address), 429, "too-much-at-once")["retry_after"] == 1
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert ask(address, path=path).status_code == 200
    assert slow.finish() == 201
    until(lambda: ask(address).status_code == 200)


def test_one_project_leaves_room_to_others(listen, bearing, first_keys):
    keys = first_keys(("greedy", Scope.write), ("other", Scope.write))
    address = listen(auth="keys", max_in_flight=4)
    slow = [Slow(address, ENCODER, f"X-API-Key: {keys[0]}") for _ in range(2)]
    found = [ask(address, headers=bearing(key)).status_code for key in keys]
    assert found == [429, 200]
    assert sorted(one.finish() for one in slow) == [201, 409]


def test_requests_without_a_working_key_take_no_room_for_their_bodies(listen, bearing, first_keys):
    [key] = first_keys(("p", Scope.write))
    address = listen(auth="keys", max_in_flight_bytes=5000, max_body_bytes=4500)
    unknown = f"X-API-Key: anc_{'0' * 32}_{'A' * 43}"
    slow = [Slow(address, ENCODER.ljust(4000), unknown) for _ in range(4)]
    headers = {**bearing(key), "content-type": "application/json"}
    assert ask(address, "POST", content=b" " * 4000, headers=headers).status_code == 400
    assert [one.finish() for one in slow] == [401] * 4


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_answers_take_room_before_they_are_made(listen, encoding):
    """A small request can cause an answer of megabytes, which its client need not read."""
    address = listen(max_in_flight_bytes=600_000)
    for name, dim in (("small", 1), ("large", 2000)):
        assert post(address, "/encoders", {"name": name, "dim": dim}) == 201
    anchors = {"small": [[1], [2], [4]], "large": [[row] * 1999 + [1] for row in range(3)]}
    assert post(address, "/anchor-sets", {"name": "set", "embeddings": anchors}) == 201
    body = {"source": "small", "target": "large", "anchor_set": "set", "encoding": encoding}
    body |= {"vectors": [[1.5]] * 8}
    slow = Slow(address, ENCODER.ljust(90_000))  # together with it, 8 x 2,000 numbers are too much
    assert post(address, "/translate", body) == 429
    assert post(address, "/translate", {**body, "vectors": [[1.5]] * 3}) == 200
    assert slow.finish() == 201
    body["vectors"] *= 20  # one request alone may need more
    until(lambda: post(address, "/translate", body) == 200)


def test_a_service_whose_threads_are_all_busy_still_says_that_it_is_ready(address, monkeypatch):
    free, resolve = threading.Event(), translators.resolve
    monkeypatch.setattr(translators, "resolve", lambda *given: free.wait(60) and resolve(*given))
    body = {"encoder": "x", "anchor_set": "x", "vectors": [[1]]}
    with ThreadPoolExecutor(60) as pool:
        # more than the framework has threads
        slow = [pool.submit(post, address, "/relative", body) for _ in range(60)]
        try:
            assert ask(address, path="/readyz").status_code == 200
            assert not any(one.done() for one in slow)
        finally:
            free.set()
        assert {one.result() for one in slow} == {404}


def test_a_body_of_unknown_length_counts_as_the_largest_there_may_be(listen):
    address = listen(max_in_flight_bytes=9000, max_body_bytes=4000)
    slow = Slow(address, length="Transfer-Encoding: chunked")
    assert post(address, "/encoders", {"name": "x" * 1000}) == 429
    slow.rest = f"{len(ENCODER):x}\r\n".encode() + ENCODER + b"\r\n0\r\n\r\n"
    assert slow.finish() == 201


def test_neither_room_nor_a_refusal_waits_for_a_body_that_does_not_arrive(listen, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    monkeypatch.setattr(bodies, "DISCARD_S", 0.2)
    address = listen(max_in_flight=1)
    assert Slow(address).read() == 408
    until(lambda: ask(address).json() == {"encoders": []})
    assert Slow(listen(auth="keys")).read() == 401


@pytest.mark.parametrize("settings", [{"auth": "keys"}, {"max_json": 2_000_000}])
def test_a_refused_body_is_read_and_its_refusal_too(listen, settings):
    """Clients send all before they read the answer; some saw a reset connection."""
    address = listen(max_body_bytes=2_000_000, **settings)
    with closing(http.client.HTTPConnection(*address, timeout=30)) as client:
        for size, more in ((2_400_000, {}), (3_800_000, {}), (3_000_000, {"Connection": "close"})):
            headers = {"Content-Type": "application/json", **more}
            client.request("POST", "/translate", b" " * size, headers)
            answer = client.getresponse()
            status = 401 if "auth" in settings else 413
            assert (answer.status, json.loads(answer.read())["status"]) == (status, status)


# --- connections ----------------------------------------------------------------------------------


def test_a_new_connection_replaces_one_that_is_idle_and_none_that_is_answered(listen, monkeypatch):
    """Hundreds of half heads locked everybody out for as long as they stayed."""
    monkeypatch.setattr(BoundedHttp, "most", 3)
    address = listen()
    with ExitStack() as stack:
        slow = Slow(address)
        for _ in range(12):
            half = stack.enter_context(socket.create_connection(address, timeout=20))
            half.sendall(b"GET /livez HTTP/1.1\r\nHost: 127")
        begun = time.monotonic()
        assert ask(address, path="/livez").status_code == 200
        assert time.monotonic() - begun < slack() * 5
        assert slow.finish() == 201


def test_where_all_connections_are_answered_a_new_one_is_closed(listen, monkeypatch):
    monkeypatch.setattr(BoundedHttp, "most", 1)
    address = listen()
    slow = Slow(address)
    with pytest.raises(httpx2.HTTPError):
        ask(address)
    assert slow.finish() == 201


# --- limits outside bodies ------------------------------------------------------------------------

LINE = b"x-filler: " + b"b" * 1000 + b"\r\n"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEAD = b"POST /encoders HTTP/1.1\r\nContent-Type: application/json\r\n"
ONE_HOST = HEAD + b"Host: 127.0.0.1\r\n"
CHUNKED = ONE_HOST + b"Transfer-Encoding: chunked\r\n\r\n"
OTHERS = b"Content-Length: 4\r\n\r\n{}\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (REQUEST, LINE),
        (REQUEST + b"x-long: ", b"b" * 1000),
        (b"GET /livez?", b"b" * 1000),
        (b"GET /livez HTTP/1.1\r\n", b"b" * 1000),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", LINE),
        (CHUNKED + b"2\r\n{}\r\n0\r\nx-long: ", b"b" * 1000),
        (CHUNKED + b"2;", b"b" * 1000),
    ],
    ids=["headers", "header", "address", "name", "trailers", "trailer", "extension"],
)
def test_nothing_but_a_body_goes_on_for_long(address, first, more):
    pieces = 16 * 16  # 16 MiB, more than fits into the buffers of the sockets
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(first)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sum(client.send(more * 64) for _ in range(pieces))


def answered(address, request):
    """The status and the code of the problem document that ends the connection."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(request)
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    return head.split(b" ")[1], json.loads(body)["code"]


@pytest.mark.parametrize(
    "head", [REQUEST + b"x-long: " + b"b" * HEAD_BYTES, b"GET /livez?" + b"b" * HEAD_BYTES]
)
def test_too_large_a_head_is_a_problem_document_and_the_end_of_the_connection(address, head):
    assert answered(address, head + b"\r\n\r\n") == (b"431", "headers-too-large")


MALFORMED = {
    "bytes": b"\x00\x01\x02\r\n\r\n",
    "another version": b"GET / HTTP/9\r\n\r\n",
    "a header without a value": b"GET /\r\nHost\r\n\r\n",
    # what a proxy may read in another way
    "Host twice": ONE_HOST + b"Host: 127.0.0.1\r\n" + OTHERS,
    "no Host": HEAD + OTHERS,
    "two framings": ONE_HOST + b"Transfer-Encoding: chunked\r\n" + OTHERS,
    "two Content-Lengths": ONE_HOST + b"Content-Length: 5\r\n" + OTHERS,
    "a list of Content-Lengths": ONE_HOST + b"Content-Length: 4, 4\r\n\r\n{}\r\n",
    "a folded header": ONE_HOST + b"X: a\r\n b\r\n" + OTHERS,
    "a space before the colon": ONE_HOST + b"X : a\r\n" + OTHERS,
    "a bare line feed": ONE_HOST + b"Content-Length: 4\n\r\n{}\r\n",
    "gzip, chunked": ONE_HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another encoding": ONE_HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a body and an Upgrade": ONE_HOST + UPGRADE + OTHERS,
    "chunks and an Upgrade": ONE_HOST + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_http_is_refused(address, name):
    assert answered(address, MALFORMED[name]) == (b"400", "malformed-http")


def test_long_headers_offers_of_another_protocol_and_many_requests_are_fine(listen):
    """Each request has the limit for itself, and a body of many small chunks is no head."""
    body = json.dumps({"name": "x" * 50, "dim": 8}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with socket.create_connection(listen(), timeout=30) as client:
        for more in (LINE * 30, UPGRADE, LINE * 30, UPGRADE):
            client.sendall(REQUEST + more + b"\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            while b"}" not in client.recv(4096):  # the end of the answer
                pass
        client.sendall(CHUNKED + chunks)
        assert client.recv(12) == b"HTTP/1.1 201"


def test_trailers_are_no_headers(listen):
    """A proxy lets them through where it would have taken a header of that name away."""
    with socket.create_connection(listen(auth="keys"), timeout=30) as client:
        client.sendall(CHUNKED.replace(b"Content-Type", b"X-Request-ID: mine\r\nContent-Type"))
        client.sendall(b"2\r\n{}\r\n0\r\nX-API-Key: anc_1\r\nHost: evil\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 401"
