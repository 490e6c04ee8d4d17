"""What several connectors need: checksums, and the errors of faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from app.stores.answers import MAX_TEXT
from app.stores.port import Cursor, HearRows, Page, RowsChecksum, StoreId, StoreVectors
from app.stores.text_templates import TextTemplate
from app.types import is_unicode

#: parts of a collection that a sample reads, and most rows of one
SAMPLE_PARTS, SAMPLED_AT_ONCE = 32, 256

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


def random_runs(total: int, count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of runs of rows that make a sample of a collection.

    They are at random positions, one in each part of the collection.
    """
    least = -(-min(count, total) // SAMPLED_AT_ONCE)
    parts = max(1 if count >= total else min(count, SAMPLE_PARTS), least)
    edges = np.linspace(0, total, parts + 1).astype(int).tolist()
    shares = np.diff(np.linspace(0, min(count, total), parts + 1).astype(int)).tolist()
    random = np.random.default_rng(seed)
    for first, end, share in zip(edges, edges[1:], shares, strict=False):
        if share:
            yield int(random.integers(first, max(first, end - share) + 1)), share


def find_text(payload: Mapping[str, Any], field: str) -> str | None:
    """Return a text of a payload. The name of a field may have dots for nested objects."""
    value: Any = payload.get(field, payload)
    for part in field.split(".") if value is payload else ():
        value = value.get(part) if isinstance(value, Mapping) else None
    text = value[:MAX_TEXT] if isinstance(value, str) else ""
    return text if text and is_unicode(text) else None  # no encoder reads half of a character


def fill_text(template: TextTemplate, payload: Mapping[str, Any]) -> str | None:
    """Return the text that a template makes of a payload."""
    return template.fill({name: find_text(payload, name) for name in template.fields})


#: most characters of a fault that an error repeats
FAULT_SHOWN = 300

#: what libraries raise for an answer, or an argument of a client, that they do not expect
ODD_VALUES = (ValueError, LookupError, TypeError, AttributeError)

#: errors, what messages in lower case say that stand for them, and what to do: the libraries of
#: folders have no classes for these
FAULT_SIGNS: tuple[tuple[type[AnchorageError], str, str], ...] = (
    (
        StoreFull,
        "no space left|disk (is )?full|not enough space|out of disk|insufficient storage",
        "Its disk is full. Free space there, then continue.",
    ),
    (
        StoreUnavailable,
        "already accessed by another instance|wouldblock",
        "Another process has the folder open, and the store lets one process in. Close it there, "
        "or use a server.",
    ),
    (
        StoreUnavailable,
        "database is locked",
        "Another connection holds the write lock of the file for more than 5 s. Close its "
        "transaction, then try again.",
    ),
    (
        StoreRefused,
        "permission denied|read-?only|forbidden|unauthorized|accessdenied|unable to open database",
        "Ask the operator for credentials or permissions that allow reads and writes.",
    ),
    (
        StoreChanged,
        "not found|does(n't| not) exist|no such (file|table|column)|not existing vector name|"
        "no point with id|vector (dimension|inserting) error|is not initialized|not aligned",
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
        if re.search(signs, text.lower()):
            return kind(f"{store} did not accept the call: {shown}. {advice}")
    if filtered:
        return InvalidFilter(f"{store} does not read the filter: {shown}.", field="filter")
    return StoreUnavailable(
        f"{store} failed: {shown}. Try again; if it fails again, ask the operator to look at its "
        "log."
    )


class SharedClient:
    """A client of a store's library, which is opened when it is first used, and again after it was
    closed. Several threads may use it at once.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._client: Any = None
        self._lock = threading.Lock()

    def get(self) -> Any:
        with self._lock:
            self._client = self._client or self._connect()
            return self._client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


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
    kinds: tuple[type[Exception], ...] = (),
    translate: Callable[[Exception], AnchorageError | None] = lambda error: None,
    *,
    filtered: bool = False,
) -> Iterator[None]:
    """Raise errors of these kinds, and those of the system, as errors of this project.

    translate  returns the error for a fault that its text does not tell
    """
    try:
        yield
    except AnchorageError:
        raise
    except Exception as error:
        if not isinstance(error, (OSError, *kinds)):
            raise
        fault = find_cause(error, AnchorageError) or translate(error)
        raise (fault or fault_of(store, str(error), filtered=filtered)) from error
