"""Services, clients and checks of problem documents that the tests of the routes share."""

from __future__ import annotations

import base64
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.api.http.connections import BoundedHttp
from app.main import create_app
from app.services.access.api_keys import create_key
from app.services.request_context import RequestContext
from app.settings import Settings
from app.storage.tables import Base
from app.types import Scope
from app.wiring import make_services
from tests.waiting import slack


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One service for all tests of the routes: starting one takes longer than most of them."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("api"),
        max_body_bytes=4 * 1024 * 1024,
        max_vectors=2_000,
        max_pool=200,
    )
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture
def client(running: TestClient) -> Iterator[TestClient]:
    """The running service, with no row in its database."""
    yield running
    _empty(running)


@pytest.fixture(scope="module")
def stock(
    running: TestClient, packed: Callable[..., dict[str, Any]]
) -> Iterator[Callable[..., TestClient]]:
    """Give the service encoders, anchor sets and heads for all tests of a module."""
    made: list[str] = []

    def add(path: str, name: str, **body: Any) -> None:
        answer = running.post(path, json={"name": name, **body})
        assert answer.status_code == 201, answer.text
        made.append(f"{path}/{name}")

    def give(
        vectors: dict[str, np.ndarray],
        sets: dict[str, int] | None = None,
        heads: dict[str, dict[str, Any]] | None = None,
    ) -> TestClient:
        for name, rows in vectors.items():
            add("/encoders", name, dim=rows.shape[1])
        for name, size in (sets or {"items": None}).items():
            add(
                "/anchor-sets",
                name,
                embeddings={each: packed(rows[:size], "float64") for each, rows in vectors.items()},
            )
        for name, head in (heads or {}).items():
            add("/heads", name, **head)
        return running

    yield give
    for path in reversed(made):
        assert running.delete(path).status_code == 204


@pytest.fixture(scope="session")
def running_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The same, where callers need API keys."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("keys"), auth="keys")
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture
def locked(running_with_keys: TestClient) -> Iterator[TestClient]:
    """The running service that asks for keys, with no row in its database, so also no key."""
    headers = running_with_keys.headers.copy()
    yield running_with_keys
    running_with_keys.headers = headers  # a test may have set its key
    _empty(running_with_keys)


def _empty(client: TestClient) -> None:
    with client.app.state.services.db.transaction() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    client.app.state.services.names.forget()  # deleted behind its back


@pytest.fixture
def data_dir(tmp_path: Path, migrated_sqlite: Path) -> Path:
    """The data folder of a service of this test's own, with an empty migrated database."""
    shutil.copy(migrated_sqlite, tmp_path / "anchorage.db")
    return tmp_path


@pytest.fixture
def serve(data_dir: Path) -> Iterator[Callable[..., TestClient]]:
    """Start a service of this test's own, with these settings."""
    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            app = create_app(Settings(**{"data_dir": data_dir, **settings}))
            return stack.enter_context(
                TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
            )

        yield start


@pytest.fixture
def listen(data_dir: Path) -> Iterator[Callable[..., tuple[str, int]]]:
    """Start a service behind a real socket, with these settings; returns its host and port."""
    with ExitStack() as stack:

        def start(**settings: Any) -> tuple[str, int]:
            return _listen(stack, create_app(Settings(**{"data_dir": data_dir, **settings})))

        yield start


