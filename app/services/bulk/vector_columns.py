"""The column of vectors of a Parquet file: to a matrix, and back to a column of the same type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.utils.dlpack
from torch import Tensor

from app.errors import ROWS_SHOWN, BadColumn, BadDtype, DimensionMismatch, InvalidRequest
from app.services.serving.apply import refuse_overflow

#: the column of vectors, if several columns hold lists of floats and no name is given
USUAL_COLUMN = "vector"


def find_column(schema: pa.Schema, name: str | None, dim: int, file: str) -> int:
    """Return the position of the column of vectors with `dim` numbers.

    Raises BadColumn, BadDtype, and DimensionMismatch for lists of another fixed size.
    """
    places = [place for place, kind in enumerate(schema.types) if number_type(kind) is not None]
    if name is None:
        usual = [place for place in places if schema.names[place] == USUAL_COLUMN]
        if len(places) != 1 and len(usual) != 1:
            shown = ", ".join(f"`{schema.names[place]}`" for place in places[:10])
            what = f"several columns hold lists of floats: {shown}" if places else "no column does"
            raise BadColumn(f"{file}: {what}. Name the column of vectors with --column.")
        place = (usual or places)[0]
    else:
        found = schema.get_all_field_indices(name)
        if len(found) != 1:
            shown = ", ".join(f"`{each}`" for each in schema.names[:10])
            raise BadColumn(f"{file} has {len(found)} columns {name!r}. Its columns are {shown}.")
        place = int(found[0])
        if place not in places:
            raise BadDtype(
                f"{file}: the column {name!r} holds {schema.types[place]}. "
                "Name a column of lists of float16, float32 or float64."
            )
    size = _fixed_size(schema.types[place])
    if size is not None and size != dim:
        raise DimensionMismatch(
            f"{file}: the vectors of `{schema.names[place]}` have {size} numbers, and the source "
            f"encoder has {dim}. Name another column, or another encoder with --from."
        )
    return place


def number_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the number type of a type of float lists; None for other types."""
    storage = _storage(kind)
    lists = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    if not any(is_list(storage) for is_list in lists):
        return None
    return storage.value_type if pa.types.is_floating(storage.value_type) else None


def as_matrix(column: pa.Array, dim: int, file: str, first: int) -> Tensor:
    """Return the vectors (n, dim) of a column, without a copy if possible.

    first  the row of the file at which the column begins, for errors
    Raises BadColumn for null vectors and numbers, and DimensionMismatch.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        raise BadColumn(
            f"{file}: the vector is null in {describe_rows(rows + first)}. "
            "Remove these rows, or give them a vector."
        )
    if not pa.types.is_fixed_size_list(column.type):
        lengths = np.diff(column.offsets.to_numpy())
        wrong = np.flatnonzero(lengths != dim)
        if len(wrong):
            raise DimensionMismatch(
                f"{file}: the vector does not have {dim} numbers in {describe_rows(wrong + first)}."
                f" The first of them has {lengths[wrong[0]]}."
            )
    values = column.flatten()
    if values.null_count:
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        rows = np.unique(nulls // dim) + first
        raise BadColumn(f"{file}: a number of the vector is null in {describe_rows(rows)}.")
    return torch.utils.dlpack.from_dlpack(values).view(len(column), dim)


def translated_type(kind: pa.DataType, dim: int) -> pa.DataType:
    """Return the type of a column of `kind` whose vectors have `dim` numbers now."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.fixed_shape_tensor(kind.value_type, [dim])
    if isinstance(kind, pa.BaseExtensionType):
        raise InvalidRequest(
            f"The vectors have the extension type {kind}. Cast them to a list of floats."
        )
    return pa.list_(kind.value_field, dim) if pa.types.is_fixed_size_list(kind) else kind


def as_column(kind: pa.DataType, vectors: Tensor, file: str, first: int) -> pa.Array:
    """Return float32 vectors (n, d) as a column of a type that `translated_type` returned.

    Raises OutOfRange for numbers that float16 cannot hold.
    """
    storage = _storage(kind)
    numbers = vectors.cpu().numpy()
    wanted = storage.value_type.to_pandas_dtype()
    if numbers.dtype != wanted:
        with np.errstate(over="ignore"):
            numbers = numbers.astype(wanted)
        refuse_overflow(~torch.from_numpy(numbers).isfinite().all(dim=1), field=file)
    flat = pa.Array.from_buffers(
        storage.value_type, numbers.size, [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    )
    count, dim = numbers.shape
    if pa.types.is_fixed_size_list(storage):
        column = pa.FixedSizeListArray.from_arrays(flat, type=storage)
    elif pa.types.is_large_list(storage):
        offsets = pa.array(np.arange(count + 1, dtype=np.int64) * dim)
        column = pa.LargeListArray.from_arrays(offsets, flat, type=storage)
    else:
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * dim)
        column = pa.ListArray.from_arrays(offsets, flat, type=storage)
    return pa.ExtensionArray.from_storage(kind, column) if kind != storage else column


def describe_rows(rows: Sequence[int] | np.ndarray[Any, Any]) -> str:
    """Return the rows as text: their number, and the first of them."""
    shown = ", ".join(str(int(row)) for row in rows[:ROWS_SHOWN])
    if len(rows) == 1:
        return f"row {shown}"
    more = ", ..." if len(rows) > ROWS_SHOWN else ""
    return f"{len(rows)} rows ({shown}{more})"


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _fixed_size(kind: pa.DataType) -> int | None:
    storage = _storage(kind)
    return int(storage.list_size) if pa.types.is_fixed_size_list(storage) else None
