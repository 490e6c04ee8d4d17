"""Reads and writes the candidates of /rescore as npy and Arrow.

npy: up to three files in one body, one after the other as numpy.save writes them. Arrow: one row
for each query.
docs/how-to/cascade.md has examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc
from torch import Tensor

from app.api.codecs import arrow, npy
from app.api.codecs.arrow import ArrowRows
from app.api.codecs.arrow_answers import Sink
from app.errors import (
    AnchorageError,
    BadColumn,
    BadDtype,
    BadNpy,
    DimensionMismatch,
    InvalidRequest,
    TooManyVectors,
    blaming,
)

#: the arrays of an npy body in their order, with their dimensions
NPY_FIELDS = {"queries": 2, "vectors": 3, "old_queries": 2}

#: columns of an Arrow body, and the columns that its answer has
QUERY, VECTORS, OLD_QUERY, IDS = "query", "vectors", "old_query", "ids"
SCORES = "scores"

#: queries and bytes of an npy body that is read without a thread
LIGHT_QUERIES, LIGHT_BYTES = 64, 2**20


@dataclass(frozen=True)
class CandidateBlocks:
    """The candidates of each query.

    vectors  for each query (m, d); (0, 0) for a query without candidates
    ids      for each query m ids; None: the positions 0 to m - 1
    columns  the ids of each Arrow batch, flattened
    """

    vectors: Sequence[Tensor]
    ids: Sequence[Sequence[int | str]] | None = None
    columns: Sequence[pa.Array | None] = ()

    @cached_property
    def id_lists(self) -> Sequence[Sequence[int | str]] | None:
        """The ids of each query's candidates; None: their positions."""
        lists = [column.to_pylist() for column in self.columns if column is not None]
        if self.ids is not None or not lists:
            return self.ids
        rest = chain.from_iterable(lists)
        return [list(islice(rest, len(each))) for each in self.vectors]


def is_light(data: bytes | memoryview) -> bool:
    """Returns whether an npy body is read in little time. Raises as `npy.read_header`."""
    return len(data) <= LIGHT_BYTES and npy.read_header(data, "queries").shape[0] <= LIGHT_QUERIES


def read_npy(data: bytes | memoryview, most_rows: int) -> dict[str, Any]:
    """Returns the fields of an npy body.

    Raises BadNpy, BadDtype, BadShape, EmptyVectors, TooManyVectors.
    """
    fields: dict[str, Any] = npy.read_several(data, NPY_FIELDS)
    if "vectors" not in fields:
        raise BadNpy(
            "The body holds one npy file. Append the file of the candidates' vectors, an array of "
            "queries x candidates x numbers.",
            field="candidates",
        )
    vectors = fields.pop("vectors")
    count = vectors.shape[0] * vectors.shape[1]
    if count > most_rows:  # `unbind` makes a tensor of 700 bytes for each query
        raise TooManyVectors(
            f"The request has {count} candidates; at most {most_rows} are allowed. Send fewer "
            "queries, or fewer candidates of each.",
            field="candidates",
            limit=most_rows,
        )
    fields["candidates"] = CandidateBlocks(vectors.unbind())
    return fields


def read_arrow(
    data: bytes | memoryview, column: str | None, most_rows: int
) -> tuple[dict[str, Any], ArrowRows]:
    """Returns the fields of an Arrow body, and its rows.

    Raises InvalidRequest for a `column`, and as `arrow.read`.
    """
    if column is not None:
        raise InvalidRequest(
            "/rescore reads the columns `query`, `vectors`, `ids` and `old_query`. Remove "
            "`column`.",
            field="column",
        )
    rows = arrow.read(data, QUERY, most_rows)
    place = _place(rows.schema, VECTORS)
    ids_place, old_place = _place(rows.schema, IDS), _place(rows.schema, OLD_QUERY)
    if place is None:
        raise BadColumn(f"The stream has no column named {VECTORS!r}. Add it.", field="vectors")
    blocks: list[Tensor] = []
    columns: list[pa.Array | None] = []
    old: list[Tensor] = []
    for batch in rows.batches:
        counts, inner = _lists(batch.column(place), VECTORS, len(blocks))
        batch_blocks = _blocks(inner, counts, len(blocks))
        columns.append(
            None if ids_place is None else _ids(batch.column(ids_place), counts, len(blocks))
        )
        if old_place is not None:
            with blaming("old_queries", always=True):
                arrow.vector_column(rows.schema, OLD_QUERY)
                old.append(arrow.matrix(batch, old_place, first=len(blocks)))
        blocks += batch_blocks
    fields: dict[str, Any] = {
        "queries": rows.vectors,
        "candidates": CandidateBlocks(blocks, None, columns),
    }
    if old:
        if len({part.shape[1] for part in old}) > 1:
            raise DimensionMismatch(
                "The record batches hold old queries of different lengths.", field="old_queries"
            )
        fields["old_queries"] = torch.cat(old)
    return fields, rows


def write_npy(places: Sequence[Tensor], scores: Sequence[Tensor]) -> list[bytes]:
    """Returns two files: positions (q, m) in int64, and scores (q, m) in float32."""
    parts: list[bytes] = []
    for rows, dtype in ((places, "int64"), (scores, "float32")):
        array = torch.stack(list(rows)).numpy().astype(np.dtype(dtype).newbyteorder("<"))
        parts += [npy.header(len(array), array.shape[1], dtype), array.tobytes()]
    return parts


