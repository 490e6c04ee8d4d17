"""An endpoint of OpenAI's API in a process of its own, which counts the texts that it embeds.

    python -m tests.torture.endpoint PORT

GET /seen answers how often it embedded each text, by model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from app.demo.server import free_port
from benchmarks.faults.deployment import Process

#: a text has one meaning, of which each model makes its own vector
LATENT = 12


@lru_cache(maxsize=100_000)
def vector_of_text(model: str, text: str, dim: int) -> np.ndarray:
    """The unit vector of a text by a model: the same in every process."""
    meaning, projection = (
        np.random.default_rng(int.from_bytes(hashlib.sha256(each.encode()).digest()[:8], "big"))
        for each in (text, model)
    )
    vector = meaning.normal(size=LATENT) @ projection.normal(size=(LATENT, dim))
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    seen: dict[str, Counter[str]] = {}  # noqa: RUF012 (of the process)

    def do_GET(self) -> None:
        self._reply({model: dict(texts) for model, texts in list(self.seen.items())})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model, dim = body["model"].split(":")
        self.seen.setdefault(body["model"], Counter()).update(body["input"])
        data = [
            {"index": place, "embedding": vector_of_text(model, text, int(dim)).tolist()}
            for place, text in enumerate(body["input"])
        ]
        self._reply({"data": data, "model": body["model"]})

    def _reply(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class EndpointProcess(Process):
    """The endpoint. Its models are named `model:dim`."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        super().__init__("endpoint", [sys.executable, "-m", __name__, str(port)], folder)

    def seen(self) -> dict[str, Counter[str]]:
        """How often each model embedded each text."""
        answer = httpx2.get(f"{self.url}/seen", timeout=60, trust_env=False).json()
        return {model: Counter(texts) for model, texts in answer.items()}

    def ready(self) -> bool:
        try:
            return bool(self.seen() or True)
        except httpx2.TransportError:
            return False


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
