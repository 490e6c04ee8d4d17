"""Both databases, empty, and a Redis server of a test's own that may be killed."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from app.storage.db import Database, sqlite_url
from app.storage.redis import redis_client
from tests.storage.helpers import delete_all


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, once on each of the two."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def postgres(migrated_postgres: str) -> Iterator[Database]:
    """A migrated PostgreSQL without a row."""
    db = Database(migrated_postgres)
    yield db
    delete_all(db)
    db.close()


@pytest.fixture
def sqlite(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Database]:
    """A migrated SQLite without a row."""
    shutil.copy(migrated_sqlite, tmp_path / "test.db")
    db = Database(sqlite_url(tmp_path / "test.db"))
    yield db
    db.close()


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest) -> Database:
    """A migrated database without a row, once on each of the two."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def connect() -> Iterator[Callable[[str], redis.Redis]]:
    """Clients as the service makes them, closed after the test."""
    clients = []

    def connect(url: str) -> redis.Redis:
        clients.append(redis_client(url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


class RedisServer:
    """A redis-server process on its own port. It keeps nothing when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                str(self.folder),
            ],
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis.from_url(self.url) as client:
            for _ in range(500):
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.02)
                else:
                    return
        raise AssertionError("redis-server did not come up")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """It takes connections and commands, and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test's own, running; without the program, a skip (in CI a failure)."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on PATH")
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()
