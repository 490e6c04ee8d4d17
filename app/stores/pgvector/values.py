"""Keys and vectors in PostgreSQL's binary form: numpy converts a whole page at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

import numpy as np
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from app.errors import DimensionMismatch, NonFinite
from app.stores.port import StoreId, StoreVectors

KeyKind = Literal["int", "text", "uuid"]

#: the type of a parameter, of an array of them, and of the keys in tables of ours
_KEY_TYPES: dict[KeyKind, str] = {"int": "bigint", "text": "text", "uuid": "uuid"}

#: type of the stored numbers, as PostgreSQL sends them
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}

_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_END = struct.pack(">h", -1)


class RawVector(Loader):
    """Returns a vector as the bytes that PostgreSQL sends."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def key_type(kind: KeyKind) -> sql.SQL:
    return sql.SQL(_KEY_TYPES[kind])


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
    row = np.dtype([("sizes", "V4"), ("numbers", _NUMBERS[type_name], (dim,))])
    joined = b"".join(raw)
    if len(joined) != len(raw) * row.itemsize:
        raise DimensionMismatch(
            f"The column holds vectors of different dimensions; at least one has not {dim}. "
            "Declare the dimension of the column, as `vector(384)`."
        )
    return np.ascontiguousarray(np.frombuffer(joined, row)["numbers"], dtype=np.float32)


def copy_bytes(
    ids: Sequence[StoreId], vectors: StoreVectors, kind: KeyKind, type_name: str
) -> bytes:
    """Return rows of (key, vector) in the binary format of COPY."""
    with np.errstate(over="ignore"):
        stored = vectors.astype(_NUMBERS[type_name])
    if not np.isfinite(stored).all():
        raise NonFinite(
            f"A new vector contains a number that is not finite, or too large for {type_name}."
        )
    dim = vectors.shape[1]
    sizes = struct.pack(">iHH", 4 + dim * stored.itemsize, dim, 0)
    pieces = [_HEADER]
    for key, row in zip(stored_keys(ids, kind), stored, strict=True):
        if kind == "int":
            content = struct.pack(">q", key)
        else:
            content = key.bytes if kind == "uuid" else key.encode()
        pieces += (struct.pack(">hi", 2, len(content)), content, sizes, row.tobytes())
    return b"".join([*pieces, _END])
