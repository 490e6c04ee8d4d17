"""Limits outside bodies: of the address, the headers, and the extras of chunked bodies."""

from __future__ import annotations

import json
import socket

import pytest

from app.http.connections import HEAD_BYTES

LINE = b"x-filler: " + b"b" * 1000 + b"\r\n"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = (
    b"POST /encoders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def sent_until_refused(address, first, more, most=64 * 1024 * 1024):
    """How much a client can send before the server hangs up, and what it said."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(first)
        sent = 0
        try:
            while sent < most:
                sent += client.send(more * 64)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            return sent, client.recv(65536)
        except ConnectionResetError:
            return sent, b""


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
def test_nothing_but_a_body_goes_on_for_long(listen, first, more):
    sent, _ = sent_until_refused(listen(), first, more)
    assert sent < 16 * 1024 * 1024, "what fits into the sockets' buffers, not what the client likes"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nx-long: " + b"b" * HEAD_BYTES,
        b"GET /livez?" + b"b" * HEAD_BYTES + b" HTTP/1.1",
    ],
)
def test_too_large_a_head_is_a_problem_document_and_the_end_of_the_connection(listen, head):
    line, problem = answered(listen(), head + b"\r\nHost: 127.0.0.1\r\n\r\n")
    assert line.startswith(b"HTTP/1.1 431 ")
    assert (problem["code"], problem["type"]) == (
        "headers-too-large",
        "/docs/errors#headers-too-large",
    )
    assert str(HEAD_BYTES) in problem["detail"]


@pytest.mark.parametrize(
    "nonsense", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET /\r\nHost\r\n\r\n"]
)
def test_what_is_not_http_is_a_problem_document(listen, nonsense):
    line, problem = answered(listen(), nonsense)
    assert line.startswith(b"HTTP/1.1 400 ")
    assert problem["code"] == "malformed-http"


def test_long_headers_bodies_and_many_requests_on_one_connection_are_fine(listen):
    """Each request has the limit for itself, and a body of many small chunks is no head."""
    body = json.dumps({"name": "x" * 50, "dim": 8}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with socket.create_connection(listen(), timeout=30) as client:
        for _ in range(5):
            client.sendall(REQUEST + LINE * 30 + b"\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            while b"}" not in client.recv(4096):  # the end of the answer
                pass
        client.sendall(CHUNKED + chunks)
        assert client.recv(12) == b"HTTP/1.1 201"


def answered(address, request):
    """Status and problem document that the server sends for these bytes before it hangs up."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(request)
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)


HEAD = b"POST /encoders HTTP/1.1\r\nContent-Type: application/json\r\n"
ONE_HOST = HEAD + b"Host: 127.0.0.1\r\n"
OTHERS = b"Content-Length: 4\r\n\r\n{}\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        ONE_HOST + b"Host: 127.0.0.1\r\n" + OTHERS,
        HEAD + OTHERS,
        ONE_HOST + b"Transfer-Encoding: chunked\r\n" + OTHERS,
        ONE_HOST + b"Content-Length: 5\r\n" + OTHERS,
        ONE_HOST + b"Content-Length: 4, 4\r\n\r\n{}\r\n",
        ONE_HOST + b"X: a\r\n b\r\n" + OTHERS,
        ONE_HOST + b"X : a\r\n" + OTHERS,
        ONE_HOST + b"Content-Length: 4\n\r\n{}\r\n",
        ONE_HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        ONE_HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        ONE_HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + OTHERS,
        ONE_HOST
        + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ONE_HOST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=[
        "Host twice",
        "no Host",
        "two framings",
        "two Content-Lengths",
        "a list of Content-Lengths",
        "a folded header",
        "a space before the colon",
        "a bare line feed",
        "gzip, chunked",
        "another encoding",
        "a body and an Upgrade",
        "chunks and an Upgrade",
        "chunked in HTTP/1.0",
    ],
)
def test_what_a_proxy_may_read_in_another_way_is_refused(listen, request_):
    line, problem = answered(listen(), request_)
    assert line == b"HTTP/1.1 400 Bad Request"
    assert problem["code"] == "malformed-http"
    if b"Host" not in request_ or request_.lower().count(b"host:") > 1:
        assert "Host" in problem["detail"]


def test_an_offer_of_another_protocol_is_not_taken(listen):
    with socket.create_connection(listen(), timeout=30) as client:
        for _ in range(2):
            client.sendall(REQUEST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            while b"}" not in client.recv(4096):
                pass


def test_trailers_are_no_headers(listen):
    """A proxy lets them through where it would have taken a header of that name away."""
    with socket.create_connection(listen(auth="keys"), timeout=30) as client:
        client.sendall(
            CHUNKED.replace(b"Content-Type", b"X-Request-ID: mine\r\nContent-Type") + b"1\r\n{\r\n"
        )
        client.sendall(b"1\r\n}\r\n0\r\nX-API-Key: anc_1\r\nHost: evil\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 401"
