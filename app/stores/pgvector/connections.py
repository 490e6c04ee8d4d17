"""Connections to PostgreSQL: a store has a few, made when needed. No error shows the address."""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, LiteralString, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg import InterfaceError, InternalError, OperationalError, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from app.errors import (
    AnchorageError,
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)

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

#: settings of each transaction: the text of values, and with it the checksum, is always the same.
#: None outlives its transaction: a pooler lends the session to another client next
SETTINGS: LiteralString = (
    "SELECT set_config('application_name', 'anchorage', true), "
    "set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true), "
    "set_config('IntervalStyle', 'postgres', true), set_config('bytea_output', 'hex', true), "
    "set_config('extra_float_digits', '1', true), set_config('row_security', 'off', true), "
    "set_config('statement_timeout', {limit}, true), set_config('search_path', "
    "concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident({extension})), true)"
)

_SERVER = (
    "SELECT n.nspname, e.extversion, "
    "(SELECT setting::int FROM pg_settings WHERE name = 'deadlock_timeout'), "
    "coalesce(current_setting('hnsw.ef_search', true), '')::text, "
    "coalesce(current_setting('ivfflat.probes', true), '')::text "
    "FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
)

_CHANGED = {"42P01", "42703", "42804", "42704", "42883", "22000", "2BP01", "3F000", "42P07"}
_BUSY = {"57014", "55P03", "40P01", "40001"}
#: what libpq says when a server refuses a login, and when there is none. It does not tell codes,
#: and its other words may show the address
_LOGIN = re.compile(
    r'role ".*" does not exist|database ".*" does not exist|authentication failed'
    r"|no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in"
    r"|permission denied for database|no password supplied"
)
_UNREACHABLE = re.compile(
    r"(?:port \d+ failed: )?(?:Connection refused|No such file or directory|No route to host"
    r"|Network is unreachable|timeout expired)|failed to resolve host"
)


class StoreConnection(psycopg.Connection[Any]):
    """A connection that raises OperationalError when the server is silent in a short statement.

    extension    schema of pgvector
    version      version of pgvector, as (0, 8)
    deadlock_ms  how long a session waits for a lock before the server looks for a deadlock
    search_settings  `ef_search` and `probes` as the database or the role has them; "" where not
    """

    extension: str
    deadlock_ms: int
    search_settings: dict[str, str]
    version: tuple[int, ...]
    long: bool = False

    @contextmanager
    def transaction(self, *arguments: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        """Begin a transaction with SETTINGS, or a savepoint within one."""
        is_outermost = self.info.transaction_status == TransactionStatus.IDLE
        with super().transaction(*arguments, **options) as begun:
            if is_outermost:
                self.run(
                    SETTINGS,
                    limit=sql.Literal("0" if self.long else f"{SHORT_STATEMENT_S}s"),
                    extension=sql.Literal(self.extension),
                )
            yield begun

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
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @contextmanager
    def use(
        self, action: str, *, long: bool = False, whole: bool = True
    ) -> Iterator[StoreConnection]:
        """Lend a connection in a transaction, and raise its faults as errors of stores.

        action  what the block does, as "to read rows"
        long    statements may take longer than SHORT_STATEMENT_S
        whole   false: the block begins its own transactions
        """
        if not self._places.acquire(timeout=SHORT_STATEMENT_S):
            raise StoreUnavailable("All connections to the store are busy. Try again later.")
        connection, idle = None, self._idle
        try:
            connection = _usable(idle) or self._connect()
            connection.long = long
            with connection.transaction() if whole else nullcontext():
                yield connection
            idle.append(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, psycopg.Error):
                raise fault(error, action) from None
            raise
        finally:
            if idle is not self._idle:  # `close` was called meanwhile
                _close_all(idle)
            self._places.release()

    def close(self) -> None:
        idle, self._idle = self._idle, []
        _close_all(idle)

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
            self._url, autocommit=True, connect_timeout=CONNECT_S, prepare_threshold=None, **GONE
        )
        try:
            row = connection.execute(_SERVER).fetchone()
            if row is None:
                raise StoreUnsupported(
                    "The database has no extension `vector`. Ask its operator for CREATE "
                    "EXTENSION vector.",
                    field="address",
                )
            connection.extension, version, connection.deadlock_ms, *settings = row
            connection.search_settings = dict(zip(("ef_search", "probes"), settings, strict=True))
            connection.version = tuple(int(part) for part in version.split(".")[:2])
            register_vector(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _usable(idle: list[StoreConnection]) -> StoreConnection | None:
    """Take a connection that still is one. An idle server sends only its farewell."""
    with suppress(IndexError):
        while True:
            connection = idle.pop()
            poll = select.poll()  # select.select refuses descriptors above 1023
            if not connection.closed:
                poll.register(connection.fileno(), select.POLLIN)
                if not poll.poll(0):
                    return connection
            connection.close()
    return None


def _close_all(idle: list[StoreConnection]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop().close()


def fault(error: psycopg.Error, action: str) -> AnchorageError:
    """Return the error of stores for a fault of PostgreSQL. action: as "to read rows"."""
    state = error.sqlstate or ""
    said = _LOGIN.search(str(error)) or _UNREACHABLE.search(str(error))
    if not state and said:
        return (StoreRefused if said.re is _LOGIN else StoreUnavailable)(
            f"PostgreSQL cannot be reached by this address: {said[0]}. Check the address (in a "
            "service, its operator's ANCHORAGE_STORES), and that the server runs."
        )
    if not state and isinstance(error, OperationalError | InterfaceError | InternalError):
        return StoreUnavailable(
            f"PostgreSQL does not answer, or dropped the connection, at the attempt {action}. "
            "Try again."
        )
    # Only the server's own sentence: details quote rows, and texts of libpq quote the address.
    message = (error.diag.message_primary or "no message").splitlines()[0]
    reason = f"PostgreSQL reports {state or type(error).__name__}: {message}"
    if state in {"53100", "53400"}:
        return StoreFull(
            f"PostgreSQL has no space left at the attempt {action}. Free disk space, and try "
            f"again. {reason}"
        )
    if state[:2] in {"08", "53", "57"} or state in _BUSY:
        return StoreUnavailable(f"PostgreSQL cannot serve the attempt {action} now. {reason}")
    if state in _CHANGED:
        return StoreChanged(
            f"The table no longer has the form that the attempt {action} needs. {reason}"
        )
    if state[:3] == "22P":
        return InvalidFilter(f"PostgreSQL cannot read a value. {reason}", field="filter")
    return StoreRefused(f"PostgreSQL refuses the attempt {action}. {reason}")
