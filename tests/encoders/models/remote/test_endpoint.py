"""Retries, refusals, redirects, keys, certificates, and answers that are not valid HTTP."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time

import pytest
import torch

from app.encoders.models.pool import ENDPOINT_LANES, EncoderPool
from app.encoders.models.remote.endpoint import NUMBER_BYTES, OTHER_BYTES
from app.errors import AnchorageError, EncoderFailed, EncoderUnavailable, InvalidInput
from tests.encoders.models.remote.endpoints import (
    DIM,
    DOCUMENT,
    HEAD,
    KEY,
    KEY_ENV,
    TEXTS,
    Behaviour,
    FakeEndpoint,
    Handler,
    embed,
    expected_vectors,
    load,
    load_then_break,
    send_bytes,
)
from tests.waiting import slack, until


@pytest.mark.parametrize("status", [408, 429, 502])
def test_temporary_faults_are_retried_without_cookies(endpoint, status):
    model = load(endpoint.url)
    endpoint.refusals = [(status, {"Set-Cookie": "a=b; Path=/"}, {})] * 2
    assert torch.equal(embed(model, TEXTS), expected_vectors(TEXTS))
    assert len(endpoint.seen) == 4
    assert all("Cookie" not in headers for _, headers, _ in endpoint.seen)


#: status, Retry-After, requests, and what the client gets
FAULTS = [
    (503, "", 3, EncoderFailed, None, 5),
    (503, "1", 3, EncoderFailed, None, 1),
    (503, "40", 1, EncoderFailed, None, 40),  # beyond the deadline: the client waits
    (429, "999999", 1, EncoderFailed, None, 3600),
    (503, "Fri, 31 Dec 9999 23:59:59 GMT", 3, EncoderFailed, None, 5),
    (204, "", 1, EncoderFailed, None, 5),
    (404, "", 1, EncoderFailed, None, 5),
    (422, "", 1, InvalidInput, "inputs", None),
]


@pytest.mark.parametrize(("status", "asked", "requests", "error", "field", "wait_s"), FAULTS)
def test_a_status_decides_about_retries_and_its_body_only_reaches_the_log(
    endpoint, caplog, status, asked, requests, error, field, wait_s
):
    model = load(endpoint.url)
    body = {"error": "too long\x1b\n" + "y" * 300}
    endpoint.refusals = [(status, {"Retry-After": asked}, body)] * 4
    begin = time.monotonic()
    with pytest.raises(error, match=f"status {status}") as caught:
        embed(model, TEXTS)
    assert time.monotonic() - begin >= (2 if asked == "1" else 0)
    found = (len(endpoint.seen) - 1, caught.value.field, caught.value.retry_after_s)
    assert found == (requests, field, wait_s)
    assert "too long" not in caught.value.detail
    assert ("too long" in caplog.text) == (status != 204)  # 204 has no body
    assert "y" * 201 not in caplog.text


@pytest.mark.parametrize("status", [301, 308])
def test_redirects_are_not_followed(endpoint, status):
    with FakeEndpoint() as other:
        model = load(endpoint.url)
        endpoint.refusals = [(status, {"Location": f"{other.url}/embeddings"}, {})]
        with pytest.raises(EncoderFailed, match="does not follow redirects"):
            embed(model, TEXTS)
        assert (other.connections, other.seen, len(endpoint.seen)) == (0, [], 2)


def test_proxies_of_the_environment_are_not_used(endpoint, monkeypatch):
    with FakeEndpoint() as other:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert torch.equal(embed(load(endpoint.url), TEXTS), expected_vectors(TEXTS))
        assert (other.connections, endpoint.connections) == (0, 1)


def test_a_missing_endpoint_is_unavailable_on_load_and_failed_on_run():
    with FakeEndpoint() as endpoint:
        model = load(endpoint.url)
        endpoint.refusals = [(200, {"Connection": "close"}, {"data": []})]
        with pytest.raises(EncoderFailed, match="no list of 6 embeddings"):
            embed(model, TEXTS)
    with pytest.raises(EncoderFailed, match="cannot be reached"):
        embed(model, TEXTS)
    with pytest.raises(EncoderUnavailable, match=r"cannot be used.*cannot be reached") as caught:
        load(endpoint.url)
    assert caught.value.field == "model"


# Keys


def test_only_an_endpoint_with_a_variable_gets_a_key_and_none_may_compress(endpoint, monkeypatch):
    monkeypatch.setenv(KEY_ENV, KEY)
    load(endpoint.url)
    load(endpoint.url, KEY_ENV)
    without, with_key = (headers for _, headers, _ in endpoint.seen)
    assert ("Authorization" in without, with_key["Authorization"]) == (False, f"Bearer {KEY}")
    assert without["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("value", [None, "", " ", f"{KEY}\nX-Other: 1", f"{KEY} {KEY}", f"{KEY}é"])
def test_an_invalid_key_is_never_sent(endpoint, monkeypatch, caplog, value):
    caplog.set_level("DEBUG")
    monkeypatch.delenv(KEY_ENV, raising=False)
    if value is not None:
        monkeypatch.setenv(KEY_ENV, value)
    with pytest.raises(EncoderUnavailable, match="key of this endpoint is not set") as caught:
        load(endpoint.url, KEY_ENV)
    assert endpoint.seen == []
    assert KEY not in caught.value.detail + caplog.text


@pytest.mark.parametrize("status", [200, 401, 500])
def test_errors_and_logs_never_contain_the_key(endpoint, monkeypatch, caplog, status):
    caplog.set_level("DEBUG")
    monkeypatch.setenv(KEY_ENV, KEY)
    model = load(endpoint.url, KEY_ENV)
    endpoint.refusals = [(status, {}, {"error": {"message": f"You sent Bearer {KEY}"}})] * 3
    with pytest.raises(AnchorageError) as caught:
        embed(model, TEXTS)
    assert endpoint.seen[-1][1]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{caught.value!r} {caught.value.detail} {caplog.text}"
    assert caught.value.__cause__ is None
    if status == 401:
        assert isinstance(caught.value, EncoderUnavailable)
        assert "You sent" not in caplog.text
        assert len(endpoint.seen) == 2


# Broken answers


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", HEAD + b"Content-Length: 5000\r\n\r\n{"]
)
def test_an_invalid_response_fails(endpoint, answer):
    model = load_then_break(endpoint, send_bytes(answer))
    with pytest.raises(EncoderFailed, match="endpoint"):
        embed(model, ["a", "b"])
    assert 2 <= len(endpoint.seen) <= 4


def silent(handler: Handler) -> bytes:
    handler.body()
    return handler.rfile.read(1)


def drip(head: bytes) -> Behaviour:
    """Begin an answer, and go on with a byte at a time."""

    def behave(handler: Handler) -> None:
        handler.body()
        handler.connection.sendall(head)
        while True:
            handler.connection.sendall(b" ")
            time.sleep(0.05)

    return behave


STALLS = [silent, drip(HEAD + b"Content-Length: 9999999\r\n\r\n"), drip(HEAD + b"X: ")]


@pytest.mark.parametrize("behaviour", STALLS, ids=["silent", "body", "headers"])
def test_the_deadline_holds_for_the_whole_answer_and_all_attempts(endpoint, behaviour):
    model = load_then_break(endpoint, behaviour, timeout_s=1)
    begin = time.monotonic()
    with pytest.raises(EncoderFailed, match="did not answer in time"):
        embed(model, ["a", "b"])
    assert time.monotonic() - begin < slack() * 20
    assert len(endpoint.seen) == 2


def test_a_long_answer_ends_at_a_number_of_bytes_that_follows_from_the_inputs(endpoint):
    most = OTHER_BYTES + 2 * DIM * NUMBER_BYTES
    model = load_then_break(endpoint, send_bytes(HEAD + b"\r\n" + b" " * 2 * most))
    with pytest.raises(EncoderFailed, match=f"more than {most} bytes"):
        embed(model, ["a", "b"])
    assert len(endpoint.seen) == 2


def test_a_request_ends_when_its_clients_have_left(endpoint):
    model, ended = load_then_break(endpoint, silent, timeout_s=300), []
    endpoint.behaviour = lambda handler: ended.append(silent(handler))
    with pytest.raises(EncoderFailed, match="clients left"):
        embed(model, ["a"], is_abandoned=lambda: len(endpoint.seen) == 2)
    until(lambda: ended == [b""])


def test_a_stalled_endpoint_delays_no_other(endpoint):
    pool = EncoderPool(cores=1)
    with FakeEndpoint() as other:
        slow = load_then_break(endpoint, silent, timeout_s=300, batch=1)
        quick = load(other.url)
        stalled = [
            pool.submit(slow, slow.prepare([f"{n}"], DOCUMENT), "a")
            for n in range(3 * ENDPOINT_LANES)
        ]
        until(lambda: len(endpoint.seen) > ENDPOINT_LANES)
        work = pool.submit(quick, quick.prepare(TEXTS, DOCUMENT), "b")
        assert torch.equal(work.future.result(slack() * 10), expected_vectors(TEXTS))
        for each in stalled:
            each.future.cancel()
        endpoint.behaviour = None
        endpoint.model = "m"
        work = pool.submit(slow, slow.prepare(TEXTS, DOCUMENT), "b")
        assert torch.equal(work.future.result(slack() * 10), expected_vectors(TEXTS))
    pool.close()


# TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_certificates_are_checked(tmp_path, monkeypatch):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = [*make.split(), *names.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with FakeEndpoint(tls) as endpoint:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(EncoderUnavailable, match="cannot be reached"):
            load(endpoint.url)
        assert endpoint.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert torch.equal(embed(load(endpoint.url), TEXTS), expected_vectors(TEXTS))
