"""What the tests of the routes share: one way to look at a problem document, and vectors in base64."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage.tables import Base


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
    with running.app.state.services.db.transaction() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())


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
