"""Endpoints for the tests, on real sockets: a correct one, and faulty ones."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

from app.encoders.models.base import EncoderSpec, ModelSources
from app.encoders.models.options import normal_url
from app.encoders.models.remote.encoder import RemoteEncoder
from app.encoders.models.remote.encoder import load as load_encoder
from app.types import InputRole

DIM = 24
KEY = "sk-test/0123456789abcdef"
KEY_ENV = "TEST_REMOTE_KEY"
TEXTS = [
    "I lost my card.",
    "",
    "Wo ist meine Karte?",
    "カードをなくしました",
    'a "quoted"\n\ttext \x00',
    "x" * 999,
]
DOCUMENT = InputRole.document


def expected_vector(text: str, dim: int = DIM) -> np.ndarray:
    """The vector of a correct endpoint: normal numbers, seeded with the text's digest."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(dim).astype("<f4")


def expected_vectors(texts: list[str], dim: int = DIM) -> torch.Tensor:
    return torch.from_numpy(np.stack([expected_vector(text, dim) for text in texts]))


Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """OpenAI's API, with `expected_vector` as the model."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeEndpoint

    def do_POST(self) -> None:
        if self.server.behaviour is not None and self.server.seen:
            self.note(None)
            self.close_connection = True
            self.server.behaviour(self)
            return
        body = json.loads(self.body())
        self.note(body)
        if self.server.refusals:
            status, headers, answer = self.server.refusals.pop(0)
            self.reply(status, answer, headers)
        elif self.path == "/base/embeddings":
            self.openai(body)
        else:
            self.reply(404, {"error": "no such path"})

    def openai(self, body: dict[str, Any]) -> None:
        dim, texts = body.get("dimensions", DIM), body["input"]
        is_base64 = body["encoding_format"] == "base64" and self.server.base64 != "ignored"
        if (is_base64 and self.server.base64 == "refused") or self.server.bad.intersection(texts):
            self.reply(self.server.bad_status, {"error": "bad"})
            return
        self.server.done += texts
        vectors = [self.server.drift(expected_vector(text, dim), text) for text in texts]
        data = [
            {
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode()
                if is_base64
                else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        # In another order than the inputs: `index` names the input.
        answer = {"data": data[::-1], "model": self.server.model, "usage": self.server.usage}
        self.reply(200, answer)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def note(self, body: Any) -> None:
        self.server.seen.append((self.path, dict(self.headers), body))

    def reply(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = b"" if status == 204 else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class FakeEndpoint(ThreadingHTTPServer):
    """A correct endpoint that records its requests.

    refusals   its answers to the next requests
    bad        texts that it refuses, with `bad_status`
    base64     what it does when it is asked for that: "known", "ignored", "refused"
    usage      what its answers say of tokens
    done       the texts that it has embedded
    moved      by how much its vectors are not `expected_vector`, as a share of their length
    noise      the same, by which every answer differs from the one before
    behaviour  replaces its answers to all requests after the first
    """

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/base"
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
            self.url = self.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        self.model: str | None = "truth-2026-01"
        self.moved = self.noise = 0.0
        self.bad: set[str] = set()
        self.bad_status = 422
        self.base64 = "known"
        self.usage: Any = None
        self.done: list[str] = []
        self.behaviour: Behaviour | None = None
        self.refusals: list[tuple[int, dict[str, str], Any]] = []
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0

    @property
    def texts(self) -> list[str]:
        """The inputs of all requests."""
        return [text for _, _, body in self.seen for text in body["input"]]

    def drift(self, vector: np.ndarray, text: str) -> np.ndarray:
        """Move a vector by the shares `moved` and `noise` of its length."""
        for share, other in (
            (self.moved, expected_vector(f"moved {text}", len(vector))),
            (self.noise, np.random.default_rng().standard_normal(len(vector))),
        ):
            vector = vector + share * np.linalg.norm(vector) / np.linalg.norm(other) * other
        return vector.astype("<f4")

    def __enter__(self) -> FakeEndpoint:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError):
            super().finish_request(request, client_address)


def allow_url(url: str, key_env: str | None = None) -> ModelSources:
    return ModelSources(remote={normal_url(url): key_env})


def load(url: str, key_env: str | None = None, **options: Any) -> RemoteEncoder:
    return load_encoder(
        EncoderSpec("openai", "truth", "r1", {"url": url, **options}),
        allow_url(url, key_env),
        "cpu",
    )


def embed(
    model: RemoteEncoder,
    texts: list[str],
    *,
    role: InputRole = DOCUMENT,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> torch.Tensor:
    return model.run(model.prepare(texts, role), is_abandoned)


def send_bytes(content: bytes) -> Behaviour:
    def behave(handler: Handler) -> None:
        handler.body()
        handler.connection.sendall(content)

    return behave


def load_then_break(endpoint: FakeEndpoint, behaviour: Behaviour, **options: Any) -> RemoteEncoder:
    """Load a model, and let its endpoint behave like this afterwards."""
    endpoint.model, endpoint.behaviour = "m", behaviour
    return load(endpoint.url, **options)


VECTOR = [float(number) for number in expected_vector("anything")]
HEAD = b"HTTP/1.1 200 OK\r\n"