@pytest.fixture(scope="session")
def parallel() -> dict[str, np.ndarray]:
    """Forty anchors of two encoders: `second` (6-d) is a linear map of `first` (8-d)."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(40, 8)) + 0.5
    return {"first": first, "second": 3 * first @ generator.normal(size=(8, 6)) - 2}


def _listen(stack: ExitStack, app: FastAPI) -> tuple[str, int]:
    server = uvicorn.Server(
        uvicorn.Config(app, http=BoundedHttp, log_config=None, access_log=False, ws="none")
    )
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    stack.callback(thread.join)
    stack.callback(setattr, server, "should_exit", True)
    deadline = time.monotonic() + 30 * slack()
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    return listener.getsockname()


TEXTS = [
    f"{verb} {thing} {when}"
    for verb in ("I lost", "please send", "how much is")
    for thing in ("my card", "the exchange rate", "a loan", "cash abroad")
    for when in ("today", "next week")
]


@dataclass(frozen=True)
class Encoding:
    """A service that runs encoders, for all tests: loading a model takes longer than most of them.

    minilm  the packaged encoder
    short   minilm with 128 dimensions and a prompt before queries
    toy     tiny and random; reads at most 32 tokens; does not normalise
    eye     random, for images
    own     external, 5-d

    The anchor set `texts` holds TEXTS by `minilm` and `own`.
    """

    url: str
    app: FastAPI
    http: httpx2.Client
    models: Path
    texts: list[str]
    own: np.ndarray

    def gauge(self, name: str) -> float:
        """A metric without labels."""
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator's folder with the models `toy` and `eye`."""
    folder = tmp_path_factory.mktemp("models")
    make_toy(folder / "toy")
    make_eye(folder / "eye")
    return folder


@pytest.fixture(scope="session")
def encoding(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Encoding]:
    """The service that runs encoders. It is not emptied: each test uses its own names (`fresh`)."""
    app = create_app(
        Settings(
            data_dir=tmp_path_factory.mktemp("encoding"),
            models_dir=models,
            max_vectors=3_000,
        )
    )
    with ExitStack() as stack:
        host, port = _listen(stack, app)
        url = f"http://{host}:{port}"
        http = stack.enter_context(httpx2.Client(base_url=url, timeout=60, trust_env=False))
        minilm = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
        for encoder in (
            {"name": "minilm", **minilm},
            {"name": "short", **minilm, "options": {"dim": 128, "prompts": {"query": "find: "}}},
            {"name": "toy", "kind": "sentence-transformers", "model": "toy"},
            {"name": "eye", "kind": "timm", "model": "eye"},
            {"name": "own", "dim": 5},
        ):
            answer = http.post("/encoders", json=encoder)
            assert answer.status_code == 201, answer.text
        own = np.random.default_rng(3).normal(size=(len(TEXTS), 5))
        made = http.post(
            "/anchor-sets", json={"name": "texts", "inputs": TEXTS, "encoders": ["minilm"]}
        )
        assert made.status_code == 201, made.text
        assert (
            http.put(
                "/anchor-sets/texts/embeddings/own", json={"vectors": own.tolist()}
            ).status_code
            == 201
        )
        yield Encoding(url, app, http, models, TEXTS, own)


@pytest.fixture(scope="session")
def fresh() -> Callable[[], str]:
    """A name that nothing has yet."""
    numbers = count()
    return lambda: f"fresh-{next(numbers)}"


def make_toy(folder: Path) -> None:
    """A sentence-transformers model that reads 32 tokens; mean pooling, no normalisation."""
    from app.encoders.torchvision_ops import make_importable

    make_importable()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    raw = folder.parent / ".raw"
    raw.mkdir()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    (raw / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    shape = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    }
    BertModel(
        BertConfig(
            vocab_size=len(words), max_position_embeddings=64, initializer_range=0.5, **shape
        )
    ).save_pretrained(raw)
    BertTokenizerFast(str(raw / "vocab.txt")).save_pretrained(raw)
    first = Transformer(str(raw), max_seq_length=32)
    SentenceTransformer(modules=[first, Pooling(24, pooling_mode="mean")], device="cpu").save(
        str(folder)
    )


