"""Connections to PostgreSQL: a store has a few, made when needed."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from app.errors import StoreUnavailable, StoreUnsupported
from app.stores.pgvector.faults import store_faults
from app.stores.pgvector.values import RawVector

Step = TypeVar("Step")

#: limits in seconds: to connect, of one short statement (the server ends it), and of a silence of
#: the server during one
CONNECT_S, SHORT_STATEMENT_S, SILENCE_S = 5, 30, 8.0

#: the kernel ends connections to a host that is gone, also during a long statement
GONE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": int(1000 * SILENCE_S),
}

#: most connections of one store
MAX_CONNECTIONS = 4

#: makes the text of values, and with it the checksum, the same in every session
SESSION = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false), "
    "set_config('IntervalStyle', 'postgres', false), set_config('bytea_output', 'hex', false), "
    "set_config('extra_float_digits', '1', false), set_config('row_security', 'off', false), "
    "set_config('statement_timeout', %s, false), set_config('search_path', "
    "concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident(n.nspname)), false), "
    "n.nspname, e.extversion, to_regtype(format('%%I.vector', n.nspname))::oid::bigint, "
    "to_regtype(format('%%I.halfvec', n.nspname))::oid::bigint "
    "FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
)


class StoreConnection(psycopg.Connection[Any]):
    """A connection that raises OperationalError when the server is silent in a short statement.

    extension  schema of pgvector
    version    version of pgvector, as (0, 8)
    """

    extension: str
    version: tuple[int, ...]
    long: bool = False

    def run(
        self,
        template: LiteralString,
        *values: str | sql.Composable,
        params: Any = None,
        **names: str | sql.Composable,
    ) -> psycopg.Cursor[Any]:
        """Execute a template with these values in its braces; texts are quoted as identifiers."""
        filled = sql.SQL(template).format(
            *map(_quoted, values), **{name: _quoted(each) for name, each in names.items()}
        )
        return self.execute(filled, params)

    def run_found(self, query: LiteralString, params: Any) -> None:
        """Execute each statement that a query of the catalogue returns."""
        for [statement] in self.execute(query, params).fetchall():
            self.execute(statement.encode())

    def wait(self, gen: PQGen[Step], *arguments: Any, **options: Any) -> Step:
        """Run a step of the protocol. psycopg waits nowhere else."""
        return super().wait(gen if self.long else self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: PQGen[Step]) -> PQGen[Step]:
        deadline = time.monotonic() + SILENCE_S
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server is silent")
                wanted = gen.send(ready)
        except StopIteration as end:
            value: Step = end.value
            return value


def _quoted(value: str | sql.Composable) -> sql.Composable:
    return sql.Identifier(value) if isinstance(value, str) else value


class PgConnections:
    """At most MAX_CONNECTIONS connections that threads share."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[StoreConnection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        #: number of calls of `close`: connections that were lent before are closed, too
        self._closed = 0

    @contextmanager
    def use(self, action: str, *, long: bool = False) -> Iterator[StoreConnection]:
        """Lend a connection in autocommit mode, and raise its faults as errors of stores.

        action  what the block does, as "to read rows"
        long    statements may take longer than SHORT_STATEMENT_S
        """
        if not self._places.acquire(timeout=SHORT_STATEMENT_S):
            raise StoreUnavailable("All connections to the store are busy. Try again later.")
        connection = None
        closed = self._closed
        try:
            with store_faults(action):
                connection = self._take()
                connection.long = long
                if long:
                    connection.execute("SET statement_timeout = 0")
                yield connection
                if long:
                    connection.execute(f"SET statement_timeout = '{SHORT_STATEMENT_S}s'")
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        else:
            with self._lock:
                if closed == self._closed:
                    self._idle.append(connection)
                else:
                    connection.close()
        finally:
            self._places.release()

    @contextmanager
    def transaction(self, action: str, *, long: bool = False) -> Iterator[StoreConnection]:
        """Lend a connection for one transaction."""
        with self.use(action, long=long) as connection, connection.transaction():
            yield connection

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed += 1
        for connection in idle:
            connection.close()

    def _take(self) -> StoreConnection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed and not _readable(connection):
                    return connection
                connection.close()
        return self._connect()

    def _connect(self) -> StoreConnection:
        try:
            conninfo_to_dict(self._url)
        except psycopg.ProgrammingError:  # its text quotes the address
            raise StoreUnsupported(
                "The address is not one of PostgreSQL, or has an option that PostgreSQL does not "
                "know. Name another address, or the `kind` of store that lies there.",
                field="address",
            ) from None
        connection = StoreConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name="anchorage",
            prepare_threshold=None,
            **GONE,
        )
        try:
            row = connection.execute(SESSION, [f"{SHORT_STATEMENT_S}s"]).fetchone()
            if row is None:
                raise StoreUnsupported(
                    "The database has no extension `vector`. Ask its operator for CREATE "
                    "EXTENSION vector.",
                    field="address",
                )
        except BaseException:
            connection.close()
            raise
        *_, connection.extension, version, vector, halfvec = row
        connection.version = tuple(int(part) for part in version.split(".")[:2])
        for oid in (vector, halfvec):
            if oid is not None:
                connection.adapters.register_loader(oid, RawVector)
        return connection


def _readable(connection: StoreConnection) -> bool:
    # An idle server sends only its farewell.
    poll = select.poll()  # select.select refuses descriptors above 1023
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
