"""Ids of the rows of a file, and the rows of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.errors import StoreUnsupported
from app.stores.base import StoreId
from app.stores.files.faults import file_faults
from app.stores.files.folder import VectorFolder
from app.stores.files.formats import VectorFile, read_npy_header

#: column of ids, if the location names none and the file has it
DEFAULT_ID_COLUMN = "id"


class RowIds:
    """Ids in the order of rows. Memory: 16 bytes a row for numbers, about 150 for texts."""

    def __init__(self, values: Sequence[Any] | NDArray[Any], count: int) -> None:
        self.count = count
        self._numbers: NDArray[np.int64] | None = None
        self._texts: list[str] = []
        self._sorted: NDArray[np.int64] | None = None
        self._places: dict[str, int] = {}
        if isinstance(values, np.ndarray):
            if not np.array_equal(values, np.arange(count)):
                self._numbers = values
                self._sorted = np.argsort(values, kind="stable")
                ordered = values[self._sorted]
                _refuse_repeats(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        else:
            self._texts = list(values)
            self._places = {text: row for row, text in enumerate(self._texts)}
            if len(self._places) < count:
                places = self._places
                _refuse_repeats([each for row, each in enumerate(values) if places[each] != row])

    def ids(self, rows: Sequence[int] | NDArray[np.int64]) -> list[StoreId]:
        """Return the ids of rows."""
        if self._texts:
            return [self._texts[row] for row in rows]
        if self._numbers is None:
            return [int(row) for row in rows]
        return [int(each) for each in self._numbers[np.asarray(rows, np.int64)]]

    def rows(self, ids: Sequence[StoreId]) -> NDArray[np.int64]:
        """Return the row of each id; -1 where there is none."""
        return np.fromiter((self._row(each) for each in ids), np.int64, len(ids))

    def _row(self, value: StoreId) -> int:
        if self._texts:
            return self._places.get(value, -1) if isinstance(value, str) else -1
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            return -1
        if self._numbers is None or self._sorted is None:
            return int(value) if 0 <= value < self.count else -1
        if not -(2**63) <= value < 2**63:
            return -1
        place = int(np.searchsorted(self._numbers, value, sorter=self._sorted))
        if place < self.count and self._numbers[self._sorted[place]] == value:
            return int(self._sorted[place])
        return -1


def read_ids(
    folder: VectorFolder, file: VectorFile, column: str | None, ids_file: str | None
) -> RowIds:
    """Return the ids of a file's column, of a second npy file, or row numbers."""
    if ids_file is not None:
        return _from_npy(folder, ids_file, file.rows)
    if column is None and DEFAULT_ID_COLUMN in file.payload_columns:
        column = DEFAULT_ID_COLUMN
    if column is None:
        return RowIds(np.arange(file.rows), file.rows)
    if column not in file.payload_columns:
        raise StoreUnsupported(
            f"The file has no column {column!r} of ids. Its columns are "
            f"{', '.join(map(repr, file.payload_columns))}. Name one in `id_field`.",
            field="id_field",
        )
    parts = [batch.column(0) for _, batch in file.batches([column])]
    return _from_column(pa.chunked_array(parts, file.schema.field(column).type), column)


def _from_column(values: pa.ChunkedArray, column: str) -> RowIds:
    if values.null_count:
        raise StoreUnsupported(f"The column {column!r} has rows without an id. Give each row one.")
    kind = values.type
    if pa.types.is_integer(kind):
        return RowIds(values.cast(pa.int64()).to_numpy(), len(values))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return RowIds(values.to_pylist(), len(values))
    if isinstance(kind, pa.UuidType) or kind == pa.binary(16):
        raw = [each if isinstance(each, UUID) else UUID(bytes=each) for each in values.to_pylist()]
        return RowIds([str(each) for each in raw], len(values))
    raise StoreUnsupported(
        f"The column {column!r} has the type {kind}. Ids are integers, texts or UUIDs. Name "
        "another column in `id_field`.",
        field="id_field",
    )


def _from_npy(folder: VectorFolder, name: str, rows: int) -> RowIds:
    with file_faults(name), folder.fs.open(folder.path(name), "rb") as source:
        shape, dtype = read_npy_header(source, name)
        if shape != (rows,) or dtype.kind not in "iuU":
            raise StoreUnsupported(
                f"{name!r} has the shape {shape} and the type {dtype}. The ids of {rows} rows have "
                f"the shape ({rows},) and integers or texts. Save them in that form."
            )
        content = source.read(rows * dtype.itemsize)
    if len(content) != rows * dtype.itemsize:
        raise StoreUnsupported(f"{name!r} is truncated. Write it again.")
    values = np.frombuffer(content, dtype)
    if dtype.kind == "U":
        return RowIds(values.tolist(), rows)
    return RowIds(values.astype(np.int64), rows)


def _refuse_repeats(repeats: Sequence[StoreId]) -> None:
    if repeats:
        raise StoreUnsupported(
            f"The id {repeats[0]!r} stands in several rows. Each row needs its own id. Correct the "
            "file, or name another column in `id_field`.",
            field="id_field",
        )
