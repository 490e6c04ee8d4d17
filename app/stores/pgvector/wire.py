"""Keys and vectors as PostgreSQL sends and reads them: numpy converts a whole page at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

import numpy as np
from psycopg import sql

from app.errors import DimensionMismatch, NonFinite
from app.stores.base import StoreId, StoreVectors

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
