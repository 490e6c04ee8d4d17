"""What several connectors need: the other side, changes, checksums, and whose fault an error is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

from app.stores.base import Changes, RowsChecksum, Side, StoreVectors, TranslateRows


def opposite(side: Side) -> Side:
    return "new" if side == "old" else "old"


def translate_changes(translate: TranslateRows, changes: Changes) -> StoreVectors:
    """Return the translated vectors (n, d) of changes; of none, without a call."""
    return translate(changes.ids, changes.vectors) if len(changes.ids) else changes.vectors


def row_number(*parts: bytes) -> int:
    """Return a number below 2^128 that depends on these bytes of a row."""
    return int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=16).digest())


def as_json(content: Any) -> bytes:
    """Return JSON that is the same for equal content."""
    return json.dumps(content, sort_keys=True, default=repr).encode()


def rows_checksum(numbers: Iterable[int]) -> RowsChecksum:
    """Return the checksum of rows, by a `row_number` of each."""
    count = total = 0
    for number in numbers:
        count, total = count + 1, total + number
    return RowsChecksum(count, f"{total % 2**128:032x}")


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
