"""What every row must be, from the recorded writes, and a comparison with what the table holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.migrate.rows import Collection, Numbers
from benchmarks.migrate.vectors import DIM, Vectors

#: largest difference of one number of a unit vector that counts as equal: float32 sums in another
#: order
TOLERANCE = 2e-6
BLOCK = 10_000

#: a row of `COPY (id, embedding) TO STDOUT (FORMAT BINARY)`
RECORD = np.dtype(
    [
        ("fields", ">i2"),
        ("id_bytes", ">i4"),
        ("id", ">i8"),
        ("vector_bytes", ">i4"),
        ("dim", ">i2"),
        ("unused", ">i2"),
        ("vector", ">f4", (DIM,)),
    ]
)
HEADER_BYTES, TRAILER_BYTES = 19, 2

Translate = Callable[[Vectors], Vectors]


@dataclass
class Expected:
    """The rows that must exist. By id: the row of the collection whose text and vector it has, its
    revision, and whether its vector was written by the new encoder.

    unsure  ids of failed writes, and of vectors that the old encoder wrote while the switch ran
    """

    source: dict[int, int]
    revision: dict[int, int] = field(default_factory=dict)
    by_new: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    failed: int = 0


def replay(log: Path, loaded: int, encoders: tuple[str, str], switches: list[Any]) -> Expected:
    """Apply the recorded writes to the loaded rows. switches: (begin, end) of each."""
    rows = Expected({row: row for row in range(loaded)})
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] != "search":
            _apply(rows, entry, encoders, switches)
    return rows


def _apply(rows: Expected, entry: Any, encoders: tuple[str, str], switches: list[Any]) -> None:
    kind, row = entry["kind"], entry["row"]
    if entry["error"] is not None:
        rows.failed += 1
        rows.unsure.add(row)
    elif kind == "delete":
        rows.source.pop(row, None)
    elif kind == "payload":
        rows.revision[row] = rows.revision.get(row, 0) + 1
    else:
        rows.source[row] = entry["source"]
        rows.by_new.discard(row)
        rows.unsure.discard(row)
        if entry["encoder"] == encoders[1]:
            rows.by_new.add(row)
        ended = entry["due"] + entry["s"]
        if any(entry["due"] <= last and ended >= first for first, last in switches):
            rows.unsure.add(row)


def read_vectors(connection: Any) -> tuple[Numbers, Vectors]:
    """Ids in ascending order and vectors, as a client sees them."""
    statement = "COPY (SELECT id, embedding FROM items) TO STDOUT (FORMAT BINARY)"
    with connection.cursor().copy(statement) as copy:
        data = b"".join(copy)
    records = np.frombuffer(data[HEADER_BYTES:-TRAILER_BYTES], RECORD)
    order = np.argsort(records["id"], kind="stable")
    ids = records["id"][order].astype(np.int64)
    return ids, records["vector"][order].astype(np.float32)


def read_payloads(connection: Any) -> dict[int, tuple[str, str, int]]:
    with connection.transaction(), connection.cursor("payloads") as cursor:
        cursor.itersize = BLOCK
        cursor.execute("SELECT id, body, corpus, revision FROM items")
        return {row[0]: row[1:] for row in cursor}


def compare_payloads(connection: Any, rows: Collection, expected: Expected) -> dict[str, int]:
    """Count rows that are missing, too many, or differ in anything but their vector."""
    found = read_payloads(connection)
    ids = expected.source.keys()
    different = sum(
        found[each]
        != (
            rows.text(expected.source[each]),
            rows.corpus(expected.source[each]),
            expected.revision.get(each, 0),
        )
        for each in ids & found.keys() - expected.unsure
    )
    return {
        "rows": len(found),
        "missing": len(ids - found.keys() - expected.unsure),
        "too_many": len(found.keys() - ids - expected.unsure),
        "different": different,
        "unsure": len(expected.unsure),
    }


def compare_vectors(
    found: tuple[Numbers, Vectors], expected: Expected, want: Callable[[Numbers, Any], Vectors]
) -> dict[str, Any]:
    """Compare each row's vector with `want(source rows, written by the new encoder)`."""
    ids, vectors = found
    sure = np.array([each in expected.source and each not in expected.unsure for each in ids])
    exact, wrong, largest = 0, 0, 0.0
    places = np.flatnonzero(sure)
    for start in range(0, len(places), BLOCK):
        some = places[start : start + BLOCK]
        sources = np.array([expected.source[int(each)] for each in ids[some]])
        by_new = np.array([int(each) in expected.by_new for each in ids[some]])
        difference = np.abs(vectors[some] - want(sources, by_new)).max(1)
        exact += int((difference == 0).sum())
        wrong += int((difference > TOLERANCE).sum())
        largest = max(largest, float(difference.max()))
    return {"compared": len(places), "same_bits": exact, "wrong": wrong, "largest": largest}


def wanted(
    rows: Collection,
    encoders: tuple[str, str],
    side: int,
    translate: Translate,
) -> Callable[[Numbers, Any], Vectors]:
    """The vectors that rows must have on a side: 0 before a cutover or after a rollback.

    A row keeps the vector of the encoder that wrote it on its own side. On the other one it has the
    translated vector.
    """

    def want(sources: Numbers, by_new: NDArray[np.bool_]) -> Vectors:
        own = by_new == bool(side)
        vectors = rows.embed(encoders[side], sources)
        other = np.flatnonzero(~own)
        if len(other):
            vectors[other] = translate(rows.embed(encoders[1 - side], sources[other]))
        return vectors

    return want
