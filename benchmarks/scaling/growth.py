"""Cost by the number of vectors, of anchors and of dimensions."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPResponse

import numpy as np
import pyarrow as pa
import torch

from app.maths.translators.translator import apply
from benchmarks.scaling.data import Matrix, embeddings
from benchmarks.scaling.figures import Grid, Rounds, Row, Section, Target, ratios, take_turns
from benchmarks.scaling.fitting import fit
from benchmarks.service import (
    ARROW,
    NPY,
    Connection,
    Server,
    make_set,
    npy,
    read_npy,
    register,
    serve,
    stream,
)

DIM, ANCHORS, BLOCK = 384, 1_000, 4_096
WHOLE = (1, 10, 100, 1_000, 4_096, 16_384)
STREAMED, STREAMED_ARROW = (65_536, 262_144, 1_000_000), (262_144,)
ANCHOR_COUNTS = (100, 300, 1_000, 3_000, 8_000)
DIMS = (128, 256, 512, 1_024, 2_048, 4_096)
METHODS = ("graded", "irp", "procrustes")

#: MiB that a stream may hold beyond a smaller one before its memory counts as growing
FLAT_MIB = 32.0
STEEPEST = 1.1

#: bodies of 4,096 vectors of 4,096 dimensions are 64 MiB and a header
LARGER_BODIES = 128 * 2**20

NOTE_N = (
    f"{DIM} -> {DIM}, {ANCHORS:,} anchors, graded. Up to 16,384 vectors: one npy request, whose "
    f"answer is read whole. Beyond: sent and read at once (stream=true), {BLOCK:,} rows repeated; "
    "npy, or Arrow record batches with a column of ids, whose answer is parsed here. The first "
    "and the last rows of answers are compared with those of one request. Memory is the server's: "
    "before the first round, the peak in any of them (VmHWM, after clear_refs), and after."
)
NOTE_K = (
    f"{DIM} -> {DIM}. Fits in this process, from float32 anchors of both encoders, with all of "
    f"torch's threads. {BLOCK:,} vectors as npy over loopback: /translate by graded, and "
    "/relative, whose answers have k numbers a row. first /translate: the one that fits, once."
)
NOTE_D = (
    f"d -> d, {ANCHORS:,} anchors. Fits in this process, from float32 anchors of both encoders, "
    f"with all of torch's threads. {BLOCK:,} vectors as npy over loopback, translated by graded; "
    f"the server runs with ANCHORAGE_MAX_BODY_BYTES={LARGER_BODIES}, as the largest body is the "
    "usual limit of 64 MiB and a header. bare product: torch.mm of the same shape in this "
    "process, with all of torch's threads. first /translate: the one that fits, once."
)


def in_vectors(quick: bool) -> Section:
    """From one vector to a million."""
    source, target = embeddings(ANCHORS + BLOCK, (DIM, DIM))
    vectors = source[ANCHORS:]
    whole = WHOLE[:-1] if quick else WHOLE
    streamed, arrow = ((16_384, 65_536), (16_384,)) if quick else (STREAMED, STREAMED_ARROW)
    rows: dict[int | str, Row] = {}
    memory: dict[int | str, Row] = {}
    with serve() as server:
        connection = Connection(server.port)
        register(connection, {"old": DIM, "new": DIM})
        make_set(connection, "items", {"old": source[:ANCHORS], "new": target[:ANCHORS]})
        path = "/translate?source=old&target=new&anchor_set=items"
        expected = read_npy(connection.ask(path, npy(vectors))).copy()
        for size in whole:
            body = npy(np.resize(vectors, (size, DIM)))
            rounds = (20 if quick else 300) if size < 1_000 else 5 if quick else 15
            rows[size], memory[f"{size:,}, one request"] = _watched(
                server, "one request", size, partial(connection.ask, path, body), rounds
            )
        for size in streamed:
            send = partial(_npy_stream, server.port, f"{path}&stream=true", vectors, size, expected)
            rows[size], memory[f"{size:,}, streamed npy"] = _watched(
                server, "streamed npy", size, send, 2 if quick else 3
            )
        for size in arrow:
            send = partial(
                _arrow_stream, server.port, f"{path}&stream=true", vectors, size, expected
            )
            times, memory[f"{size:,}, streamed Arrow"] = _watched(
                server, "streamed Arrow", size, send, 2 if quick else 3
            )
            rows[size] |= times
    grid = Grid("More vectors", "vectors", rows)
    peaks = [float(memory[f"{size:,}, streamed npy"]["peak"]) for size in streamed]  # type: ignore[arg-type]
    slope = _slope(grid, ("one request, ms", "streamed npy, ms"), above=1_000)
    return Section(
        NOTE_N,
        [grid, Grid("The server's memory, MiB", "vectors", memory)],
        {"time over vectors, from 1,000": slope},
        [
            Target("slope of time over vectors, from 1,000", slope, STEEPEST, -1),
            Target(
                f"MiB that the peak at {streamed[-1]:,} is above that at {streamed[0]:,}",
                peaks[-1] - peaks[0],
                FLAT_MIB,
                -1,
            ),
        ],
    )


def in_anchors(quick: bool) -> Section:
    """From a hundred anchors to 8,000."""
    counts = ANCHOR_COUNTS[:3] if quick else ANCHOR_COUNTS
    source, target = embeddings(counts[-1] + BLOCK, (DIM, DIM))
    body = npy(source[counts[-1] :])
    rows: dict[int | str, Row] = {}
    fits: dict[str, Callable[[], object]] = {}
    asked: dict[str, Callable[[], object]] = {}
    with serve() as server:
        connection = Connection(server.port)
        register(connection, {"old": DIM, "new": DIM})
        for count in counts:
            make_set(connection, f"k{count}", {"old": source[:count], "new": target[:count]})
            path = f"/translate?source=old&target=new&anchor_set=k{count}"
            rows[count] = {"first /translate, ms": _once(partial(connection.ask, path, body))}
            fits |= {
                f"fit {name}, ms|{count}": partial(fit, name, source[:count], target[:count])
                for name in METHODS
            }
            asked[f"/translate, ms|{count}"] = partial(connection.ask, path, body)
            asked[f"/relative, ms|{count}"] = partial(
                connection.ask, f"/relative?encoder=old&anchor_set=k{count}", body
            )
        _fill(rows, _measured(fits, asked, quick))
    grid = Grid(f"More anchors: {BLOCK:,} vectors", "anchors", rows)
    return Section(NOTE_K, [grid], _slopes(grid, "anchors"))


def in_dimensions(quick: bool) -> Section:
    """From 128 dimensions to 4,096."""
    dims = DIMS[:4] if quick else DIMS
    rows: dict[int | str, Row] = {}
    fits: dict[str, Callable[[], object]] = {}
    asked: dict[str, Callable[[], object]] = {}
    with serve(max_body_bytes=LARGER_BODIES) as server:
        connection = Connection(server.port)
        for dim in dims:
            source, target = embeddings(ANCHORS + BLOCK, (dim, dim))
            vectors, anchors = source[ANCHORS:], (source[:ANCHORS], target[:ANCHORS])
            register(connection, {f"old{dim}": dim, f"new{dim}": dim})
            make_set(connection, f"d{dim}", {f"old{dim}": anchors[0], f"new{dim}": anchors[1]})
            ask = partial(
                connection.ask,
                f"/translate?source=old{dim}&target=new{dim}&anchor_set=d{dim}",
                npy(vectors),
            )
            rows[dim] = {"first /translate, ms": _once(ask)}
            _check(read_npy(ask()), vectors, anchors)
            given, matrix, out = (
                torch.from_numpy(vectors),
                torch.randn(dim, dim),
                torch.empty(BLOCK, dim),
            )
            fits |= {f"fit {name}, ms|{dim}": partial(fit, name, *anchors) for name in METHODS}
            asked[f"/translate, ms|{dim}"] = ask
            asked[f"bare product, ms|{dim}"] = partial(torch.mm, given, matrix, out=out)
        _fill(rows, _measured(fits, asked, quick))
    for row in rows.values():
        served, product = row["/translate, ms"], row["bare product, ms"]
        assert isinstance(served, Rounds)
        assert isinstance(product, Rounds)
        row["/translate / product"] = ratios(served, product)
    grid = Grid(f"More dimensions: {BLOCK:,} vectors", "dimensions", rows)
    return Section(NOTE_D, [grid], _slopes(grid, "dimensions"))


def _watched(
    server: Server, name: str, size: int, call: Callable[[], object], rounds: int
) -> tuple[Row, Row]:
    """Times of the call once it is warm, and the server's memory from before the first call on."""
    server.forget_peak()
    before, _ = server.memory()
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e3)
    took: Row = {
        f"{name}, ms": Rounds(times),
        f"{name}, us a vector": float(np.median(times)) / size * 1e3,
    }
    after, peak = server.memory()
    return took, {"before": before, "peak": peak, "after": after}


