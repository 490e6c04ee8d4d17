"""Runs `anchorage serve` in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from app.demo import DemoError

#: of a machine with a core for each of its processes; the import of torch takes most of it
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
    with log.open("ab") as output, ExitStack() as undo:
        process = subprocess.Popen(  # noqa: S603 -- a fixed command
            command, stdout=output, stderr=output, env=variables, start_new_session=True
        )
        undo.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=url, timeout=10, trust_env=False) as http:
            wait_until_ready(http, process, log)
        undo.pop_all()
    return process


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(http: httpx2.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when /readyz returns 200. Raises DemoError.

    A busy machine has more time.
    """
    began, line = time.monotonic(), START_TIMEOUT_S / 8
    while process.poll() is None:
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        passed = time.monotonic() - began
        if passed > START_TIMEOUT_S * busy:
            break
        if passed > line:
            why = f", on a machine with {busy:.1f} times the work of its cores" * (busy > 1)
            print(f"The service still starts ({passed:.0f} s{why}). Log: {log}", file=sys.stderr)
            line += START_TIMEOUT_S / 8
        try:
            if http.get("/readyz").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    code = process.poll()
    problem = "has not answered in time" if code is None else f"ended with the exit code {code}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise DemoError(
        f"The service {problem}. Mend what the end of its log says, or start it yourself by "
        f"`anchorage serve`, and repeat the command. {log}:\n{tail or '(empty)'}"
    )
