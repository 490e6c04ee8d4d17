"""Fixtures of all tests. Databases, blobs, workers and servers are real."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg
import pytest
import redis
import torch
from hypothesis import settings as hypothesis_settings
from starlette.testclient import TestClient

from app.db.session import Database, sqlite_url
from scripts.servers import Missing, Postgres
from tests.pgvector_server import own_pgvector as own_pgvector
from tests.pgvector_server import pgvector_server as pgvector_server
from tests.pgvector_server import pgvector_url as pgvector_url

pytest_plugins = [
    "tests.fixtures.http",
    "tests.fixtures.services",
    "tests.fixtures.db",
    "tests.fixtures.shop",
]

# The tests share few cores with the processes they start. Threads of OpenMP wait for one another
# in busy loops: a fit that takes 12 s of CPU with one thread takes 70 s with two.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Timings vary on shared machines; a test is wrong or right, never late.
hypothesis_settings.register_profile("anchorage", deadline=None, max_examples=15)
hypothesis_settings.load_profile("anchorage")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the million objects that imports create, so that no garbage collection scans them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


#: tests that wait for processes or share a service: they begin first, and those of one group run
#: in one process, which starts the service once
GROUPS = {
    "tests/workers": None,
    "clients/python/tests": "client",
    "tests/encoders": "encoding",
    "tests/openai": "encoding",
    "tests/anchors/test_embed_jobs.py": "encoding",
    "tests/bootstrap/test_endpoints": "encoding",
    "tests/search/test_rescore_inputs.py": "encoding",
    "tests/cli": None,
    "tests/docs": None,
    "tests/e2e": "server",
    "tests/test_": None,
    "tests/console": None,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of GROUPS first."""
    order = {prefix: place for place, prefix in enumerate(GROUPS)}

    def place(item: pytest.Item) -> int:
        found = (order[prefix] for prefix in GROUPS if item.nodeid.startswith(prefix))
        return next(found, len(order))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of a file or of a group to one process, in their order."""
    from xdist.scheduler import LoadScopeScheduling

    class ByService(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            groups = (name for prefix, name in GROUPS.items() if nodeid.startswith(prefix))
            return next(groups, None) or nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByService(config, log)


@pytest.fixture(scope="session", autouse=True)
def imports_stay_frozen() -> Iterator[None]:
    """After a model is loaded, the collector visits new objects, and not all that imports made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.encoders.models.pool._freeze_objects", gc.collect)
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CI=true a skipped test is a failure: only a laptop may lack an encoder or a server."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("CI=true: a skipped test is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """A PostgreSQL that allows CREATE DATABASE (ANCHORAGE_TEST_POSTGRES); skips without one."""
    url = os.environ.get(
        "ANCHORAGE_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
    )
    try:
        psycopg.connect(url.replace("+psycopg", ""), connect_timeout=3).close()
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL at {url} (set ANCHORAGE_TEST_POSTGRES): {error}")
    return url


@contextmanager
def empty_database(server: str) -> Iterator[str]:
    """An empty PostgreSQL database; yields its URL."""
    name = f"anchorage_test_{uuid4().hex}"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        yield server.rpartition("/")[0] + "/" + name
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database of this test's own."""
    with empty_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("migrated") / "test.db"
    db = Database(sqlite_url(file))
    db.upgrade()
    db.close()
    return file


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> Iterator[str]:
    """A migrated database for all tests: migrating one takes longer than most of them."""
    with empty_database(postgres_server) as url:
        db = Database(url)
        db.upgrade()
        db.close()
        yield url


@pytest.fixture(scope="session")
def own_postgres_server() -> Iterator[Postgres]:
    """A running PostgreSQL, outside pytest's folders, which other users cannot read."""
    with tempfile.TemporaryDirectory(prefix="anchorage-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # as root, the user postgres must reach its own folder below
        try:
            server = Postgres(folder, options="-c fsync=off")
        except Missing as error:
            pytest.skip(str(error))
        server.create()
        yield server
        server.stop("immediate")


@pytest.fixture
def own_postgres(own_postgres_server: Postgres) -> Iterator[Postgres]:
    """A PostgreSQL that this test may freeze or stop, with an empty database at its `url`."""
    name = f"anchorage_test_{uuid4().hex}"
    own_postgres_server.database = "postgres"
    own_postgres_server.execute(f'CREATE DATABASE "{name}"')
    own_postgres_server.database = name
    yield own_postgres_server
    own_postgres_server.thaw()


@pytest.fixture(scope="session")
def redis_url() -> str:
    """A real Redis (ANCHORAGE_TEST_REDIS); skips without one. Keys start with `redis_prefix`."""
    url = os.environ.get("ANCHORAGE_TEST_REDIS", "redis://127.0.0.1:6379/0")
    try:
        redis.Redis.from_url(url, socket_connect_timeout=3).ping()
    except redis.ConnectionError as error:
        pytest.skip(f"no Redis at {url} (set ANCHORAGE_TEST_REDIS): {error}")
    return url


@pytest.fixture
def redis_prefix(redis_url: str) -> Iterator[str]:
    """The first word of this test's keys, all deleted after it."""
    prefix = f"test-{uuid4().hex}"
    yield prefix
    client = redis.Redis.from_url(redis_url)
    for key in client.scan_iter(f"*{prefix}*"):
        client.delete(key)
    client.close()


@pytest.fixture
def embeddings() -> dict[str, np.ndarray]:
    """40 items by two made-up encoders, 8-d and 6-d: a rotated part of the first, with noise."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(40, 8)) + 0.5
    rotation, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    second = 3.0 * (first @ rotation)[:, :6] + 0.05 * generator.normal(size=(40, 6)) - 2.0
    return {"first": first, "second": second}


@pytest.fixture
def stocked(client: TestClient, embeddings: dict[str, np.ndarray]) -> TestClient:
    """A service with encoders `first` and `second`, and their 40 items as anchor set `items`."""
    for name, vectors in embeddings.items():
        answer = client.post("/encoders", json={"name": name, "dim": vectors.shape[1]})
        assert answer.status_code == 201, answer.text
    lists = {name: vectors.tolist() for name, vectors in embeddings.items()}
    answer = client.post("/anchor-sets", json={"name": "items", "embeddings": lists})
    assert answer.status_code == 201, answer.text
    return client
