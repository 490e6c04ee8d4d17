"""Faults of PostgreSQL as errors of stores. No message contains the URL."""

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
    if not state and _LOGIN.search(str(error)):
        return StoreRefused(
            "PostgreSQL refuses the login of this address: its role, password or database is "
            "wrong, or has no right to connect. Ask the operator to correct the address in "
            "ANCHORAGE_STORES."
        )
    if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(
            f"PostgreSQL does not answer, or dropped the connection, at the attempt {action}. "
            "Try again; a reindexing continues where it stopped."
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
