"""Vectors as columns of Arrow tables, to numpy and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.errors import StoreUnsupported
from app.stores.base import StoreVectors


def is_vector_type(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists of floats."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    lists = lists or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))


def find_vector_column(schema: pa.Schema, name: str | None) -> str:
    """Return the name of the vector column. Raises StoreUnsupported."""
    columns = [field.name for field in schema if is_vector_type(field.type)]
    shown = ", ".join(map(repr, columns)) or "none"
    if name is None:
        if len(columns) == 1:
            return str(columns[0])
        problem = "The file has no column of vectors, or several"
    elif name in columns:
        return name
    elif name in schema.names:
        problem = f"The column {name!r} has the type {schema.field(name).type}"
    else:
        problem = f"The file has no column {name!r}"
    raise StoreUnsupported(
        f"{problem}. A column of vectors holds lists of float16, float32 or float64. Name one in "
        f"`vector_field`; such columns are: {shown}.",
        field="vector_field",
    )


def read_vectors(
    column: pa.Array, first: int, dim: int | None
) -> tuple[NDArray[np.int64], StoreVectors]:
    """Return the row numbers and the vectors (n, d) of rows that have one.

    first  row number of the column's first value
    dim    expected dimensions; None: those of the first vector
    Raises StoreUnsupported for vectors of unequal lengths and for values that are not finite.
    """
    valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    rows = valid + first
    if len(valid) == 0:
        return rows, np.empty((0, dim or 0), np.float32)
    if column.null_count:
        column = column.filter(column.is_valid())
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    dim = int(lengths[0]) if dim is None else dim
    if dim == 0 or (lengths != dim).any():
        bad = int(np.flatnonzero(lengths != dim)[0]) if dim else 0
        raise StoreUnsupported(
            f"Row {rows[bad]} has a vector of {lengths[bad]} numbers, and others have {dim}. All "
            "vectors need the same number of dimensions, at least 1. Correct the file.",
            rows=[int(rows[bad])],
        )
    flat = column.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(flat.reshape(-1, dim), dtype=np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad_rows = rows[~finite].tolist()
        raise StoreUnsupported(
            f"Row {bad_rows[0]} has a vector with NaN, infinity or a number above float32. "
            "Correct the file, or set such vectors to null.",
            rows=bad_rows,
        )
    return rows, vectors


def vector_column(vectors: StoreVectors, present: NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Return a column of type `kind` with vectors (m, d) where `present` (n) is true, else null."""
    dim = vectors.shape[1]
    value = kind.value_type
    offsets = np.concatenate([[0], np.cumsum(present) * dim])
    numbers = np.dtype(value.to_pandas_dtype())
    if pa.types.is_fixed_size_list(kind):
        padded = np.zeros((len(present), dim), numbers)
        padded[present] = vectors
        mask = None if present.all() else pa.array(~present)
        flat = pa.array(padded.reshape(-1), value)
        return pa.FixedSizeListArray.from_arrays(flat, type=with_dim(kind, dim), mask=mask)
    flat = pa.array(vectors.astype(numbers).reshape(-1), value)
    large = pa.types.is_large_list(kind)
    made = pa.LargeListArray if large else pa.ListArray
    places = pa.array(offsets, pa.int64() if large else pa.int32())
    mask = None if present.all() else pa.array(~present)
    return made.from_arrays(places, flat, type=kind, mask=mask)


def with_dim(kind: pa.DataType, dim: int) -> pa.DataType:
    """Return the type of a vector column with another number of dimensions."""
    return pa.list_(kind.value_field, dim) if pa.types.is_fixed_size_list(kind) else kind
