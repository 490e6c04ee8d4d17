"""What the tests of the routes share: one way to look at a problem document, and vectors in base64."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.testclient import TestClient

from app.api.protocol import BoundedHttp
from app.main import create_app
from app.services.keys import create_key
from app.settings import Settings
from app.storage.tables import Base
from app.types import Scope
from app.wiring import make_services


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One service for all tests of the routes: starting and stopping one takes longer than most of them."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("api"), max_body_bytes=4 * 1024 * 1024, max_vectors=2_000, max_pool=200)
    with TestClient(create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(running: TestClient) -> Iterator[TestClient]:
    """The running service, with no row in its database."""
    yield running
    _empty(running)


@pytest.fixture(scope="session")
def running_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The same, where callers need API keys."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("keys"), auth="keys")
    with TestClient(create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def locked(running_with_keys: TestClient) -> Iterator[TestClient]:
    """The running service that asks for keys, with no row in its database, so also no key."""
    yield running_with_keys
    _empty(running_with_keys)


def _empty(client: TestClient) -> None:
    with client.app.state.services.db.transaction() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Start a service of this test's own, with these settings."""
    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            app = create_app(Settings(**{"data_dir": tmp_path, **settings}))
            return stack.enter_context(TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False))

        yield start


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[..., tuple[str, int]]]:
    """Start a service behind a real socket, with these settings; returns its host and port."""
    with ExitStack() as stack:

        def start(**settings: Any) -> tuple[str, int]:
            app = create_app(Settings(**{"data_dir": tmp_path, **settings}))
            server = uvicorn.Server(uvicorn.Config(app, http=BoundedHttp, log_config=None, access_log=False, ws="none"))
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            deadline = time.monotonic() + 30
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.01)
            return listener.getsockname()

        yield start


@pytest.fixture(scope="session")
def new_key() -> Callable[..., str]:
    """Make an API key as `anchorage keys create` does, and return it."""

    def make(
        client: TestClient, scope: str = "admin", project: str = "default", rate: str | None = None, until: datetime | None = None
    ) -> str:
        services = client.app.state.services
        _, key = create_key(services, project, name="test", scopes=[Scope(scope)], rate_limit=rate, expires_at=until)
        return key

    return make


@pytest.fixture
def first_keys(tmp_path: Path) -> Callable[..., list[str]]:
    """Make keys of these projects and scopes for the service that `listen` will start."""

    def make(*wanted: tuple[str, Scope]) -> list[str]:
        services = make_services(Settings(data_dir=tmp_path))
        services.db.migrate()
        keys = [create_key(services, project, name="x", scopes=[scope])[1] for project, scope in wanted]
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
        "size": 200,
        "options": {"steps": 2000, "sinkhorn_steps": 50},
    }


@pytest.fixture(scope="session")
def refused() -> Callable[..., dict[str, Any]]:
    """Assert that an answer is a problem document of this status and code, at this field and these rows; returns it."""

    def check(
        answer: Any, status: int, code: str, field: str | None = None, rows: list[int] | None = None, detail: str = ""
    ) -> dict[str, Any]:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert (problem["code"], problem.get("field")) == (code, field), problem
        assert problem["status"] == status
        assert problem["type"] == f"urn:anchorage:{code}"
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
def packed() -> Callable[..., dict[str, Any]]:
    """An array as the wire's base64 object."""

    def pack(array: Any, dtype: str = "float32") -> dict[str, Any]:
        data = np.asarray(array, dtype=np.dtype(dtype).newbyteorder("<"))
        return {"dtype": dtype, "shape": list(data.shape), "base64": base64.b64encode(data.tobytes()).decode()}

    return pack


@pytest.fixture(scope="session")
def unpacked() -> Callable[..., np.ndarray]:
    """The array of a base64 object."""

    def unpack(value: dict[str, Any]) -> np.ndarray:
        return np.frombuffer(base64.b64decode(value["base64"]), np.dtype(value["dtype"])).reshape(value["shape"])

    return unpack


@pytest.fixture(scope="session")
def finished() -> Callable[..., dict[str, Any]]:
    """Wait until a job has ended, and return it."""

    def wait(client: TestClient, job_id: str, timeout: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            job = client.get(f"/jobs/{job_id}").json()
            if job["state"] in ("succeeded", "failed", "cancelled"):
                return job
            time.sleep(0.02)
        raise AssertionError(f"the job did not end: {job}")

    return wait
