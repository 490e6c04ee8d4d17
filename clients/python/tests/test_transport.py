"""Retries, against a real service with a low rate limit, and behind a proxy that loses answers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import numpy as np
import pytest

from anchorage_client import (
    AuthenticationError,
    Client,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    UnavailableError,
)
from anchorage_client._sync.jobs import Job
from anchorage_client._sync.transport import (
    json_of,
    pause_before,
    problem_of,
    retry_after,
    to_bytes,
)
from scripts.servers import free_port, serve


@contextmanager
def losing_proxy(service: str, lose: int) -> Iterator[str]:
    """A proxy that passes requests on, and closes the first connections instead of answering."""
    host, port = service.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    lost = [lose]

    def pump(source: socket.socket, sink: socket.socket, loses: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if loses and lost[0] > 0:
                    lost[0] -= 1
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def pass_on(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(port))) as server:
            requests = threading.Thread(target=pump, args=(client, server, False), daemon=True)
            requests.start()
            pump(server, client, True)
            requests.join()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=pass_on, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@contextmanager
def serve_at(port: int, folder: Path) -> Iterator[None]:
    """`anchorage serve` on this port, killed at the end."""
    command = [f"{Path(sys.executable).parent}/anchorage", "serve", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--data-dir", str(folder)],
        env={**os.environ, "ANCHORAGE_LEASE_S": "2"},
        stderr=subprocess.DEVNULL,
    ) as own:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        try:
            yield
        finally:
            own.kill()


def test_answers_of_another_program_are_errors_of_the_client():
    request = httpx2.Request("GET", "http://elsewhere/readyz")
    for text in ("<html>", "[1]", ""):
        with pytest.raises(UnavailableError, match="http://elsewhere/readyz answered without JSON"):
            json_of(httpx2.Response(200, text=text, request=request))
    moved = httpx2.Response(308, headers={"Location": "https://elsewhere/"}, request=request)
    assert "https://elsewhere/" in problem_of(moved)["detail"]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_urls_leave_out_are_refused(client, name):
    with pytest.raises(ValueError, match="is no name"):
        client.encoders.delete(name)


def test_a_url_without_a_scheme_is_refused_at_once():
    with pytest.raises(ValueError, match="must begin with http"):
        Client("localhost:8080")


def test_a_create_whose_answer_was_lost_is_not_repeated_and_other_requests_are(service, client):
    with losing_proxy(service, lose=1) as address, Client(address) as unlucky:
        with pytest.raises(UnavailableError):
            unlucky.encoders.create("lost-answer", dim=3)
        assert unlucky.encoders.get("lost-answer")["dim"] == 3
    with losing_proxy(service, lose=1) as address, Client(address) as unlucky:
        unlucky.encoders.delete("lost-answer")
    assert "lost-answer" not in {each["name"] for each in client.encoders.list()}
    with pytest.raises(NotFoundError):
        client.encoders.delete("never-made")
    with losing_proxy(service, lose=9) as address, Client(address, retries=0) as hasty:
        with pytest.raises(UnavailableError) as error:
            hasty.encoders.list()
        assert (error.value.status, error.value.code) == (None, "no-answer")


def first_refusal(client: Client) -> RateLimitError:
    for _ in range(200):
        try:
            client.encoders.list()
        except RateLimitError as error:
            return error
    raise AssertionError("no request was refused")


def test_retries_wait_as_long_as_the_service_says():
    with serve(rate_limit="4/second") as server:
        address = f"http://127.0.0.1:{server.port}"
        with Client(address, retries=0) as hasty:
            refused = first_refusal(hasty)
        assert refused.code == "rate-limited"
        assert refused.retry_after is not None
        with Client(address, retries=8) as patient:
            start = time.monotonic()
            for _ in range(12):
                patient.encoders.list()
            assert time.monotonic() - start > 1


def test_a_restart_does_not_end_the_wait_for_a_job(tmp_path):
    generator = np.random.default_rng(0)
    pool = generator.normal(size=(500, 16)).astype(np.float32)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with serve_at(port, tmp_path), Client(address) as client:
        client.encoders.create("a", dim=16)
        client.encoders.create("b", dim=16)
        job = client.bootstrap(
            "found",
            source="a",
            target="b",
            source_pool=pool,
            target_pool=pool @ np.linalg.qr(generator.normal(size=(16, 16)))[0],
            seeds=[(row, row) for row in range(20)],
            min_precision=0,
            as_job=True,
        )
    waiting = Client(address, retries=0)
    result: list[object] = []
    with serve_at(port, tmp_path):
        again = waiting.jobs.get(job.id)
        thread = threading.Thread(target=lambda: result.append(again.wait(timeout=200)))
        thread.start()
    time.sleep(2)
    with serve_at(port, tmp_path):
        thread.join()
    waiting.close()
    assert result


def test_a_service_that_stays_away_ends_the_wait_with_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr("anchorage_client._sync.jobs.MAX_AWAY_S", 0.2)
    monkeypatch.setattr("anchorage_client._sync.jobs.POLL_S", 0.1)
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        job = Job[object](client._transport, {"id": "17", "kind": "compare", "state": "running"})
        with pytest.raises(UnavailableError, match=r"client\.jobs\.get\('17'\)\.wait\(\)"):
            job.wait(progress=True)
    assert capsys.readouterr().err == "compare: the service does not answer\n"


def test_keys_open_the_service_within_their_scopes(tmp_path):
    anchorage = f"{Path(sys.executable).parent}/anchorage"
    made = subprocess.run(
        f"{anchorage} db upgrade && {anchorage} keys create --name first --scope admin",
        shell=True,
        env={**os.environ, "ANCHORAGE_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    (admin_key,) = re.findall(r"anc_[\w-]+", made.stdout)
    with serve(auth="keys", data_dir=tmp_path) as server:
        address = f"http://127.0.0.1:{server.port}"
        for key in (None, "anc_wrong"):
            with Client(address, api_key=key) as client, pytest.raises(AuthenticationError):
                client.translate(np.zeros((1, 2)), source="a", target="b", anchor_set="c")
        with Client(address, api_key=admin_key) as admin:
            reader = admin.api_keys.create("reader", scopes=["read"])
            with Client(address, api_key=reader["key"]) as client:
                assert client.encoders.list() == []
                with pytest.raises(PermissionDeniedError, match="scope `write`"):
                    client.encoders.create("x", dim=2)
            fresh = admin.api_keys.rotate(reader["id"], grace_s=0)
            assert fresh["key"] != reader["key"]
            admin.api_keys.delete(fresh["id"])
            assert len(admin.audit()) >= 3


def test_pauses_double_are_spread_and_have_a_limit():
    for attempt in range(12):
        longest = min(30.0, 0.5 * 2**attempt)
        assert all(longest / 2 <= pause_before(attempt, None) <= longest for _ in range(50))
    assert all(2 <= pause_before(0, 2.0) <= 2.25 for _ in range(50))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("soon", None),
        ("-3", 0.0),
        ("nan", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read(header, seconds):
    assert retry_after(httpx2.Response(429, headers={"Retry-After": header})) == seconds
    assert retry_after(httpx2.Response(429)) is None


def test_a_key_may_end_with_a_line_break_and_an_empty_one_is_none():
    for key in ("anc_x\n", " anc_x"):
        with Client("http://127.0.0.1:1", api_key=key) as client:
            assert client._transport.http.headers["Authorization"] == "Bearer anc_x"
    with Client("http://127.0.0.1:1", api_key="") as client:
        assert "Authorization" not in client._transport.http.headers
    for key in ("anc\nx", "anc_\u00e9"):
        with pytest.raises(ValueError, match="key contains characters") as wrong:
            Client("http://127.0.0.1:1", api_key=key)
        assert key not in str(wrong.value)


def test_numbers_of_numpy_are_numbers_and_nan_is_refused():
    body = {"dim": np.int64(5), "ids": np.arange(3), "share": np.float32(0.5), "text": "ü"}
    assert to_bytes(body) == '{"dim": 5, "ids": [0, 1, 2], "share": 0.5, "text": "ü"}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_bytes({"weight": float("nan")})
    with pytest.raises(TypeError, match="no form for set"):
        to_bytes({"ids": {1}})
