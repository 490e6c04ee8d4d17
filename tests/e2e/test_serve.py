"""`anchorage serve` as a process: its pages, its limits over a real socket, its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.conftest import Server
from tests.waiting import until


def test_a_client_that_goes_away_is_no_fault_of_the_service(live: Server) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = (
            f"POST /translate HTTP/1.1\r\nHost: {host}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        connection.sendall(head.encode() + b'{"source":')
        time.sleep(0.2)
    time.sleep(0.5)
    assert httpx2.get(f"{live.url}/livez", trust_env=False).status_code == 200
    log = live.log.read_text()
    assert "Traceback" not in log
    assert "incident" not in log


@pytest.fixture
def collector() -> Iterator[tuple[str, list[str]]]:
    """A place for traces: its address, and the paths that were posted to."""
    posted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            posted.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()


def test_a_terminated_server_ends_its_streams_and_traces_hands_its_job_back_and_keeps_its_data(
    serve_process, collector, endless_bootstrap: dict[str, Any]
) -> None:
    url, posted = collector
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    server = serve_process(environment=traces)
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        for name, dim in (("first", 8), ("second", 6)):
            assert http.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
        job = http.post("/bootstrap", json=endless_bootstrap).json()["id"]
        until(lambda: http.get(f"/jobs/{job}").json()["state"] == "running")
        with http.stream("GET", f"/jobs/{job}/events") as stream:
            lines = stream.iter_lines()
            assert "event: progress" in next(lines) + next(lines) + next(lines)
            assert server.stop() in (0, -signal.SIGTERM)
            assert "event: end" not in "".join(lines)  # closed in good order: read to its end
        log = server.log.read_text()
        assert "Traceback" not in log
        assert server.url in log
        assert set(posted) == {"/v1/traces"}
        server.start()
        assert http.get("/encoders/first").json()["dim"] == 8
        row = until(
            lambda: [row for row in [http.get(f"/jobs/{job}").json()] if row["state"] == "running"]
        )[0]
        assert row["attempts"] == 1  # a try that was handed back does not count
        assert http.post(f"/jobs/{job}/cancel").status_code == 202


def test_a_second_server_on_the_same_folder_or_port_is_refused_in_a_line(
    live: Server, tmp_path: Path
) -> None:
    port = live.url.rpartition(":")[2]
    for data_dir, its_port, reason in (
        (live.folder, "0", "another process uses"),
        (tmp_path, port, f"Another program uses port {port}"),
    ):
        command = [sys.executable, "-m", "app.cli", "serve", "--port", its_port]
        command += ["--data-dir", str(data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert reason in " ".join(done.stderr.split()).replace(" │ │ ", " ")
        assert "Traceback" not in done.stderr
