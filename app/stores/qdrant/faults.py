"""Turns what the client, SQLite, the file system and the engine raise into errors of stores."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from pydantic import ValidationError
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from app.errors import (
    AnchorageError,
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.library_faults import raised_by_library

FULL_SIGNS = ("no space left", "disk is full", "disk full", "not enough space", "out of disk")
REFUSED_SIGNS = ("permission denied", "read-only", "readonly", "forbidden", "unauthorized")
LOCKED_SIGNS = ("already accessed by another instance", "wouldblock", "database is locked")
CHANGED_SIGNS = (
    "not found",
    "doesn't exist",
    "does not exist",
    "not existing vector name",
    "no point with id",
    "vector dimension error",
    "is not initialized",
    "vector inserting error",
)

#: most characters of a fault that an error repeats
FAULT_SHOWN = 200


class QdrantFault(RuntimeError):
    """What Qdrant said, where its own error cannot be raised again."""


@contextmanager
def qdrant_faults(where: str, *, filtered: bool = False) -> Iterator[None]:
    """Raise errors of stores. where: the collection; filtered: the call has a client's filter."""
    try:
        yield
    except AnchorageError:
        raise
    except UnexpectedResponse as error:
        raise _of_status(where, error, filtered) from None
    except (ResponseHandlingException, httpx.HTTPError) as error:
        source = getattr(error, "source", error)
        if isinstance(source, ValidationError):
            raise StoreUnsupported(
                f"The Qdrant server of {where} answered in a form that this client does not read. "
                "Ask the operator to compare the versions of both.",
            ) from None
        raise StoreUnavailable(
            f"The Qdrant server of {where} did not answer ({type(source).__name__}). Try again "
            "when it is up."
        ) from None
    except OSError as error:
        raise _of_text(where, f"{error.strerror or error}", filtered, error.errno) from None
    except (sqlite3.Error, QdrantFault) as error:
        raise _of_text(where, str(error), filtered) from None
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        # local mode raises these for names and filters that it does not know
        if not raised_by_library(error) or (isinstance(error, TypeError) and not filtered):
            raise
        if isinstance(error, KeyError):
            raise _changed(where, f"{error} is not there") from None
        raise _of_text(where, str(error), filtered) from None
    except Exception as error:
        # the edge engine raises plain exceptions
        if type(error) is not Exception:
            raise
        raise _of_text(where, str(error), filtered) from None


def _of_status(where: str, error: UnexpectedResponse, filtered: bool) -> AnchorageError:
    text = error.content.decode(errors="replace")[:FAULT_SHOWN]
    status = error.status_code or 0
    if any(sign in text.lower() for sign in FULL_SIGNS) or status == 507:
        return _full(where)
    if status in (401, 403):
        return _refused(where, f"it answered {status}")
    if status == 404:
        return _changed(where, text)
    if status == 400 or status == 422:
        return _of_text(where, text, filtered)
    return StoreUnavailable(
        f"The Qdrant server of {where} answered {status}. Try again when it is healthy."
    )


def _of_text(where: str, text: str, filtered: bool, number: int | None = None) -> AnchorageError:
    low = text.lower()
    shown = text[:FAULT_SHOWN]
    if number in (errno.ENOSPC, errno.EDQUOT) or any(sign in low for sign in FULL_SIGNS):
        return _full(where)
    if any(sign in low for sign in LOCKED_SIGNS):
        return StoreUnavailable(
            f"Another process has the folder of {where} open, and Qdrant lets one process in. "
            "Close it there, or use a Qdrant server."
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or any(
        sign in low for sign in REFUSED_SIGNS
    ):
        return _refused(where, shown)
    if number is not None or any(sign in low for sign in CHANGED_SIGNS):
        return _changed(where, shown)
    if filtered:
        return InvalidFilter(
            f"Qdrant refuses the filter: {shown}. Send a filter of Qdrant's JSON.", field="filter"
        )
    return StoreUnavailable(
        f"Qdrant failed at {where}: {shown}. Try again; if it fails again, "
        "ask the operator to look at its log."
    )


def _full(where: str) -> StoreFull:
    return StoreFull(f"The disk of {where} is full. Free space there, then continue.")


def _refused(where: str, why: str) -> StoreRefused:
    return StoreRefused(
        f"Qdrant refuses access to {where} ({why}). Ask the operator for an API key, or for "
        "permissions of the folder, that allow reads and writes."
    )


def _changed(where: str, why: str) -> StoreChanged:
    return StoreChanged(
        f"The collection {where} is not as it was: {why}. Look at it, then begin a new plan."
    )
