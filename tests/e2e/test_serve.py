"""`anchorage serve` as a process: its pages, its limits over a real socket, its end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from app.demo.client import Client, free_port, server


def test_the_documentation_needs_no_other_host(live: Client) -> None:
    for path in ("/docs", "/redoc"):
        page = live.http.get(path).text
        assets = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert assets
        for asset in assets:
            assert not re.match(r"(https?:)?//", asset), f"{path} loads {asset} from elsewhere"
            assert live.http.get(asset).status_code == 200


def test_a_body_declared_too_large_is_refused_before_it_is_sent(live: Client) -> None:
    """The client sends headers only; an answer can come only from a server that does not wait for the body."""
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /translate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {10**12}\r\n\r\n"
        connection.sendall(head.encode())
        answer = ""
        while "}" not in answer:
            answer += connection.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 413")
    assert "body-too-large" in answer
    assert "67108864" in answer


def test_data_outlives_the_process(tmp_path: Path) -> None:
    with server(tmp_path) as client:
        client.post("/encoders", name="kept", kind="external", dim=3)
    with server(tmp_path) as client:
        assert client.http.get("/encoders/kept").json()["dim"] == 3


def test_a_client_that_goes_away_is_no_fault_of_the_service(tmp_path: Path) -> None:
    with server(tmp_path) as client:
        host, port = client.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            head = f"POST /translate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
            connection.sendall(head.encode() + b'{"source":')
            time.sleep(0.2)
        time.sleep(0.5)
        assert client.http.get("/livez").status_code == 200
    log = (tmp_path / "server.log").read_text()
    assert "Traceback" not in log
    assert "incident" not in log


def test_a_terminated_server_ends_cleanly(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx2.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).raise_for_status()
                break
            except httpx2.TransportError:
                time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in log
    assert f"http://127.0.0.1:{port}" in log


def test_a_second_server_on_the_same_folder_or_port_is_refused_in_a_line(tmp_path: Path) -> None:
    with server(tmp_path / "one") as client:
        port = client.url.rpartition(":")[2].rstrip("/")
        for data_dir, its_port, reason in (("one", "0", "another process serves"), ("two", port, "Address already in use")):
            command = [sys.executable, "-m", "app.cli", "serve", "--port", its_port, "--data-dir", str(tmp_path / data_dir)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode != 0
            assert reason in " ".join(done.stderr.split()).replace(" │ │ ", " ")
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("port", ["-1", "99999", "http"])
def test_a_wrong_port_is_explained(port: str) -> None:
    command = [sys.executable, "-m", "app.cli", "serve", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
