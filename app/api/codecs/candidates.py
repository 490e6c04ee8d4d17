"""Reads and writes the candidates of /rescore as npy and Arrow.

npy: up to three files in one body, one after the other as numpy.save writes them. Arrow: one row
for each query.
docs/how-to/rerank.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from app.api.codecs import arrow, npy
from app.errors import (
    AnchorageError,
    BadColumn,
    BadDtype,
    BadNpy,
    DimensionMismatch,
    TooManyVectors,
    blaming,
)

#: the arrays of an npy body in their order, with their dimensions
NPY_FIELDS = {"queries": 2, "vectors": 3, "old_queries": 2}

#: columns of an Arrow body and of its answer
QUERY, VECTORS, OLD_QUERY, IDS, SCORES = "query", "vectors", "old_query", "ids", "scores"

#: the columns of a body, each with the types that it may have
COLUMNS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    QUERY: (arrow.holds_vectors, "lists of float16, float32 or float64"),
    VECTORS: (
        lambda kind: arrow.is_list(kind) and arrow.holds_vectors(kind.value_type),
        "for each query a list of lists of float16, float32 or float64",
    ),
    OLD_QUERY: (arrow.holds_vectors, "lists of float16, float32 or float64"),
    IDS: (
        lambda kind: arrow.is_list(kind) and arrow.is_id(kind.value_type),
        "for each query a list of whole numbers or of strings",
    ),
}

#: queries and bytes of an npy body that is read without a thread
LIGHT_QUERIES, LIGHT_BYTES = 64, 2**20


@dataclass(frozen=True)
class CandidateBlocks:
    """The candidates of each query.

    vectors   for each query (m, d); (0, 0) for a query without candidates
    ids       for each query m ids; None: the positions 0 to m - 1
    id_array  the ids of an Arrow body, one query's after the other's, in place of `ids`
    texts     for each query m texts, None where a candidate has none; None: no text was sent
    """

    vectors: Sequence[Tensor]
    ids: Sequence[Sequence[int | str]] | None = None
    id_array: pa.Array | None = None
    texts: Sequence[Sequence[str | None]] | None = None

    @cached_property
    def id_lists(self) -> Sequence[Sequence[int | str]] | None:
        """The ids of each query's candidates; None: their positions."""
        if self.id_array is None:
            return self.ids
        rest = iter(self.id_array.to_pylist())
        return [list(islice(rest, len(each))) for each in self.vectors]


def is_light(data: bytes | memoryview) -> bool:
    """Returns whether an npy body is read in little time. Raises as `npy.read_header`."""
    return len(data) <= LIGHT_BYTES and npy.read_header(data, "queries").shape[0] <= LIGHT_QUERIES


def read_npy(data: bytes | memoryview, max_rows: int) -> dict[str, Any]:
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
    if count > max_rows:  # `unbind` makes a tensor of 700 bytes for each query
        raise TooManyVectors(
            f"The request has {count} candidates; at most {max_rows} are allowed. Send fewer "
            "queries, or fewer candidates of each.",
            field="candidates",
            limit=max_rows,
        )
    fields["candidates"] = CandidateBlocks(vectors.unbind())
    return fields


def read_arrow(data: bytes | memoryview, max_rows: int) -> dict[str, Any]:
    """Returns the fields of an Arrow body.

    Raises BadColumn, BadDtype, DimensionMismatch, and as `arrow.read_batches`.
    """
    batches = arrow.read_batches(data, max_rows, _check_columns)
    has = set(batches[0].schema.names)
    queries: list[Tensor] = []
    old: list[Tensor] = []
    blocks: list[Tensor] = []
    ids: list[pa.Array] = []
    for batch in batches:
        first, place = len(blocks), batch.schema.get_field_index
        queries.append(arrow.matrix(batch, place(QUERY), data, first))
        if OLD_QUERY in has:
            with blaming("old_queries", always=True):
                old.append(arrow.matrix(batch, place(OLD_QUERY), first=first))
        counts, inner = _lists(batch.column(VECTORS), VECTORS, first)
        if IDS in has:
            ids.append(_ids(batch.column(IDS), counts, first))
        blocks += _blocks(inner, counts, first)
    candidates = CandidateBlocks(blocks, id_array=pa.concat_arrays(ids) if ids else None)
    fields: dict[str, Any] = {"queries": _join(queries, "queries"), "candidates": candidates}
    if old:
        fields["old_queries"] = _join(old, "old_queries")
    return fields


