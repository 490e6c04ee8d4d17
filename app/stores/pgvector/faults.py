"""Faults of PostgreSQL as errors of stores. No message contains the address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from app.errors import (
    AnchorageError,
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)

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
    return StoreRefused(f"PostgreSQL refuses the attempt {action}. {reason}")


def _first_line(error: psycopg.Error) -> str:
    # Only the server's own sentence: details quote rows, and texts of libpq quote the address.
    return (error.diag.message_primary or "no message").splitlines()[0]
