"""Reads and writes Parquet files: tables with a column of vectors.

Another process unpacks a client's file to an Arrow stream, which is then read as any other. So a
damaged file, or one that stands for terabytes, ends that process and not the service.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa
from pyarrow import parquet

from app.api.codecs import arrow
from app.api.codecs.arrow import ArrowRows
from app.api.codecs.arrow_answers import answer_batch, answer_schema
from app.api.codecs.parquet_child import REFUSED
from app.errors import AnchorageError, BadParquet, BodyTooLarge, Overloaded, TooManyVectors
from app.services.work_slots import WorkSlots

log = logging.getLogger("anchorage.parquet")

#: the first and last bytes of a file
PARQUET_MAGIC = b"PAR1"

#: processes at once, requests that wait for one, and how long they wait
UNPACKINGS, UNPACKINGS_WAITING, UNPACKING_WAIT_S = 2, 6, 30.0

#: time limit of a process, with its start
UNPACKING_S = 60.0

#: bytes of a table that are reserved and read at once
CHUNK_BYTES = 2**20

_slots = WorkSlots("Parquet files", UNPACKINGS, UNPACKINGS_WAITING)


def read(
    data: bytes | memoryview,
    column: str | None,
    most_rows: int,
    most_bytes: int,
    reserve: Callable[[int], None],
) -> ArrowRows:
    """Returns the rows of a file and their vectors. Raises as `unpack` and `arrow.read`."""
    return arrow.read(unpack(data, most_rows, most_bytes, reserve), column, most_rows)


def unpack(
    data: bytes | memoryview, most_rows: int, most_bytes: int, reserve: Callable[[int], None]
) -> memoryview:
    """Returns the table of a file as an Arrow stream.

    most_bytes  most bytes of the stream
    reserve     reserves the memory of the stream

    Raises BadParquet, BodyTooLarge, TooManyVectors, Overloaded, and what `reserve` raises.
    """
    if len(data) < 12 or {bytes(data[:4]), bytes(data[-4:])} != {PARQUET_MAGIC}:
        raise BadParquet(
            "The body is not a Parquet file, or it is encrypted. Write it with "
            "pyarrow.parquet.write_table.",
            field="vectors",
        )
    with _slots.take(UNPACKING_WAIT_S):
        code, stream, errors = _run(data, most_rows, most_bytes, reserve)
    if code == 0:
        return memoryview(stream)
    if code != REFUSED:
        log.warning("the process that unpacks Parquet ended with status %s", code)
        raise _damaged()
    raise read_refusal(errors)


def read_refusal(errors: bytes) -> AnchorageError:
    """Returns the error of a refusal: the last line, after the warnings of libraries."""
    try:
        refusal = json.loads(errors.splitlines()[-1])
        kinds = {each.code: each for each in (BodyTooLarge, TooManyVectors)}
        return kinds.get(refusal["code"], BadParquet)(
            refusal["detail"], field="vectors", limit=refusal["limit"]
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return _damaged()


def _damaged() -> BadParquet:
    return BadParquet(
        "The body is a damaged Parquet file, or it takes too much memory or time to unpack. "
        "Write it again, with smaller row groups.",
        field="vectors",
    )


def write(
    rows: ArrowRows | None, columns: Mapping[str, pa.Array], about: Mapping[str, str]
) -> list[memoryview]:
    """Returns a file with the client's columns and the answer's (n rows)."""
    place = 0 if rows is None else rows.place
    kinds = {name: each.type for name, each in columns.items()}
    schema = answer_schema(None if rows is None else rows.schema, place, kinds, about)
    own, batches, start = list(columns.values()), [], 0
    for batch in [None] if rows is None else rows.batches:
        count = len(own[0]) if batch is None else batch.num_rows
        batches.append(
            answer_batch(schema, batch, place, [each.slice(start, count) for each in own])
        )
        start += count
    sink = pa.BufferOutputStream()
    # A dictionary of floats takes time and saves nothing.
    others = [each.name for number, each in enumerate(schema) if number != place]
    parquet.write_table(
        pa.Table.from_batches(batches, schema), sink, use_dictionary=others, write_statistics=others
    )
    return [memoryview(sink.getvalue())]


def _run(
    data: bytes | memoryview, most_rows: int, most_bytes: int, reserve: Callable[[int], None]
) -> tuple[int, bytearray, bytes]:
    """Run the process; return its exit status, and its standard output and error.

    Raises Overloaded, and what `reserve` raises, which ends the process.
    """
    # The process only gets the paths of libraries, so that it knows no secret of the service.
    environment = {
        name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    environment |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    command = [sys.executable, "-P", "-m", "app.api.codecs.parquet_child"]
    try:
        process = subprocess.Popen(  # noqa: S603  # a fixed module and numbers
            [*command, str(most_rows), str(most_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        log.warning("the process that unpacks Parquet did not start: %s", error)
        raise Overloaded(
            "The server cannot start a process for Parquet. Try again in 5 s.", retry_after_s=5
        ) from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stream, timer = bytearray(), threading.Timer(UNPACKING_S, process.kill)
    timer.start()
    with process:
        try:
            with suppress(BrokenPipeError):  # the process has ended: its status says why
                process.stdin.write(data)
                process.stdin.close()
            while chunk := process.stdout.read(CHUNK_BYTES):
                reserve(len(chunk))
                stream += chunk
            errors = process.stderr.read()
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
            timer.cancel()
    return process.returncode, stream, errors
