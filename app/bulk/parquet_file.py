"""Translates one Parquet file to another: the vectors change, and all other columns stay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.utils.dlpack
from pyarrow import parquet
from safetensors.torch import load
from torch import Tensor

from app.db.tables import new_id
from app.errors import ROWS_SHOWN, AnchorageError, Conflict, DimensionMismatch, InvalidRequest
from app.maths.geometry.space import refuse_overflow
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import Translator
from app.translate.maps import canonical_json
from app.translate.placed_translator import PlacedTranslator, empty_rows

#: bytes of the larger vectors of one batch, and so of a row group of the output
BATCH_BYTES = 2**24

#: bytes that a reader of a column buffers; without it, pyarrow reads whole column chunks
READ_BUFFER_BYTES = 2**20

#: the column of vectors, if several columns hold lists of floats and no name is given
USUAL_COLUMN = "vector"

#: names of files and folders that readers of Parquet leave out
HIDDEN = re.compile(r"(^|/)[_.]")

#: the members of fsspec's description of a file that change when it is written again
STAMPS = ("size", "mtime", "LastModified", "ETag", "etag", "md5Hash", "content_md5")

#: the key of a file's metadata that says what it was made from
MADE_FROM = b"anchorage.made_from"


@dataclass(frozen=True, eq=False)
class BulkWork:
    """What all files of a run share.

    facts      the translator's id and what made it, as texts for a file's metadata
    column     of the vectors; None: the only one
    """

    translator: PlacedTranslator
    facts: Mapping[str, str]
    column: str | None = None

    @property
    def dims(self) -> tuple[int, int]:
        """The dimensions of the source and of the target."""
        return self.translator.translator.dims

    @property
    def batch_rows(self) -> int:
        return max(1, BATCH_BYTES // (4 * max(self.dims)))

    def to(self, device: str) -> BulkWork:
        """The same work on another device."""
        return replace(self, translator=PlacedTranslator(self.translator.translator, device))

    def made_from(self, source: str) -> bytes:
        """What decides the content of an output."""
        system, path = open_url(source)
        found = system.info(path)
        stamp = [str(found[name]) for name in STAMPS if found.get(name) is not None]
        about = {"translator": self.facts["translator"], "column": self.column, "input": stamp}
        return orjson.dumps(about)


@dataclass(frozen=True)
class BulkFile:
    """An input of so many rows, and its output: paths or fsspec URLs."""

    source: str
    output: str
    rows: int


def read_translator(data: bytes, options: Mapping[str, Any]) -> BulkWork:
    """Return the work with the translator of a file that `translators.read_file` made.

    options  of its method, which its answer names
    """
    size = int.from_bytes(data[:8], "little")
    about = orjson.loads(orjson.loads(data[8 : 8 + size])["__metadata__"]["anchorage"])
    tensors = load(data)
    matrix = tensors["matrix"]
    decoder = Decoder(
        matrix,
        matrix.double().square().sum(dim=1).float(),
        about["scale"],
        tensors["target_mean"],
        about["renormalise"],
        about["kernel"],
    )
    translator = Translator(
        tensors["source_mean"], decoder, about["kept_scale"], tensors.get("landmarks")
    )
    facts = {name: about[name] for name in ("source", "target", "anchor_set", "method")}
    facts = {"translator": about["id"], **facts, "options": canonical_json(options)}
    return BulkWork(PlacedTranslator(translator, "cpu"), facts)


def plan_files(work: BulkWork, source: str, target: str) -> tuple[list[BulkFile], int]:
    """Return the files that are not complete, and the number of complete ones. Writes nothing.

    source  a file or a folder
    target  a folder; or, for one file, a name that ends with .parquet
    Raises InvalidRequest, the errors of `find_column`, and Conflict for an output that was made
    from something else.
    """
    source, target = (
        url.rstrip("/") if "://" in url else str(Path(url).expanduser().absolute())
        for url in (source, target)
    )
    system, path = open_url(source)
    is_file = system.isfile(path)
    names = [each.removeprefix(path).lstrip("/") for each in sorted(system.find(path))]
    names = [name for name in names if name.endswith(".parquet") and not HIDDEN.search(name)]
    if not is_file and not names:
        raise InvalidRequest(f"There is no Parquet file {path}, and none (*.parquet) below it.")
    inside, outside = f"{target}/", f"{source}/"
    if inside.startswith(outside) or outside.startswith(inside):
        raise InvalidRequest(
            f"The output {target} lies among the inputs. Choose a place outside of them."
        )
    if is_file:
        one = target if target.endswith(".parquet") else inside + path.rpartition("/")[2]
        pairs = [(source, one)]
    else:
        pairs = [(outside + name, inside + name) for name in names]
    files = []
    for each, output in pairs:
        with open_parquet(each) as file:
            find_column(file.schema_arrow, work, each)
            files.append(BulkFile(each, output, file.metadata.num_rows))
    waiting = [file for file in files if not _is_done(work, file)]
    return waiting, len(files) - len(waiting)


def _is_done(work: BulkWork, file: BulkFile) -> bool:
    system, path = open_url(file.output)
    if not system.isfile(path):
        return False
    try:
        with open_parquet(file.output) as made:
            found = (made.metadata.metadata or {}).get(MADE_FROM)
    except InvalidRequest:
        found = None
    if found != work.made_from(file.source):
        raise Conflict(
            f"{path} exists, and was made from another input, column or translator. "
            "Delete it, or choose another output."
        )
    return True


def translate_file(work: BulkWork, file: BulkFile) -> int:
    """Write the output of a file, and return the number of flagged rows.

    The output has its name only when it is complete.
    Raises InvalidRequest, the errors of `find_column`, NonFinite and OutOfRange.
    """
    system, path = open_url(file.output)
    folder, _, name = path.rpartition("/")
    partial, flagged = f"{folder}/.{name}.{new_id()[:8]}.partial", 0
    with open_parquet(file.source) as read, _explained(f"{file.source} cannot become {path}"):
        place = find_column(read.schema_arrow, work, file.source)
        schema = _output_schema(work, file.source, read.schema_arrow, place)
        others = [each for number, each in enumerate(schema.names) if number != place]
        system.makedirs(folder, exist_ok=True)
        try:
            with (
                system.open(partial, "wb") as stream,
                # a dictionary of vectors would take twice the time and save nothing
                parquet.ParquetWriter(
                    stream, schema, use_dictionary=others, write_statistics=others
                ) as writer,
            ):
                row = 0
                for batch in read.iter_batches(work.batch_rows):
                    table, count = _translate_batch(work, schema, place, batch, file.source, row)
                    writer.write_table(table, row_group_size=max(1, table.num_rows))
                    row, flagged = row + table.num_rows, flagged + count
            system.mv(partial, path)
        except BaseException:
            if system.exists(partial):
                system.rm_file(partial)
            raise
    return flagged


def open_url(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it. Raises InvalidRequest."""
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidRequest(f"{url.partition('://')[0]}:// cannot be opened: {error}") from None
    return system, str(path)


