"""`anchorage serve` as a process: its pages, its limits over a real socket, its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

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


def test_a_terminated_server_hands_its_job_back_and_keeps_its_data(
    serve_process, endless_bootstrap: dict[str, Any]
) -> None:
    server = serve_process()
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        for name, dim in (("first", 8), ("second", 6)):
            assert http.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
        # Pools of 200 are over before a quick machine has started again.
        pools = {
            f"{side}_pool": np.random.default_rng(9).normal(size=(1000, dim)).tolist()
            for side, dim in (("source", 8), ("target", 6))
        }
        job = http.post("/bootstrap", json={**endless_bootstrap, **pools}).json()["id"]
        until(lambda: http.get(f"/jobs/{job}").json()["state"] == "running")
        assert server.stop() in (0, -signal.SIGTERM)
        log = server.log.read_text()
        assert "Traceback" not in log
        assert server.url in log
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
