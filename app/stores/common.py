"""What several connectors need: checksums, and the errors of faults."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np

from app.errors import (
    AnchorageError,
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from app.stores.port import Cursor, HearRows, Page, RowsChecksum, StoreId, StoreVectors

Cause = TypeVar("Cause", bound=BaseException)


def row_number(*parts: bytes) -> int:
    """Return a number below 2^128 that depends on these bytes of a row."""
    return int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=16).digest())


def as_json(content: Any) -> bytes:
    """Return JSON that is the same for equal content."""
    return json.dumps(content, sort_keys=True, default=repr).encode()


def rows_checksum(pages: Iterable[Sequence[int]], hear: HearRows) -> RowsChecksum:
    """Return the checksum of pages of rows, by a `row_number` of each row."""
    count = total = 0
    for numbers in pages:
        count, total = count + len(numbers), total + sum(numbers)
        hear(count)
    return RowsChecksum(count, f"{total % 2**128:032x}")


def page_of(
    ids: Sequence[StoreId],
    vectors: Mapping[StoreId, StoreVectors],
    dim: int,
    cursor: Cursor | None = None,
) -> Page:
    """Return those of the ids that have a vector, in their order."""
    kept = [id for id in ids if id in vectors]
    found = np.zeros((len(kept), dim), np.float32)
    for place, id in enumerate(kept):
        found[place] = vectors[id]
    return Page(kept, found, cursor)


def raised_by(error: BaseException, packages: Collection[str]) -> bool:
    """Return whether a call of one of these packages raised an error, and not our own code.

    Libraries raise ValueError and RuntimeError for faults of a store; so do mistakes of ours. The
    functions that ran when the error was raised tell them apart: the last one that is ours or
    theirs.
    """
    theirs = False
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        theirs = package in packages or (theirs and package != "app")
        trace = trace.tb_next
    return theirs


#: most characters of a fault that an error repeats
FAULT_SHOWN = 300

#: errors, parts of messages in lower case that stand for them, and what to do
FAULT_SIGNS: tuple[tuple[type[AnchorageError], tuple[str, ...], str], ...] = (
    (
        StoreFull,
        (
            "no space left",
            "disk is full",
            "disk full",
            "not enough space",
            "out of disk",
            "insufficient storage",
        ),
        "Its disk is full. Free space there, then continue.",
    ),
    (
        StoreUnavailable,
        ("already accessed by another instance", "wouldblock"),
        "Another process has the folder open, and the store lets one process in. Close it there, "
        "or use a server.",
    ),
    (
        StoreUnavailable,
        ("database is locked",),
        "Another connection holds the write lock of the file for more than 5 s. Close its "
        "transaction, then try again.",
    ),
    (
        StoreRefused,
        (
            "permission denied",
            "read-only",
            "readonly",
            "forbidden",
            "unauthorized",
            "accessdenied",
            "unable to open database",
        ),
        "Ask the operator for credentials or permissions that allow reads and writes.",
    ),
    (
        StoreChanged,
        (
            "not found",
            "doesn't exist",
            "does not exist",
            "no such file",
            "not existing vector name",
            "no point with id",
            "vector dimension error",
            "is not initialized",
            "vector inserting error",
        ),
        "Somebody deleted, renamed or changed the collection. Look at it, then plan a new "
        "migration.",
    ),
)


def fault_of(store: str, text: str, *, filtered: bool = False) -> AnchorageError:
    """Return the error that a message of a store's library stands for.

    filtered  the call has a client's filter, so that an unknown message is about it
    """
    shown = text[:FAULT_SHOWN]
    for kind, signs, advice in FAULT_SIGNS:
        if any(sign in text.lower() for sign in signs):
            return kind(f"{store} did not accept the call: {shown}. {advice}")
    if filtered:
        return InvalidFilter(f"{store} does not read the filter: {shown}.", field="filter")
    return StoreUnavailable(
        f"{store} failed: {shown}. Try again; if it fails again, ask the operator to look at its "
        "log."
    )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question about the collection of the nearest name, after a space; "" without."""
    near = get_close_matches(name, list(names), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def find_cause(error: BaseException, kind: type[Cause]) -> Cause | None:
    """Return the error of this class that a library wrapped into its own, or None."""
    found: BaseException | None = error
    seen = set()
    while found is not None and not isinstance(found, kind):
        seen.add(id(found))
        found = found.__cause__ or found.__context__
        if id(found) in seen:  # a library may raise an error from itself
            return None
    return found


def attempts(within_s: float) -> Iterator[bool]:
    """Yield whether the time is over, with growing pauses, for a caller who looks each time."""
    until, pause = time.monotonic() + within_s, 0.1
    while True:
        yield time.monotonic() > until
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


@contextmanager
def store_faults(
    store: str,
    packages: Collection[str],
    translate: Callable[[Exception], AnchorageError | None] = lambda error: None,
    *,
    filtered: bool = False,
) -> Iterator[None]:
    """Raise faults of a store in the block as errors of this project, and mistakes of ours as are.

    packages   the store's libraries, whose errors are faults of the store
    translate  returns the error for a class of faults that its text does not tell
    """
    try:
        yield
    except AnchorageError:
        raise
    except Exception as error:
        fault = find_cause(error, AnchorageError) or translate(error)
        if fault is None:
            if not isinstance(error, OSError) and not raised_by(error, packages):
                raise
            fault = fault_of(store, str(error), filtered=filtered)
        raise fault from error