def write_arrow(
    rows: ArrowRows,
    blocks: CandidateBlocks,
    places: Sequence[Tensor],
    scores: Sequence[Tensor],
    about: Mapping[str, str],
) -> list[memoryview]:
    """Returns a stream with the client's other columns, and the lists `ids` and `scores`."""
    inputs = {QUERY, VECTORS, OLD_QUERY, IDS}
    others = [place for place, name in enumerate(rows.schema.names) if name not in inputs]
    if SCORES in rows.schema.names:
        raise BadColumn(
            f"The answer adds a column named {SCORES!r}. Rename your column of that name.",
            field="vectors",
        )
    kind = next((each.type for each in blocks.columns if each is not None), pa.int64())
    fields = [rows.schema.field(place) for place in others]
    fields += [pa.field(IDS, pa.list_(kind)), pa.field(SCORES, pa.list_(pa.float32()))]
    metadata = dict(rows.schema.metadata or {})
    metadata |= {f"anchorage.{name}".encode(): text.encode() for name, text in about.items()}
    sink, schema = Sink(), pa.schema(fields, metadata=metadata)
    with ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        for batch, start, ids in _batches(rows, blocks):
            stop = start + batch.num_rows
            counts = [len(block) for block in blocks.vectors[start:stop]]
            results = _answer_columns(ids, counts, places[start:stop], scores[start:stop])
            columns = [*(batch.column(place) for place in others), *results]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.parts


def _batches(
    rows: ArrowRows, blocks: CandidateBlocks
) -> Iterator[tuple[pa.RecordBatch, int, pa.Array | None]]:
    start = 0
    for batch, ids in zip(rows.batches, blocks.columns, strict=True):
        yield batch, start, ids
        start += batch.num_rows


def _answer_columns(
    ids: pa.Array | None, counts: Sequence[int], places: Sequence[Tensor], scores: Sequence[Tensor]
) -> list[pa.Array]:
    """Returns the columns of ids and scores of one batch."""
    offsets = np.zeros(len(places) + 1, np.int32)
    np.cumsum([len(each) for each in places], out=offsets[1:])
    flat_scores = torch.cat([each.float() for each in scores]).numpy()
    if ids is None:
        result_ids = pa.array(torch.cat(list(places)).numpy())
    else:
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        flat = [place.numpy() + start for place, start in zip(places, starts, strict=True)]
        result_ids = ids.take(pa.array(np.concatenate(flat).astype(np.int64)))
    return [
        pa.ListArray.from_arrays(pa.array(offsets), each)
        for each in (result_ids, pa.array(flat_scores))
    ]


def _place(schema: pa.Schema, name: str) -> int | None:
    """Returns the position of a column; None without one. Raises BadColumn for several."""
    places = schema.get_all_field_indices(name)
    if len(places) > 1:
        raise BadColumn(f"The stream has {len(places)} columns named {name!r}.", field=name)
    return int(places[0]) if places else None


def _lists(column: pa.Array, name: str, first: int) -> tuple[list[int], pa.Array]:
    """Returns the lengths of a column's lists, and their items one after the other.

    first  the number of the batch's first query, for errors
    Raises BadDtype, and BadColumn for null lists.
    """
    kind = column.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise BadDtype(
            f"The column {name!r} holds {str(kind)[:100]}. Send a list for each query.", field=name
        )
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first
        raise BadColumn(
            f"The column {name!r} is null in {column.null_count} rows. Send an empty list.",
            field=name,
            rows=rows.tolist(),
        )
    counts = (
        [kind.list_size] * len(column) if fixed else np.diff(column.offsets.to_numpy()).tolist()
    )
    return counts, column.flatten()


def _blocks(inner: pa.Array, counts: Sequence[int], first: int) -> list[Tensor]:
    """Returns the vectors of each query of a batch. Raises BadDtype and as `arrow.matrix`."""
    batch = pa.record_batch([inner], names=[VECTORS])
    with blaming("vectors", always=True):
        try:
            arrow.vector_column(batch.schema, VECTORS)
        except AnchorageError:
            raise BadDtype(
                f"The column {VECTORS!r} holds lists of {str(inner.type)[:100]}. Send for each "
                "query a list of lists of float16, float32 or float64.",
            ) from None
    if len(inner) == 0:
        return [torch.empty(0, 0)] * len(counts)
    try:
        whole = arrow.matrix(batch, 0)
    except AnchorageError as error:
        ends = np.cumsum(counts)
        if error.rows:
            query = int(np.searchsorted(ends, error.rows[0], side="right"))
            begin = int(ends[query]) - counts[query]
            error.field = f"candidates.{first + query}.vectors"
            error.rows = [row - begin for row in error.rows if row < ends[query]]
            error.row_count = len(error.rows)
        raise
    return list(torch.split(whole, list(counts)))


def _ids(column: pa.Array, counts: Sequence[int], first: int) -> pa.Array:
    """Returns the ids of a batch. Raises BadDtype, and BadColumn for other lengths or nulls."""
    lengths, ids = _lists(column, IDS, first)
    kind = ids.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise BadDtype(
            f"The column {IDS!r} holds lists of {str(kind)[:100]}. Send lists of whole numbers or "
            "strings.",
            field=IDS,
        )
    if ids.null_count:
        raise BadColumn(f"Some of {IDS!r} are null. Replace them.", field=IDS)
    wrong = [
        place for place, pair in enumerate(zip(lengths, counts, strict=True)) if pair[0] != pair[1]
    ]
    if wrong:
        place = wrong[0]
        raise BadColumn(
            f"Query {first + place} has {lengths[place]} ids and {counts[place]} vectors. Send one "
            "id for each vector.",
            field=IDS,
            rows=[first + each for each in wrong],
        )
    return ids
