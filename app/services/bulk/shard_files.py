"""Reads the batches of a shard, and writes their translations to a file of the same form.

The column of vectors becomes a matrix, and the matrix a column of the same type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.utils.dlpack
from pyarrow import parquet
from torch import Tensor

from app.errors import (
    ROWS_SHOWN,
    AnchorageError,
    BadDtype,
    DimensionMismatch,
    InvalidRequest,
    StorageUnavailable,
)
from app.services.bulk.places import Place
from app.services.bulk.row_translator import RowTranslator
from app.services.bulk.shards import FLAGGED_KEY, MADE_FROM_KEY, BulkShard, first_line
from app.services.serving.apply import refuse_overflow
from app.storage.tables import new_id

#: the column of vectors, if several columns hold lists of floats and no name is given
USUAL_COLUMN = "vector"


def find_column(schema: pa.Schema, name: str | None, dim: int, file: str) -> int:
    """Return the position of the column of vectors with `dim` numbers.

    Raises InvalidRequest, BadDtype, and DimensionMismatch for lists of another fixed size.
    """
    places = [place for place, kind in enumerate(schema.types) if number_type(kind) is not None]
    if name is None:
        usual = [place for place in places if schema.names[place] == USUAL_COLUMN]
        if len(places) != 1 and len(usual) != 1:
            shown = ", ".join(f"`{schema.names[place]}`" for place in places[:10])
            what = f"several columns hold lists of floats: {shown}" if places else "no column does"
            raise InvalidRequest(f"{file}: {what}. Name the column of vectors with --column.")
        place = (usual or places)[0]
    else:
        found = schema.get_all_field_indices(name)
        if len(found) != 1:
            shown = ", ".join(f"`{each}`" for each in schema.names[:10])
            raise InvalidRequest(
                f"{file} has {len(found)} columns {name!r}. Its columns are {shown}."
            )
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
            f"encoder has {dim}. Name another column, or another encoder with --source."
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
    Raises InvalidRequest for null vectors and numbers, and DimensionMismatch.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        raise InvalidRequest(
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
        raise InvalidRequest(f"{file}: a number of the vector is null in {describe_rows(rows)}.")
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


#: the temporary name of a shard
PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.partial")

#: the beginning of all keys of metadata that this room writes
METADATA_PREFIX = b"anchorage."

#: pyarrow's names of codecs, where they are not those of a file's metadata in small letters
CODEC_NAMES = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}


@dataclass(frozen=True)
class ShardForm:
    """What the output of a file looks like.

    schema       of the output
    place        position of the vectors among the columns
    compression  codec of each leaf column
    dictionary   leaf columns with a dictionary
    statistics   leaf columns with statistics: all but the vectors
    """

    schema: pa.Schema
    place: int
    compression: Mapping[str, str]
    dictionary: list[str]
    statistics: list[str]


def form_of(
    file: parquet.ParquetFile, path: str, translator: RowTranslator, column: str | None
) -> ShardForm:
    """Return the form of the output of a file. Raises the errors of `find_column`."""
    before = file.schema_arrow
    source_dim, target_dim = translator.dims
    place = find_column(before, column, source_dim, path)
    fields = list(before)
    fields[place] = fields[place].with_type(translated_type(fields[place].type, target_dim))
    about = {"translator": translator.id, **translator.facts}
    metadata = {
        name: value
        for name, value in (before.metadata or {}).items()
        if not name.startswith(METADATA_PREFIX)  # of an earlier translation
    }
    metadata.update({f"anchorage.{name}".encode(): value.encode() for name, value in about.items()})
    schema = pa.schema(fields, metadata=metadata)
    return ShardForm(schema, place, *_leaf_settings(file.metadata, schema, place))


def read_batches(
    file: parquet.ParquetFile, place: Place, shard: BulkShard, batch_rows: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches of a shard, each with the number of its first row in the input.

    Raises InvalidRequest for a file that cannot be read.
    """
    row, groups = shard.first_row, list(range(shard.first, shard.last))
    try:
        for batch in file.iter_batches(batch_rows, row_groups=groups, use_threads=False):
            if batch.num_rows:
                yield batch, row
            row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(
            f"{place.path} cannot be read from row {row} on: {first_line(error)}"
        ) from None