def _check_columns(schema: pa.Schema) -> None:
    """Raises BadColumn for missing, repeated and other columns, and BadDtype for wrong types."""
    names = schema.names
    for name, kind in zip(names, schema.types, strict=True):
        if name not in COLUMNS or names.count(name) > 1:
            raise BadColumn(
                f"The stream has {names.count(name)} columns named {name[:100]!r}. Send one each "
                f"of {', '.join(COLUMNS)}, and no others.",
                field=name[:100],
            )
        fits, what = COLUMNS[name]
        if not fits(kind):
            raise BadDtype(
                f"The column {name!r} holds {str(kind)[:100]}. Send {what}.",
                field="old_queries" if name == OLD_QUERY else name,
            )
    for name in (QUERY, VECTORS):
        if name not in names:
            raise BadColumn(f"The stream has no column named {name!r}. Add it.", field="vectors")


def _join(parts: Sequence[Tensor], field: str) -> Tensor:
    if len({part.shape[1] for part in parts}) > 1:
        raise DimensionMismatch(
            f"The record batches hold `{field}` of different lengths.", field=field
        )
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def write_npy(places: Sequence[Tensor], scores: Sequence[Tensor]) -> list[bytes]:
    """Returns two files: positions (q, m) in int64, and scores (q, m) in float32."""
    parts: list[bytes] = []
    for rows, dtype in ((places, "int64"), (scores, "float32")):
        array = torch.stack(list(rows)).numpy().astype(np.dtype(dtype).newbyteorder("<"))
        parts += [npy.header(len(array), array.shape[1], dtype), array.tobytes()]
    return parts


def write_arrow(
    blocks: CandidateBlocks,
    places: Sequence[Tensor],
    scores: Sequence[Tensor],
    about: Mapping[str, str],
) -> list[memoryview]:
    """Returns a stream with one row for each query: the lists `ids` and `scores`."""
    offsets = np.zeros(len(places) + 1, np.int32)
    np.cumsum([len(each) for each in places], out=offsets[1:])
    if blocks.id_array is None:
        ids = pa.array(torch.cat(list(places)).numpy())
    else:
        starts = np.concatenate([[0], np.cumsum([len(each) for each in blocks.vectors])[:-1]])
        flat = [place.numpy() + start for place, start in zip(places, starts, strict=True)]
        ids = blocks.id_array.take(pa.array(np.concatenate(flat).astype(np.int64)))
    columns = {IDS: ids, SCORES: pa.array(torch.cat([each.float() for each in scores]).numpy())}
    return arrow.write(
        {name: pa.ListArray.from_arrays(pa.array(offsets), each) for name, each in columns.items()},
        about,
    )


def _lists(column: pa.Array, name: str, first: int) -> tuple[list[int], pa.Array]:
    """Returns the lengths of a column's lists, and their items one after the other.

    first  the number of the batch's first query, for errors
    Raises BadColumn for null lists.
    """
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first
        raise BadColumn(
            f"The column {name!r} is null in {column.null_count} rows. Send an empty list.",
            field=name,
            rows=rows.tolist(),
        )
    return arrow.list_lengths(column).tolist(), column.flatten()


def _blocks(inner: pa.Array, counts: Sequence[int], first: int) -> list[Tensor]:
    """Returns the vectors of each query of a batch. Raises as `arrow.matrix`."""
    if len(inner) == 0:
        return [torch.empty(0, 0)] * len(counts)
    try:
        whole = arrow.matrix(pa.record_batch([inner], names=[VECTORS]), 0)
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
    """Returns the ids of a batch. Raises BadColumn for other lengths or nulls."""
    lengths, ids = _lists(column, IDS, first)
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
