"""Parquet, Arrow IPC and npy files as blocks of rows, read one after another in flat memory."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc, parquet

from app.errors import StoreUnsupported
from app.stores.files.columns import find_vector_column
from app.stores.files.faults import file_faults
from app.stores.files.folder import VectorFolder

#: rows that are in memory at once
ROWS_PER_READ = 4096
#: most bytes of a row group after decompression
GROUP_BYTES = 4 * 2**30
#: most times that a file may grow when it is read: above it, it is a decompression bomb
LARGEST_EXPANSION = 100
#: bytes of vectors that any file may have
HARMLESS_BYTES = 64 * 2**20
#: bytes of a buffered read from a Parquet column
READ_BUFFER = 2**20
#: most bytes of an npy header
NPY_HEADER_BYTES = 64 * 1024
#: column of the vectors of an npy file
NPY_COLUMN = "vector"


class VectorFile(ABC):
    """An open file. column: its column of vectors; blocks: row numbers (first, end) of each."""

    schema: pa.Schema
    column: str
    blocks: list[tuple[int, int]]

    @property
    def rows(self) -> int:
        return self.blocks[-1][1] if self.blocks else 0

    @property
    def kind(self) -> pa.DataType:
        """The type of the vector column."""
        return self.schema.field(self.column).type

    @property
    def payload_columns(self) -> list[str]:
        return [name for name in self.schema.names if name != self.column]

    @abstractmethod
    def read_block(self, block: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield a block in batches of at most ROWS_PER_READ rows."""

    def batches(self, columns: Sequence[str], first: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield (row number, batch) from the row `first` to the end."""
        for block, (start, end) in enumerate(self.blocks):
            if end <= first:
                continue
            for batch in self.read_block(block, columns):
                if start + len(batch) > first:
                    skipped = max(0, first - start)
                    yield start + skipped, batch.slice(skipped)
                start += len(batch)

    def near(
        self, rows: Sequence[int] | NDArray[np.int64], columns: Sequence[str]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (row number, batch) of the batches that have some of these ascending rows."""
        wanted = np.asarray(rows, np.int64)
        for block, (start, end) in enumerate(self.blocks):
            low, high = np.searchsorted(wanted, [start, end])
            if low == high:
                continue
            last = wanted[high - 1]
            for batch in self.read_block(block, columns):
                first_wanted = np.searchsorted(wanted, start)
                if first_wanted < high and wanted[first_wanted] < start + len(batch):
                    yield start, batch
                start += len(batch)
                if start > last:
                    break

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class ParquetVectors(VectorFile):
    """A Parquet file; its blocks are row groups."""

    def __init__(self, folder: VectorFolder, name: str, column: str | None) -> None:
        self._source = open_source(folder, name)
        self.file = parquet.ParquetFile(self._source, buffer_size=READ_BUFFER, memory_map=False)
        self.schema = self.file.schema_arrow
        self.column = find_vector_column(self.schema, column)
        self.blocks = []
        first = 0
        metadata = self.file.metadata
        for group in range(metadata.num_row_groups):
            end = first + metadata.row_group(group).num_rows
            self.blocks.append((first, end))
            first = end
        self._refuse_bombs(name, folder.fs.size(folder.path(name)))

    def _refuse_bombs(self, name: str, size: int) -> None:
        """Raise StoreUnsupported for a file that grows too much when it is read."""
        metadata = self.file.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=0)
        leaves = [group.column(each) for group in groups for each in range(group.num_columns)]
        decoded = sum(
            max(leaf.total_uncompressed_size, 4 * leaf.num_values)
            for leaf in leaves
            if leaf.path_in_schema.startswith(f"{self.column}.")
        )
        if largest > GROUP_BYTES or decoded > max(HARMLESS_BYTES, LARGEST_EXPANSION * size):
            raise StoreUnsupported(
                f"{name!r} has {size} bytes, and its vectors grow to {decoded} when they are "
                f"read. At most {LARGEST_EXPANSION} times the size of the file and {GROUP_BYTES} "
                "bytes per row group are allowed. Write it again with smaller row groups and "
                "distinct vectors."
            )

    def read_block(self, block: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.file.iter_batches(
            ROWS_PER_READ, row_groups=[block], columns=list(columns), use_threads=False
        )

    def close(self) -> None:
        self.file.close()
        self._source.close()


class ArrowVectors(VectorFile):
    """An Arrow IPC file (Feather 2); its blocks are record batches."""

    def __init__(self, folder: VectorFolder, name: str, column: str | None) -> None:
        self._source = open_source(folder, name, mapped=True)
        self._reader = ipc.open_file(self._source)
        self.schema = self._reader.schema
        self.column = find_vector_column(self.schema, column)
        self.blocks = []
        first = 0
        for batch in range(self._reader.num_record_batches):
            end = first + self._reader.get_batch(batch).num_rows
            self.blocks.append((first, end))
            first = end

    def read_block(self, block: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        batch = self._reader.get_batch(block)
        batch.validate()
        batch = batch.select(list(columns))
        for first in range(0, len(batch), ROWS_PER_READ):
            yield batch.slice(first, ROWS_PER_READ)

    def close(self) -> None:
        self._source.close()


class NpyVectors(VectorFile):
    """An npy file (n, d) in C order. Nothing is unpickled."""

    def __init__(self, folder: VectorFolder, name: str, column: str | None) -> None:
        if column is not None:
            raise StoreUnsupported(
                f"{name!r} is an npy file, which has no columns. Remove `vector_field`.",
                field="vector_field",
            )
        self._source = folder.fs.open(folder.path(name), "rb")
        shape, self.dtype = read_npy_header(self._source, name)
        self._start = self._source.tell()
        if len(shape) != 2 or self.dtype.kind != "f" or self.dtype.itemsize > 8 or shape[1] < 1:
            raise StoreUnsupported(
                f"{name!r} has the shape {shape} and the type {self.dtype}. A file of vectors has "
                "two dimensions and float16, float32 or float64. Save it in that form."
            )
        needed = self._start + shape[0] * shape[1] * self.dtype.itemsize
        size = folder.fs.size(folder.path(name))
        if size != needed:
            raise StoreUnsupported(
                f"{name!r} has {size} bytes and its header says {needed}: the file is truncated or "
                "damaged. Write it again."
            )
        self._dim = shape[1]
        value = pa.from_numpy_dtype(self.dtype.newbyteorder("="))
        self.schema = pa.schema([(NPY_COLUMN, pa.list_(value, self._dim))])
        self.column = NPY_COLUMN
        self.blocks = [
            (first, min(first + ROWS_PER_READ, shape[0]))
            for first in range(0, shape[0], ROWS_PER_READ)
        ]

    def read_block(self, block: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        first, end = self.blocks[block]
        width = self._dim * self.dtype.itemsize
        self._source.seek(self._start + first * width)
        content = self._source.read((end - first) * width)
        if len(content) != (end - first) * width:
            raise EOFError("the file ends early")
        numbers = np.frombuffer(content, self.dtype).astype(self.dtype.newbyteorder("="))
        array = pa.FixedSizeListArray.from_arrays(pa.array(numbers), self._dim)
        yield pa.record_batch({NPY_COLUMN: array}).select(list(columns))

    def close(self) -> None:
        self._source.close()


def read_npy_header(source: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type of an npy file. Raises StoreUnsupported."""
    version = np.lib.format.read_magic(source)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise StoreUnsupported(f"{name!r} has npy version {version}. Save it as version 1.0.")
    start = source.tell()
    head = io.BytesIO(source.read(NPY_HEADER_BYTES))
    shape, fortran, dtype = readers[version](head)
    source.seek(start + head.tell())
    if fortran and len(shape) > 1:
        raise StoreUnsupported(f"{name!r} is in Fortran order. Save it in C order.")
    if dtype.hasobject:
        raise StoreUnsupported(f"{name!r} holds Python objects, which are not read. Save numbers.")
    return shape, dtype


def open_source(folder: VectorFolder, name: str, *, mapped: bool = False) -> Any:
    """Return an open file for Arrow."""
    path = folder.path(name)
    if folder.local:
        return pa.memory_map(path) if mapped else pa.OSFile(path, "rb")
    return folder.fs.open(path, "rb")


#: the reader of each ending
FORMATS: dict[str, type[Any]] = {
    ".parquet": ParquetVectors,
    ".pq": ParquetVectors,
    ".arrow": ArrowVectors,
    ".feather": ArrowVectors,
    ".ipc": ArrowVectors,
    ".npy": NpyVectors,
}


def format_of(name: str) -> type[Any]:
    """Return the reader of a file by its ending. Raises StoreUnsupported."""
    ending = "." + name.rpartition(".")[2].lower()
    if ending not in FORMATS:
        raise StoreUnsupported(
            f"{name!r} does not end in one of {', '.join(FORMATS)}. Name such a file.",
            field="collection",
        )
    return FORMATS[ending]


def open_vectors(folder: VectorFolder, name: str, column: str | None) -> VectorFile:
    """Open a file. Raises StoreUnsupported and StoreChanged."""
    reader = format_of(name)
    with file_faults(name):
        opened: VectorFile = reader(folder, name, column)
        return opened
