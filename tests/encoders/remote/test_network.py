"""Deadlines, limits of bodies, and certificates."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from app.errors import EncoderFailed, EncoderUnavailable
from tests.encoders.remote.endpoints import (
    CHUNKED,
    HEAD,
    TEXTS,
    FakeEndpoint,
    Handler,
    embed,
    expected_vectors,
    load,
    load_then_break,
    send_forever,
)


@pytest.mark.parametrize(
    "start",
    [CHUNKED, HEAD + b"Connection: close\r\n\r\n", HEAD + b"Content-Length: 99999999999\r\n\r\n"],
)
def test_an_endless_body_ends_long_before_the_deadline(endpoint, start):
    part = b" " * 4096
    model = load_then_break(
        endpoint, send_forever(start, b"1000\r\n" + part + b"\r\n" if start == CHUNKED else part)
    )
    begin = time.monotonic()
    with pytest.raises(EncoderFailed, match="more than"):
        embed(model, ["a", "b"])
    assert time.monotonic() - begin < 2


def silent(handler: Handler) -> None:
    handler.body()
    handler.rfile.read(1)


def slow_reader(handler: Handler) -> None:
    handler.connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536
    )  # a small buffer, so that the kernel does not read everything
    end = time.monotonic() + 5
    while time.monotonic() < end and handler.connection.recv(49_152):
        time.sleep(0.02)


SLOW = {
    "silence": silent,
    "a drip of header": send_forever(HEAD + b"X: ", b"y", 0.05),
    "a drip of body": send_forever(HEAD + b"Content-Length: 999\r\n\r\n", b" ", 0.05),
    "a drip of chunks": send_forever(CHUNKED, b"1\r\n \r\n", 0.05),
    "a drip of an error": send_forever(
        b"HTTP/1.1 404 no\r\nContent-Length: 999\r\n\r\n", b" ", 0.05
    ),
    "endless interim answers": send_forever(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.01),
    "a slow reader": slow_reader,
}


def test_no_request_outlasts_the_deadline():
    def outcome(name: str) -> tuple[str, float]:
        with FakeEndpoint() as endpoint:
            model = load_then_break(endpoint, SLOW[name], timeout_s=1)
            begin = time.monotonic()
            with pytest.raises(EncoderFailed) as caught:
                embed(model, ["x" * 4_000_000] * 4 if name == "a slow reader" else ["a", "b"])
            return caught.value.detail, time.monotonic() - begin

    with ThreadPoolExecutor(len(SLOW)) as pool:
        for name, (detail, seconds) in zip(SLOW, pool.map(outcome, SLOW), strict=True):
            assert "did not answer in time" in detail, name
            assert 0.9 < seconds < 2.5, name


# TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_certificates_are_checked(tmp_path, monkeypatch):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*make, *names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with FakeEndpoint(tls) as endpoint:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(EncoderUnavailable, match="connection to the endpoint failed"):
            load(endpoint.url)
        assert endpoint.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert torch.equal(embed(load(endpoint.url), TEXTS), expected_vectors(TEXTS))
