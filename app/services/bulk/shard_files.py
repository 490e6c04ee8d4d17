"""Reads the batches of a shard, and writes their translations to a file of the same form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from types import TracebackType
from typing import Any

import pyarrow as pa
import torch
from pyarrow import parquet

from app.errors import AnchorageError, BadColumn, InvalidRequest, StorageUnavailable
from app.services.bulk.places import Place
from app.services.bulk.row_translator import BulkRows, RowTranslator
from app.services.bulk.shards import FLAGGED_KEY, MADE_FROM_KEY, BulkShard, first_line
from app.services.bulk.vector_columns import (
    as_column,
    as_matrix,
    describe_rows,
    find_column,
    translated_type,
)
from app.services.serving.confidence import ARROW_COLUMNS
from app.storage.tables import new_id

#: the column of flags that `--confidence` adds, as in Arrow answers
FLAG_COLUMN = "anchorage_flag"
FLAG_AT_MEAN = "equals-anchor-mean"
FLAG_OUTSIDE = "outside-anchors"
FLAG_STRANGE = "out-of-distribution"

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
    if translator.confidence is not None:
        added = {name: pa.float32() for name in ARROW_COLUMNS.values()}
        added[FLAG_COLUMN] = pa.string()
        taken = sorted(set(added) & set(before.names))
        if taken:
            raise BadColumn(f"{path} has a column {taken[0]!r}, which --confidence adds. Rename it")
        fields += [pa.field(name, kind) for name, kind in added.items()]
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
    """Return the output's rows of a batch, and the number of flagged rows.

    Raises the vector errors, whose texts name the file and the rows.
    """
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
    if made.judged is not None:
        columns += _confidence_columns(made)
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


def _confidence_columns(made: BulkRows) -> list[pa.Array]:
    """The columns of confidence, in the order of ARROW_COLUMNS, and the flags."""
    assert made.judged is not None
    count = len(made.vectors)
    none = torch.zeros(count, dtype=torch.bool)
    at_mean, outside = made.flags or (none, none)
    lost = at_mean | outside
    columns = []
    for name in ARROW_COLUMNS:
        absent = at_mean if name == "p_value" else lost
        numbers = torch.where(absent, torch.nan, getattr(made.judged, name)).float().numpy()
        columns.append(pa.array(numbers, pa.float32(), from_pandas=True))
    texts: list[str | None] = [None] * count
    for flag, rows in (
        (FLAG_STRANGE, made.judged.strange & ~at_mean),
        (FLAG_OUTSIDE, outside),
        (FLAG_AT_MEAN, at_mean),
    ):
        for row in rows.nonzero().flatten().tolist():
            texts[row] = flag
    return [*columns, pa.array(texts, pa.string())]


def _unwritable(place: Place, error: BaseException) -> StorageUnavailable:
    return StorageUnavailable(
        f"{place.path} cannot be written: {first_line(error)}. Free space or choose another folder,"
        " then run the same command again: complete shards are kept."
    )
