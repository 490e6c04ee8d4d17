"""The process that unpacks a client's Parquet file: `python -m app.api.codecs.parquet_child ROWS
BYTES`.

pyarrow ends the process at some damaged files, and a small file can stand for terabytes. Standard
input is the file, standard output the same table as an Arrow IPC stream of at most BYTES bytes. A
refusal is a line of JSON on standard error, with the exit status REFUSED.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa
from pyarrow import ipc, parquet

#: the exit status of a refusal
REFUSED = 3

#: memory of the process next to several times the limit of the table, and its time of the processor
SPARE_BYTES, CPU_S = 2**28, 30

#: rows of a batch: a batch of long repeated texts is written before the next one is unpacked
BATCH_ROWS = 1_024

#: what pyarrow raises for a damaged file
DAMAGED = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    MemoryError,
    RuntimeError,
)


class CountedOutput:
    """Standard output, up to a number of bytes."""

    closed = False

    def __init__(self, to: BinaryIO, most: int) -> None:
        self._to, self._most, self._left = to, most, most

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            refuse(
                "body-too-large",
                f"The Parquet file has more than {self._most} bytes once it is unpacked. Split it.",
                self._most,
            )
        self._to.write(data)
        return size

    def flush(self) -> None:
        self._to.flush()


def refuse(code: str, detail: str, limit: int | None = None) -> NoReturn:
    """End the process with a refusal, at once: open writers would still write."""
    refusal = {"code": code, "detail": detail, "limit": limit}
    sys.stderr.write("\n" + json.dumps(refusal))  # a library may have begun a line
    sys.stderr.flush()
    os._exit(REFUSED)


def limit_memory(most_bytes: int) -> None:
    """Limit the process to its present memory and some times the limit of the table."""
    status = Path("/proc/self/statm")
    if status.exists():  # only Linux has it, and enforces this limit
        present = int(status.read_text().split()[0]) * resource.getpagesize()
        most = present + 6 * most_bytes + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def unpack(data: bytes, most_rows: int, output: CountedOutput) -> None:
    """Write the file's table to `output`."""
    file = parquet.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    rows = file.metadata.num_rows
    if rows > most_rows:
        refuse(
            "too-many-vectors",
            f"The body has more than {most_rows} vectors, the limit. Split it.",
            most_rows,
        )
    schema = pa.schema(
        [each.with_type(plain_type(each.type)) for each in file.schema_arrow],
        metadata=file.schema_arrow.metadata,
    )
    with ipc.new_stream(pa.PythonFile(output, mode="w"), schema) as writer:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            rows -= batch.num_rows
            columns = [
                column if column.type == field.type else column.cast(field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    if rows != 0:
        raise ValueError("its metadata declares another number of rows")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without a dictionary or views."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def main() -> None:
    """Unpack standard input to standard output."""
    most_rows, most_bytes = map(int, sys.argv[1:])
    data = sys.stdin.buffer.read()
    limit_memory(most_bytes)
    try:
        unpack(data, most_rows, CountedOutput(sys.stdout.buffer, most_bytes))
    except DAMAGED as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        refuse("bad-parquet", f"The body is not a Parquet file that can be read: {line}.")


if __name__ == "__main__":
    main()