def make_eye(folder: Path) -> None:
    """A timm model of images of 40 x 40 pixels."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet10t", channels=[8, 8, 16, 24], stem_width=8, num_classes=5)
    timm.models.save_for_hf(
        model, folder, safe_serialization=True, data_config={"input_size": (3, 40, 40)}
    )


@pytest.fixture(scope="session")
def new_key() -> Callable[..., str]:
    """Make an API key as `anchorage keys create` does, and return it."""

    def make(
        client: TestClient,
        scope: str = "admin",
        project: str = "default",
        rate: str | None = None,
        until: datetime | None = None,
    ) -> str:
        services = client.app.state.services
        _, key = create_key(
            services,
            RequestContext(project),
            name="test",
            scopes=[Scope(scope)],
            rate_limit=rate,
            expires_at=until,
        )
        return key

    return make


@pytest.fixture
def first_keys(tmp_path: Path) -> Callable[..., list[str]]:
    """Make keys of these projects and scopes for the service that `listen` will start."""

    def make(*wanted: tuple[str, Scope]) -> list[str]:
        services = make_services(Settings(data_dir=tmp_path))
        services.db.upgrade()
        keys = [
            create_key(services, RequestContext(project), name="x", scopes=[scope])[1]
            for project, scope in wanted
        ]
        services.close()
        return keys

    return make


@pytest.fixture(scope="session")
def bearing() -> Callable[[str], dict[str, str]]:
    """The header that carries a key."""
    return lambda key: {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="session")
def endless_bootstrap() -> dict[str, Any]:
    """A bootstrap of the encoders `first` and `second` that takes far longer than a test."""
    generator = np.random.default_rng(9)
    return {
        "name": "grown",
        "source": "first",
        "target": "second",
        "source_pool": generator.normal(size=(200, 8)).tolist(),
        "target_pool": generator.normal(size=(200, 6)).tolist(),
        "seeds": [[0, 0], [1, 1]],
        "options": {"attempts": 64},
    }


@pytest.fixture(scope="session")
def refused() -> Callable[..., dict[str, Any]]:
    """Assert status, code, field and rows of a problem document, and return it."""

    def check(
        answer: Any,
        status: int,
        code: str,
        field: str | None = None,
        rows: list[int] | None = None,
        detail: str = "",
    ) -> dict[str, Any]:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert (problem["code"], problem.get("field")) == (code, field), problem
        assert problem["status"] == status
        assert problem["type"] == f"/docs/errors#{code}"
        assert problem["title"]
        assert problem["instance"].startswith("/")
        assert detail in problem["detail"]
        assert problem["detail"]
        assert problem["request_id"] == answer.headers["x-request-id"]
        assert (answer.headers.get("retry-after") or "None") == str(problem.get("retry_after"))
        assert (status in (429, 503)) == ("retry_after" in problem)
        assert problem.get("rows") == rows, problem
        if rows is not None:
            assert problem["row_count"] >= len(rows)
        return problem

    return check


@pytest.fixture(scope="session")
def complaint() -> Callable[[Any], tuple[int, str]]:
    """Return status and code of an error, after a check of its shape in the path's protocol."""

    def read(answer: Any) -> tuple[int, str]:
        body = answer.json()
        assert answer.status_code >= 400, answer.text
        if answer.request.url.path.startswith("/v1/"):
            assert answer.headers["content-type"] == "application/json", answer.text
            assert set(body) == {"error"}, body
            assert set(body["error"]) == {"message", "type", "param", "code", "rows"}
            assert body["error"]["message"]
            return answer.status_code, body["error"]["code"]
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code, body["code"]

    return read


@pytest.fixture(scope="session")
def packed() -> Callable[..., dict[str, Any]]:
    """An array as the wire's base64 object."""

    def pack(array: Any, dtype: str = "float32") -> dict[str, Any]:
        data = np.asarray(array, dtype=np.dtype(dtype).newbyteorder("<"))
        return {
            "dtype": dtype,
            "shape": list(data.shape),
            "base64": base64.b64encode(data.tobytes()).decode(),
        }

    return pack


@pytest.fixture(scope="session")
def unpacked() -> Callable[..., np.ndarray]:
    """The array of a base64 object."""

    def unpack(value: dict[str, Any]) -> np.ndarray:
        return np.frombuffer(base64.b64decode(value["base64"]), np.dtype(value["dtype"])).reshape(
            value["shape"]
        )

    return unpack


@pytest.fixture(scope="session")
def finished() -> Callable[..., dict[str, Any]]:
    """Wait until a job has ended, and return it."""

    def wait(client: TestClient, job_id: str, timeout: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + timeout * slack()
        while time.monotonic() < deadline:
            job = client.get(f"/jobs/{job_id}").json()
            if job["state"] in ("succeeded", "failed", "cancelled"):
                return job
            time.sleep(0.02)
        raise AssertionError(f"the job did not end: {job}")

    return wait
