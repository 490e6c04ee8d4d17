"""Tables of Arrow and Parquet, where pyarrow is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = {"Content-Type": "application/vnd.apache.arrow.stream"}
PARQUET_HEADERS = {"Content-Type": "application/vnd.apache.parquet"}


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(data: bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all()
