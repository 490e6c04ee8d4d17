"""PgConnections to PostgreSQL: a few, made when needed, with deadlines for a silent server."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format

from app.errors import StoreUnavailable, StoreUnsupported
from app.stores.pgvector.faults import store_faults

Step = TypeVar("Step")

#: limits in seconds: to connect, of one short statement (the server ends it), and of a silence,
#: after which a long statement ends if a new connection fails too
CONNECT_S, SHORT_STATEMENT_S, SILENCE_S = 5, 30, 8.0

#: most connections of one store
MOST_CONNECTIONS = 4

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


class RawVector(Loader):
    """Returns a vector as the bytes that PostgreSQL sends: numpy reads many at once."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class StoreConnection(psycopg.Connection[Any]):
    """A connection that raises OperationalError when the server is silent.

    extension     schema of pgvector
    version       version of pgvector, as (0, 8)
    """

    url: str
    extension: str
    version: tuple[int, ...]
    long: bool = False

    def wait(self, gen: PQGen[Step], *arguments: Any, **options: Any) -> Step:
        """Run a step of the protocol. psycopg waits nowhere else (decision 0027)."""
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: PQGen[Step]) -> PQGen[Step]:
        deadline = time.monotonic() + SILENCE_S
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    if not (self.long and self._answers()):
                        self.pgconn.finish()
                        raise psycopg.OperationalError("the server is silent")
                    deadline = time.monotonic() + SILENCE_S
                wanted = gen.send(ready)
        except StopIteration as end:
            value: Step = end.value
            return value

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=CONNECT_S).close()
        except psycopg.Error as error:
            return error.sqlstate is not None
        return True


class PgConnections:
    """At most MOST_CONNECTIONS connections that threads share."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[StoreConnection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._process = os.getpid()
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
            if self._process != os.getpid():  # connections must not be shared with a parent
                self._idle, self._process = [], os.getpid()
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
        )
        connection.url = self._url
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
