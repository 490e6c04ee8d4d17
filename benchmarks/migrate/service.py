"""A real `anchorage serve` that can be killed, and a client of its migrations."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from app.demo.server import free_port, wait_until_ready
from benchmarks.migrate.vectors import DIM, Vectors

TIMEOUT_S = 600
POLL_S = 0.1

#: a killed process loses its job after this time; the default is 30 s
LEASE_S = 10

#: texts of a request to the encoders' endpoint, and requests at once
ENDPOINT_BATCH, CONCURRENCY = 128, 16

JSON = dict[str, Any]
CONFLICT = 409


class Service:
    """One data folder, and the process that serves it now."""

    def __init__(self, folder: Path, store_url: str, **settings: str) -> None:
        self._folder, self._port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._environment = {
            **{
                name: each for name, each in os.environ.items() if not name.startswith("ANCHORAGE_")
            },
            "ANCHORAGE_DATA_DIR": str(folder / "data"),
            "ANCHORAGE_PORT": str(self._port),
            "ANCHORAGE_THREADS": "2",
            "ANCHORAGE_LEASE_S": str(LEASE_S),
            "ANCHORAGE_STORES": json.dumps({"main": {"url": store_url, "remote_texts": True}}),
            **settings,
        }
        self._http = httpx2.Client(
            base_url=f"http://127.0.0.1:{self._port}", timeout=TIMEOUT_S, trust_env=False
        )
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def start(self) -> None:
        """Start the process, and return once it is ready."""
        log = self._folder / "server.log"
        command = [str(Path(sys.executable).with_name("anchorage")), "serve"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=self._environment
            )
        wait_until_ready(self._http, self.process, log)

    def kill(self) -> float:
        """Kill the process with SIGKILL and start it again; seconds until it is ready."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start()
        return time.monotonic() - began

    def cpu_s(self) -> float:
        """Seconds of CPU that the process has used."""
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def call(self, method: str, path: str, **body: Any) -> JSON:
        """The JSON of an answer. Raises RuntimeError with the problem of an error."""
        answer = self._http.request(method, path, json=body or None)
        while answer.status_code == CONFLICT and "retry-after" in answer.headers:
            time.sleep(float(answer.headers["retry-after"]))
            answer = self._http.request(method, path, json=body or None)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:1000]}")
        return dict(answer.json()) if answer.content else {}

    def translate(self, vectors: Vectors, **names: str) -> Vectors:
        """Vectors by POST /translate, as npy."""
        import io

        body = io.BytesIO()
        np.save(body, vectors)
        answer = self._http.post(
            "/translate",
            params=names,
            content=body.getvalue(),
            headers={"Content-Type": "application/x-npy", "Accept": "application/x-npy"},
        )
        answer.raise_for_status()
        return np.asarray(np.load(io.BytesIO(answer.content), allow_pickle=False))

    def register(self, anchors: Mapping[str, Vectors], endpoint: str | None) -> None:
        """Create an encoder of each name, and the anchor set `anchors` unless there is an endpoint
        of theirs.
        """
        for name in anchors:
            about: JSON = {"kind": "external", "dim": DIM}
            if endpoint is not None:
                options = {"url": endpoint, "batch": ENDPOINT_BATCH}
                about = {"kind": "openai", "model": name, "options": options}
            self.call("POST", "/encoders", name=name, **about)
        if endpoint is not None:
            return
        embeddings = {
            name: {
                "dtype": "float32",
                "shape": vectors.shape,
                "base64": base64.b64encode(np.float32(vectors).tobytes()).decode(),
            }
            for name, vectors in anchors.items()
        }
        self.call("POST", "/anchor-sets", name="anchors", embeddings=embeddings)

    def step(self, migration: str, action: str) -> tuple[JSON, float]:
        """POST to the migration; its answer and the seconds that it took."""
        began = time.monotonic()
        answer = self.call("POST", f"/migrations/{migration}/{action}")
        return answer, time.monotonic() - began

    def state(self, migration: str) -> JSON:
        """Return the migration."""
        return self.call("GET", f"/migrations/{migration}")

    def wait(self, job: str, watch: Callable[[JSON], None] | None = None) -> JSON:
        """Wait for a job; its last state. Raises RuntimeError if it did not succeed."""
        while True:
            found = self.call("GET", f"/jobs/{job}")
            if watch is not None:
                watch(found)
            if found["state"] == "succeeded":
                return found
            if found["state"] in ("failed", "cancelled"):
                raise RuntimeError(f"job {job}: {json.dumps(found)[:2000]}")
            time.sleep(POLL_S)