def open_parquet(url: str) -> parquet.ParquetFile:
    """Open a Parquet file, which closes with its context. Raises InvalidRequest."""
    system, path = open_url(url)
    with _explained(f"{path} cannot be read as Parquet"):
        return parquet.ParquetFile(
            path, filesystem=system, buffer_size=READ_BUFFER_BYTES, pre_buffer=False
        )


def find_column(schema: pa.Schema, work: BulkWork, file: str) -> int:
    """Return the position of the column of vectors.

    Raises InvalidRequest, and DimensionMismatch for lists of another fixed size.
    """
    places = [place for place, kind in enumerate(schema.types) if _holds_vectors(kind)]
    name = work.column or USUAL_COLUMN
    found = [place for place in places if schema.names[place] == name]
    if work.column is None and len(places) == 1:
        found = places
    if len(found) != 1:
        shown = ", ".join(f"`{each.name}` ({each.type})" for each in list(schema)[:10])
        raise InvalidRequest(
            f"{file} has {len(found)} columns {name!r} of lists of floats. Its columns are "
            f"{shown}. Name the column of vectors with --column."
        )
    kind, dim = schema.types[found[0]], work.dims[0]
    if pa.types.is_fixed_size_list(kind) and kind.list_size != dim:
        raise DimensionMismatch(
            f"{file}: the vectors have {kind.list_size} numbers, and the source encoder has {dim}. "
            "Name another column, or another encoder with --source."
        )
    return found[0]


def _holds_vectors(kind: pa.DataType) -> bool:
    lists = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    return any(is_list(kind) for is_list in lists) and pa.types.is_floating(kind.value_type)


def _output_schema(work: BulkWork, source: str, before: pa.Schema, place: int) -> pa.Schema:
    """Return the input's schema with vectors of the target's dimension, and what made them."""
    field = before.field(place)
    if pa.types.is_fixed_size_list(field.type):
        field = field.with_type(pa.list_(field.type.value_field, work.dims[1]))
    metadata = {**(before.metadata or {}), MADE_FROM: work.made_from(source)}
    metadata |= {f"anchorage.{name}".encode(): text.encode() for name, text in work.facts.items()}
    return before.set(place, field).with_metadata(metadata)


def _translate_batch(
    work: BulkWork, schema: pa.Schema, place: int, batch: pa.RecordBatch, path: str, first: int
) -> tuple[pa.Table, int]:
    """Return the output's rows of a batch, and the number of flagged rows.

    first  the row of the file at which the batch begins, for errors
    """
    kind, dim = schema.types[place], work.dims[1]
    made = empty_rows(batch.num_rows, dim, work.translator.device)
    try:
        flags = work.translator.apply_into(_as_matrix(batch.column(place), work.dims[0]), made)
        if pa.types.is_float16(kind.value_type):
            refuse_overflow(made.half().isinf().any(dim=1), field="vectors")
    except AnchorageError as error:
        shown = ", ".join(str(row + first) for row in error.rows[:ROWS_SHOWN])
        where = f"row {shown}" if len(error.rows) == 1 else f"{len(error.rows)} rows ({shown})"
        raise type(error)(f"{path}, {where}: {error.detail}") from None
    columns, numbers = batch.columns, pa.array(made.numpy().ravel())
    columns[place] = pa.FixedSizeListArray.from_arrays(numbers, dim).cast(kind)
    flagged = 0 if flags is None else int((flags[0] | flags[1]).sum())
    return pa.Table.from_arrays(columns, schema=schema), flagged


def _as_matrix(column: pa.Array, dim: int) -> Tensor:
    """Return the vectors (n, dim) of a column, whose null numbers become NaN.

    Raises DimensionMismatch for null vectors and those of another length.
    """
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dim)
    if len(wrong):
        raise DimensionMismatch(
            f"The vector is null or does not have {dim} numbers. Remove these rows, or give them a "
            "vector.",
            rows=wrong.tolist(),
        )
    values = column.flatten()
    if values.null_count:
        return torch.from_numpy(values.to_numpy(zero_copy_only=False)).view(-1, dim)
    return torch.utils.dlpack.from_dlpack(values).view(-1, dim)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raises InvalidRequest, with the first line of a library's message, for a failed file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise InvalidRequest(f"{what}: {line}") from None
