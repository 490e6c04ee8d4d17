"""Connections to PostgreSQL: deadlines for a silent server, faults as errors of stores, and values.

A store has a few connections, made when needed. Keys and vectors are read and written in binary
form: numpy converts a whole page at once. No message contains the URL.
"""

from __future__ import annotations

import os
import re
import select
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, LiteralString, TypeVar
from uuid import UUID

import numpy as np
import psycopg
from psycopg import sql
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format

from app.errors import (
    AnchorageError,
    DimensionMismatch,
    InvalidFilter,
    NonFinite,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.port import StoreId, StoreVectors

_CHANGED = {"42P01", "42703", "42804", "42704", "42883", "22000", "2BP01", "3F000", "42P07"}
_BUSY = {"57014", "55P03", "40P01", "40001", "53200"}
#: what a server says when it refuses a login. libpq does not tell the code of the error
_LOGIN = re.compile(
    r'role ".*" does not exist|database ".*" does not exist|authentication failed'
    r"|no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in"
    r"|permission denied for database|no password supplied"
)
#: why libpq cannot reach a server, without the host: messages do not show addresses
_UNREACHABLE = re.compile(
    r"Connection refused|No such file or directory|No route to host|Network is unreachable"
    r"|timeout expired|failed to resolve host"
)
_PORT = re.compile(r"port (\d+) failed")

_CONTINUES = "Try again; a migration continues where it stopped."

#: what reading the facts of a table does; no migration needs it to continue
DESCRIBE = "to describe the table"

_REFUSED = {"42501", "25006", "28000", "28P01", "3D000", "42P06"}


@contextmanager
def store_faults(action: str) -> Iterator[None]:
    """Raise faults of the block as errors of stores. `action`: what it does, as "to read rows"."""
    try:
        yield
    except psycopg.Error as error:
        raise fault(error, action) from None


def fault(error: psycopg.Error, action: str) -> AnchorageError:
    """Return the error of stores for a fault of PostgreSQL."""
    state = error.sqlstate or ""
    again = "Try again." if action == DESCRIBE else _CONTINUES
    if not state and (login := _LOGIN.search(str(error))):
        return StoreRefused(
            f"PostgreSQL refuses the login of this address: {login[0]}. Ask the operator to "
            "correct the role, the password or the database of the address in ANCHORAGE_STORES."
        )
    if not state and (found := _UNREACHABLE.search(str(error))):
        reason = "unknown host" if "resolve" in found[0] else found[0]
        port = _PORT.search(str(error))
        where = f" at port {port[1]}" if port and reason != "unknown host" else ""
        return StoreUnavailable(
            f"PostgreSQL cannot be reached{where}: {reason}. Check the host and the port of the "
            f"address in ANCHORAGE_STORES, and that the server runs. {again}"
        )
    if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(
            f"PostgreSQL does not answer, or dropped the connection, at the attempt {action}. "
            f"{again}"
        )
    reason = f"PostgreSQL reports {state or type(error).__name__}: {_first_line(error)}"
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
    if state in _REFUSED:
        return StoreRefused(f"PostgreSQL refuses the attempt {action}. {reason}")
    return StoreRefused(f"PostgreSQL refuses the attempt {action}. {reason}")


def _first_line(error: psycopg.Error) -> str:
    # Only the server's own sentence: details quote rows, and texts of libpq quote the address.
    return (error.diag.message_primary or "no message").splitlines()[0]


KeyKind = Literal["int", "text", "uuid"]

#: the type of a parameter, of an array of them, and of the keys in tables of ours
KEY_TYPES: dict[str, str] = {"int": "bigint", "text": "text", "uuid": "uuid"}

#: type of the stored numbers, as PostgreSQL sends them
NUMBERS = {"vector": ">f4", "halfvec": ">f2"}

_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_END = struct.pack(">h", -1)


def key_type(kind: KeyKind) -> sql.SQL:
    return sql.SQL(KEY_TYPES[kind])


def zero_vector(extension: str, type_name: str, dim: int | None) -> sql.Composed:
    """Return the vector of zeros, which a row without a new vector has in a NOT NULL column."""
    return sql.SQL("array_fill(0::real, ARRAY[{}])::{}").format(
        sql.Literal(dim), sql.Identifier(extension, type_name)
    )


def stored_keys(ids: Sequence[StoreId], kind: KeyKind) -> list[Any]:
    """Return the ids that a column of this kind can hold, as parameters."""
    keys: list[Any] = []
    for each in ids:
        with suppress(ValueError):
            if kind == "int" and not -(2**63) <= int(each) < 2**63:
                continue
            if kind == "text" and "\0" in str(each):
                continue
            keys.append({"int": int, "text": str, "uuid": UUID}[kind](each))
    return keys


def to_vectors(raw: Sequence[bytes], dim: int, type_name: str) -> StoreVectors:
    """Return the vectors (n, d) that PostgreSQL sent."""
    numbers = np.dtype(NUMBERS[type_name])
    rows = np.frombuffer(b"".join(raw), dtype=np.uint8)
    if rows.size != len(raw) * (4 + dim * numbers.itemsize):
        raise DimensionMismatch(
            f"The column holds vectors of different dimensions; at least one has not {dim}. "
            "Declare the dimension of the column, as `vector(384)`."
        )
    body = rows.reshape(len(raw), 4 + dim * numbers.itemsize)[:, 4:]
    return np.ascontiguousarray(
        np.ascontiguousarray(body).view(numbers).astype(np.float32).reshape(len(raw), dim)
    )


def copy_bytes(
    ids: Sequence[StoreId], vectors: StoreVectors, kind: KeyKind, type_name: str
) -> bytes:
    """Return rows of (key, vector) in the binary format of COPY."""
    if not np.isfinite(vectors).all():
        raise NonFinite("A new vector contains a number that is not finite.")
    count, dim = vectors.shape
    numbers = np.dtype(NUMBERS[type_name])
    tail = np.dtype(
        [("size", ">i4"), ("dim", ">u2"), ("unused", ">u2"), ("numbers", numbers, (dim,))]
    )
    if kind == "int":
        whole = np.zeros(
            count, np.dtype([("fields", ">i2"), ("size", ">i4"), ("key", ">i8"), ("tail", tail)])
        )
        whole["fields"], whole["size"], whole["key"] = 2, 8, np.array(ids, dtype=np.int64)
        _fill(whole["tail"], vectors, numbers)
        return _HEADER + whole.tobytes() + _END
    ends = np.zeros(count, tail)
    _fill(ends, vectors, numbers)
    pieces = [_HEADER]
    for each, end in zip(ids, ends, strict=True):
        key = UUID(str(each)).bytes if kind == "uuid" else str(each).encode()
        pieces += (struct.pack(">hi", 2, len(key)), key, end.tobytes())
    return b"".join([*pieces, _END])


def _fill(tail: np.ndarray[Any, Any], vectors: StoreVectors, numbers: np.dtype[Any]) -> None:
    with np.errstate(over="ignore"):
        tail["numbers"] = vectors
    if not np.isfinite(tail["numbers"]).all():
        raise NonFinite("A new vector contains a number that halfvec cannot hold.")
    tail["size"], tail["dim"] = 4 + vectors.shape[1] * numbers.itemsize, vectors.shape[1]


Step = TypeVar("Step")

#: limits in seconds: to connect, of one short statement (the server ends it), and of a silence,
#: after which a long statement ends if a new connection fails too
CONNECT_S, SHORT_STATEMENT_S, SILENCE_S = 5, 30, 8.0

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

    def run(
        self,
        template: LiteralString,
        *values: str | sql.Composable,
        params: Any = None,
        **names: str | sql.Composable,
    ) -> psycopg.Cursor[Any]:
        """Execute a template with these values in its braces; texts are quoted as identifiers."""
        quoted = [sql.Identifier(each) if isinstance(each, str) else each for each in values]
        named = {
            name: sql.Identifier(each) if isinstance(each, str) else each
            for name, each in names.items()
        }
        return self.execute(sql.SQL(template).format(*quoted, **named), params)

    def wait(self, gen: PQGen[Step], *arguments: Any, **options: Any) -> Step:
        """Run a step of the protocol. psycopg waits nowhere else."""
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
    """At most MAX_CONNECTIONS connections that threads share."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[StoreConnection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
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
