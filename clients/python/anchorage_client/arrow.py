"""Tables of Arrow and Parquet, where pyarrow is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = {"Content-Type": "application/vnd.apache.arrow.stream"}


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def vector_column(table: pa.Table, name: str | None) -> str:
    """Return the name of the column of vectors: `name`, or else the only one of float lists.

    Raises ValueError.
    """
    import pyarrow as pa

    found = [
        each.name
        for each in table.schema
        if isinstance(each.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
        and pa.types.is_floating(each.type.value_type)
    ]
    if name is None and len(found) != 1:
        raise ValueError(f"Name the `column` of vectors: {found} hold lists of floats.")
    return found[0] if name is None else name


def with_answer(table: pa.Table, column: str, answer: pa.Table) -> pa.Table:
    """Return a table with the answer's vectors in place of its vectors, and the other columns."""
    place = table.schema.get_field_index(column)
    table = table.set_column(place, column, answer["vector"])
    for name in answer.column_names[1:]:
        table = table.append_column(name, answer[name])
    metadata = {**(table.schema.metadata or {}), **(answer.schema.metadata or {})}
    return table.replace_schema_metadata(metadata)


def from_ipc(data: bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all()