def _blocks(size: int) -> tuple[int, int]:
    """How many whole blocks come before the last one, and the rows of the last."""
    before = (size - 1) // BLOCK
    return before, size - before * BLOCK


def _npy_stream(port: int, path: str, vectors: Matrix, size: int, expected: Matrix) -> None:
    """Stream rows, repeated up to that size. Returns only the first and last block of
    the answer.
    """
    before, last = _blocks(size)
    file = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (size, DIM)}
    np.lib.format.write_array_header_1_0(file, about)
    head, block = file.getvalue(), vectors.tobytes()

    def parts() -> Iterator[bytes]:
        yield head
        for _ in range(before):
            yield block
        yield block[: last * DIM * 4]

    def read(answer: HTTPResponse) -> None:
        room = np.empty(len(head) + len(block), np.uint8)
        view = memoryview(room.data)
        _read_into(answer, view[: len(head)])
        whole = np.lib.format.read_array_header_1_0(_past_magic(room[: len(head)].tobytes()))
        assert whole[0] == (size, DIM), whole
        for place in range(before + 1):
            rows = BLOCK if place < before else last
            _read_into(answer, view[: rows * DIM * 4])
            if place in (0, before):
                _close(room[: rows * DIM * 4].view(np.float32).reshape(rows, DIM), expected[:rows])
        assert answer.read(1) == b"", "the answer goes on"

    stream(port, path, NPY, parts, len(head) + size * DIM * 4, read)


