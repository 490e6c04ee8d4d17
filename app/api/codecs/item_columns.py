"""Reads the items of an anchor set from the columns of Arrow and Parquet.

A column of float lists holds the vectors by the encoder of its name. The text columns `input` and
`role` hold the items and their roles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from app.api.codecs import arrow, parquet
from app.errors import BadColumn, RaggedRows, blaming

#: text columns, and the fields of the request that they become
TEXT_FIELDS = {"input": "inputs", "role": "roles"}


def read_arrow_items(
    data: bytes | memoryview, column: str | None, most_rows: int
) -> tuple[dict[str, Any], None]:
    """Returns the fields of an Arrow body. Raises BadColumn, RaggedRows, and as `arrow.read`."""
    reader, batches = arrow.read_batches(data, most_rows, lambda schema: 0)
    assert reader.schema is not None
    return _fields(batches, reader.schema, column), None


def read_parquet_items(
    data: bytes | memoryview,
    column: str | None,
    most_rows: int,
    most_bytes: int,
    reserve: Callable[[int], None],
) -> tuple[dict[str, Any], None]:
    """Returns the fields of a Parquet body. Raises BadColumn, and as `parquet.read`."""
    return read_arrow_items(parquet.unpack(data, most_rows, most_bytes, reserve), column, most_rows)


def _fields(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, column: str | None
) -> dict[str, Any]:
    if column is not None:
        raise BadColumn(
            "`column` does not apply here: each column of vectors has the name of its encoder. "
            "Remove it.",
            field="column",
        )
    fields: dict[str, Any] = {"embeddings": {}}
    for place, name in enumerate(schema.names):
        kind = schema.field(place).type
        if name in fields["embeddings"] or TEXT_FIELDS.get(name) in fields:
            raise BadColumn(f"Two columns are named {name[:100]!r}. Rename one.", field="column")
        if arrow.holds_vectors(kind):
            fields["embeddings"][name] = _vectors(batches, place, name)
        elif name in TEXT_FIELDS and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            fields[TEXT_FIELDS[name]] = _texts(batches, place, name)
        else:
            raise BadColumn(
                f"The column {name[:100]!r} holds {str(kind)[:100]}. Send columns of float lists, "
                "named after their encoders, and the text columns `input` and `role`.",
                field="column",
            )
    if not fields["embeddings"]:
        del fields["embeddings"]
    return fields


def _vectors(batches: Sequence[pa.RecordBatch], place: int, name: str) -> Tensor:
    parts, start = [], 0
    with blaming(f"embeddings.{name[:100]}", always=True):
        for batch in batches:
            parts.append(arrow.matrix(batch, place, first=start))
            start += batch.num_rows
        if len({part.shape[1] for part in parts}) > 1:
            raise RaggedRows("The vectors have different lengths. Send one length.")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _texts(batches: Sequence[pa.RecordBatch], place: int, name: str) -> list[str]:
    """Returns the texts of a column. Raises BadColumn for nulls."""
    texts = [text for batch in batches for text in batch.column(place).to_pylist()]
    missing = [row for row, text in enumerate(texts) if text is None]
    if missing:
        raise BadColumn(
            f"The column {name!r} is null in {len(missing)} rows. Fill them.",
            field=TEXT_FIELDS[name],
            rows=missing,
        )
    return texts