def translate_batch(
    translator: RowTranslator, form: ShardForm, batch: pa.RecordBatch, path: str, row: int
) -> tuple[pa.Table, int]:
    """Return the output's rows of a batch, and the number of flagged rows."""
    vectors = as_matrix(batch.column(form.place), translator.dims[0], path, row)
    kind = form.schema.types[form.place]
    try:
        made = translator.translate(vectors)
        column = as_column(kind, made.vectors, path, row)
    except AnchorageError as error:
        raise type(error)(
            f"{path}, {describe_rows([each + row for each in error.rows])}: {error.detail}"
        ) from None
    columns = batch.columns
    columns[form.place] = column
    flagged = 0 if made.flags is None else int((made.flags[0] | made.flags[1]).sum())
    return pa.Table.from_arrays(columns, schema=form.schema), flagged


class ShardWriter:
    """Writes a shard under a temporary name, which `finish` replaces with its own."""

    def __init__(self, place: Place, form: ShardForm) -> None:
        folder, _, name = place.path.rpartition("/")
        place.system.create_dir(folder, recursive=True)
        self._place = place
        self._partial = f"{folder}/.{name}.{new_id()[:8]}.partial"
        self._stream: Any = place.system.open_output_stream(self._partial)
        self._writer: Any = parquet.ParquetWriter(
            self._stream,
            form.schema,
            compression=dict(form.compression),
            use_dictionary=form.dictionary,
            write_statistics=form.statistics,
        )

    def __enter__(self) -> ShardWriter:
        return self

    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group. Raises StorageUnavailable."""
        try:
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        except (pa.ArrowException, OSError) as error:
            raise _unwritable(self._place, error) from None

    def finish(self, flagged: int, made_from: str) -> None:
        """Close the file and give it its name. Raises StorageUnavailable."""
        about = {FLAGGED_KEY: str(flagged).encode(), MADE_FROM_KEY: made_from.encode()}
        try:
            self._writer.add_key_value_metadata(about)
            self._close()
            self._place.system.move(self._partial, self._place.path)
        except (pa.ArrowException, OSError) as error:
            raise _unwritable(self._place, error) from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete what was not finished."""
        if self._writer is None:
            return
        try:
            self._close()
        finally:
            self._place.system.delete_file(self._partial)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        try:
            writer.close()
        finally:
            self._stream.close()


def _leaf_settings(
    before: parquet.FileMetaData, schema: pa.Schema, place: int
) -> tuple[dict[str, str], list[str], list[str]]:
    """Compression, dictionaries and statistics of the output's leaf columns.

    Vectors are neither compressed nor put into a dictionary, and have no statistics: this is
    fastest, and the best compression would save a sixth. All other columns stay as in the input.
    """
    sink = BytesIO()
    parquet.write_table(schema.empty_table(), sink)
    after = parquet.read_metadata(sink).schema
    paths = [after.column(index).path for index in range(len(after.names))]
    name = schema.names[place]
    vector_path = next(path for path in paths if path == name or path.startswith(f"{name}."))
    compression, dictionary = {}, []
    group = before.row_group(0) if before.num_row_groups else None
    for index, path in enumerate(paths):
        chunk: Any = None
        if group is not None and index < group.num_columns:
            chunk = group.column(index)
        codec = "SNAPPY" if chunk is None else chunk.compression
        compression[path] = "none" if path == vector_path else CODEC_NAMES.get(codec, codec.lower())
        if path != vector_path and (chunk is None or _has_dictionary(chunk)):
            dictionary.append(path)
    return compression, dictionary, [path for path in paths if path != vector_path]


def _has_dictionary(chunk: Any) -> bool:
    return any("DICTIONARY" in encoding for encoding in chunk.encodings)


def _unwritable(place: Place, error: BaseException) -> StorageUnavailable:
    return StorageUnavailable(
        f"{place.path} cannot be written: {first_line(error)}. Free space or choose another folder,"
        " then run the same command again: complete shards are kept."
    )
