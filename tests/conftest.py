"""What every test may ask for. Nothing here stands in for the service: databases, blobs, workers and servers are real."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings as hypothesis_settings
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings

# Two cores shared with servers of our own: OpenMP threads waiting for each other cost more than they bring.
torch.set_num_threads(1)
# Timings vary on shared machines; a test is wrong or right, never late.
hypothesis_settings.register_profile("anchorage", deadline=None, max_examples=50)
hypothesis_settings.load_profile("anchorage")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A laptop may lack an encoder or a server; CI may not: there a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("CI=true: a skipped test is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """The whole service, embedded: SQLite, blobs and worker below a temporary folder."""
    settings = Settings(data_dir=tmp_path, max_body_bytes=4 * 1024 * 1024, max_vectors=2_000, max_pool=200)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def embeddings() -> dict[str, np.ndarray]:
    """40 items by two made-up encoders, 8-d and 6-d: the second is part of the first turned, scaled and shifted, with noise."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(40, 8)) + 0.5
    rotation, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    second = 3.0 * (first @ rotation)[:, :6] + 0.05 * generator.normal(size=(40, 6)) - 2.0
    return {"first": first, "second": second}


@pytest.fixture
def stocked(client: TestClient, embeddings: dict[str, np.ndarray]) -> TestClient:
    """A service with encoders `first` and `second`, and their 40 items as the anchor set `items`."""
    for name, vectors in embeddings.items():
        answer = client.post("/encoders", json={"name": name, "kind": "external", "dim": vectors.shape[1]})
        assert answer.status_code == 201, answer.text
    body = {"name": "items", "embeddings": {name: vectors.tolist() for name, vectors in embeddings.items()}}
    answer = client.post("/anchor-sets", json=body)
    assert answer.status_code == 201, answer.text
    return client