def _past_magic(header: bytes) -> io.BytesIO:
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    return file


def _read_into(answer: HTTPResponse, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = answer.readinto(view[got:])
        assert count, "the answer ends early"
        got += count


def _arrow_stream(port: int, path: str, vectors: Matrix, size: int, expected: Matrix) -> None:
    """Stream record batches, repeated up to that size, each row with an id. Reads the answer's
    batches one at a time.
    """
    before, last = _blocks(size)
    whole, rest = _batch(vectors), _batch(vectors[:last])
    schema, block, tail = (bytes(part.serialize()) for part in (whole.schema, whole, rest))
    end = b"\xff\xff\xff\xff\0\0\0\0"

    def parts() -> Iterator[bytes]:
        yield schema
        for _ in range(before):
            yield block
        yield tail + end

    def read(answer: HTTPResponse) -> None:
        with pa.ipc.open_stream(pa.PythonFile(answer, mode="r")) as batches:
            count = 0
            for place, batch in enumerate(batches):
                count += batch.num_rows
                if place in (0, before):
                    assert batch["id"].to_pylist() == list(range(batch.num_rows)), "other ids"
                    made = batch["vector"].flatten().to_numpy().reshape(-1, DIM)
                    _close(made, expected[: len(made)])
            assert count == size, f"{count} rows of {size}"

    stream(port, path, ARROW, parts, len(schema) + before * len(block) + len(tail) + len(end), read)


def _batch(vectors: Matrix) -> pa.RecordBatch:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    return pa.record_batch([pa.array(np.arange(len(vectors))), rows], names=["id", "vector"])


def _close(made: Matrix, expected: Matrix) -> None:
    apart = float(np.abs(made - expected).max() / np.abs(expected).max())
    assert apart < 1e-5, f"other vectors: {apart:.1e} apart"


def _check(made: Matrix, vectors: Matrix, anchors: tuple[Matrix, Matrix]) -> None:
    """Check that the server's translations are those of app.maths."""
    few = 64
    _close(
        made[:few], apply(fit("graded", *anchors), torch.from_numpy(vectors[:few])).vectors.numpy()
    )


def _measured(
    fits: dict[str, Callable[[], object]], asked: dict[str, Callable[[], object]], quick: bool
) -> dict[str, Rounds]:
    """Measure fits in fewer rounds, because they take long."""
    next(iter(fits.values()))()
    return take_turns(fits, 2 if quick else 3, warm=0) | take_turns(asked, 3 if quick else 11)


def _once(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _fill(rows: dict[int | str, Row], found: dict[str, Rounds]) -> None:
    """Put measured numbers into the row and column that their names give."""
    for name, times in found.items():
        column, _, size = name.partition("|")
        rows[int(size)][column] = times


def _slopes(grid: Grid, what: str) -> dict[str, float]:
    """Slopes of all measured columns, and of the larger sizes alone, because small ones mostly cost
    what a request costs.
    """
    columns = [
        column
        for column, cell in list(grid.rows.values())[-1].items()
        if isinstance(cell, Rounds) and column.endswith(", ms")
    ]
    sizes = [float(size) for size in grid.rows]
    middle = sizes[len(sizes) // 2]
    found = {}
    for column in columns:
        name = column.removesuffix(", ms")
        found[f"{name} over {what}"] = grid.slope(column)
        found[f"{name} over {what}, from {middle:,.0f}"] = grid.slope(column, above=middle)
    return found


def _slope(grid: Grid, columns: tuple[str, ...], *, above: float) -> float:
    """Slope of several columns as if they were one."""
    merged = {
        size: {"ms": next(row[each] for each in columns if each in row)}
        for size, row in grid.rows.items()
    }
    return Grid("", "", merged).slope("ms", above=above)
