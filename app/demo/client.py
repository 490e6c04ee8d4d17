"""Starts a server in a separate process, and sends the demo's requests."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch
from torch import Tensor

from app.demo import DemoError

#: torch threads of the demo and of the server: on a busy machine more threads mostly wait for each
#: other
DEMO_THREADS = 1

#: the import of torch takes most of it, from a cold disk
START_TIMEOUT_S = 120


@contextmanager
def server(data_dir: Path, stores: Mapping[str, str] | None = None) -> Iterator[Client]:
    """Run `anchorage serve` with `data_dir` on a free port, and stop it at the end.

    stores  the addresses that it may open, by name
    """
    port = free_port()
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "server.log"
    command = [
        sys.executable,
        "-P",  # the folder of the caller may have another package `app`
        "-m",
        "app.cli",
        "serve",
        "--port",
        str(port),
        "--data-dir",
        str(data_dir),
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ANCHORAGE_")
    }
    environment["ANCHORAGE_THREADS"] = str(DEMO_THREADS)
    environment["ANCHORAGE_STORES"] = json.dumps(dict(stores or {}))
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 -- a fixed command
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
        ) as http:
            wait_until_ready(http, process, log)
            yield Client(http)
    finally:
        process.terminate()
        process.wait(timeout=30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(http: httpx2.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when /readyz returns 200.

    Raises DemoError with the end of the server's log when the server ends or takes too long.
    """
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


class Client:
    """Sends JSON requests, and raises DemoError for error responses."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http
        self.url = str(http.base_url)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer, or the result of the job that it became.

        Raises DemoError with the problem's detail.
        """
        answer = self._read(self.http.post(path, json=body))
        while answer.get("state") in ("queued", "running"):
            time.sleep(0.2)
            answer = self._read(self.http.get(f"/jobs/{answer['id']}"))
        if "state" not in answer:
            return answer
        if answer["state"] != "succeeded":
            raise DemoError(f"POST {path}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, answer: httpx2.Response) -> dict[str, Any]:
        if answer.is_error:
            raise DemoError(f"{answer.request.url.path}: {answer.status_code} {answer.text}")
        return answer.json()  # type: ignore[no-any-return]


def to_wire(vectors: Tensor) -> dict[str, Any]:
    """Return a tensor of float16 or float32 as the API's base64 object."""
    is_half = vectors.dtype is torch.float16
    array = np.ascontiguousarray(vectors.numpy(), dtype="<f2" if is_half else "<f4")
    return {
        "dtype": "float16" if is_half else "float32",
        "shape": list(array.shape),
        "base64": base64.b64encode(array.data).decode(),
    }


def from_wire(value: dict[str, Any]) -> Tensor:
    """Return the tensor of the API's base64 object."""
    array = np.frombuffer(base64.b64decode(value["base64"]), "<f4").reshape(value["shape"])
    return torch.from_numpy(array.astype(np.float32))
