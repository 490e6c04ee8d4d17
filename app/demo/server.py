"""Runs `anchorage serve` in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from app.demo import DemoError

#: the import of torch takes most of it, from a cold disk
START_TIMEOUT_S = 120


@contextmanager
def server(data_dir: Path, port: int, variables: Mapping[str, str]) -> Iterator[str]:
    """Run `anchorage serve` as `start` does, yield its address, and stop it at the end."""
    with start(data_dir, port, variables) as process:  # which waits for its end
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def start(data_dir: Path, port: int, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `anchorage serve` in its own session; return it when it answers. Raises DemoError."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "server.log"
    # -P: the folder of the caller may have another package `app`
    command = [sys.executable, "-P", "-m", "app.cli", "serve", "--port", str(port)]
    command += ["--data-dir", str(data_dir)]
    with log.open("wb") as output, ExitStack() as undo:
        process = subprocess.Popen(  # noqa: S603 -- a fixed command
            command, stdout=output, stderr=output, env=variables, start_new_session=True
        )
        undo.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=url, timeout=120, trust_env=False) as http:
            wait_until_ready(http, process, log)
        undo.pop_all()
    return process


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(http: httpx2.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when /readyz returns 200. Raises DemoError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if http.get("/readyz").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise DemoError(f"The server did not become ready. The end of its log:\n{tail}")
