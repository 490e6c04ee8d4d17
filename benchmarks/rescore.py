"""What does rescoring 100 candidates cost over HTTP, compared with an empty request, and with the
same arithmetic in numpy?

    python -m benchmarks.rescore

Writes benchmarks/results/rescore.json.

One running service (`anchorage serve`), 768 -> 768 dimensions, one query, the client on the same
machine with one keep-alive connection and no library between it and the socket. All contestants
take turns in every round of one run. The empty routes are FastAPI POST routes that do nothing,
served by uvicorn with the service's settings: one declares its body and gets `{}`, one reads the
same body as the service and answers {}.

numpy: the same candidates, centred, multiplied by the translator's matrix, scaled, compared with
the query by cosine and sorted, in this process with one thread; JSON here also parses the body.

Throughput: batches of queries in one request, by several connections at once, in candidates a
second, compared with numpy's.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, machine, parser, write
from benchmarks.service import ARROW, JSON, NPY, make_set, register, serve, started
from benchmarks.service import Connection as Plain
from benchmarks.wire.bodies import DIM, NAMES, QUERY, packed
from benchmarks.wire.connection import Connection

ANCHORS = 1_000
CANDIDATES = 100
#: queries of a request, and connections, of the throughput
BATCH, CONNECTIONS = 16, 4

Array = np.ndarray[Any, Any]
Body = tuple[str, bytes, str]

console = Console(width=130)


def main() -> None:
    """Measure latency and throughput, print and write."""
    arguments = parser(__doc__, RESULTS / "rescore.json")
    arguments.add_argument("--requests", type=int, default=1_500, help="of each format")
    arguments.add_argument("--seconds", type=float, default=8, help="of each throughput")
    options = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve() as server,
        started([sys.executable, "-m", "benchmarks.wire.empty"], {}, Path(folder)) as routes,
    ):
        world = World(server.port)
        latency = measure_latency(
            Connection(server.port), Connection(routes.port), world, options.requests
        )
        throughput = measure_throughput(server.port, world, options.seconds)
    console.print(latency_table(latency))
    console.print(throughput_table(throughput))
    write(options.json, {"machine": machine(), "latency": latency, "throughput": throughput})


class World:
    """Two encoders and their anchors in the service, and what is needed to score here."""

    def __init__(self, port: int) -> None:
        self.random = np.random.default_rng(0)
        self.spectrum = np.linspace(1, 0.05, DIM)
        anchors = self.vectors(ANCHORS)
        rotation = np.linalg.qr(self.random.normal(size=(DIM, DIM)))[0].astype(np.float32)
        self.mean, self.matrix = anchors.mean(axis=0), rotation
        self.target_mean = self.mean @ rotation
        connection = Plain(port)  # now: the server closes a connection without a request
        register(connection, {"old": DIM, "new": DIM})
        make_set(connection, "items", {"old": anchors, "new": anchors @ rotation})

    def vectors(self, count: int) -> Array:
        """Vectors (count, DIM) with a decaying spectrum."""
        drawn = self.random.normal(size=(count, DIM)) * self.spectrum + 0.1
        return drawn.astype(np.float32)

    def score_here(self, query: Array, stored: Array) -> Array:
        """The order of the candidates: translate, cosine, sort."""
        moved = (stored - self.mean) @ self.matrix
        moved *= (10.0 / np.linalg.norm(moved, axis=1))[:, None]
        moved += self.target_mean
        scores = moved @ query / (np.linalg.norm(moved, axis=1) * np.linalg.norm(query))
        return np.argsort(-scores, kind="stable")


def bodies(queries: Array, stored: Array) -> dict[str, Body]:
    """The request in every format: path, body and media type."""
    ids = list(range(stored.shape[1]))
    as_lists = [{"ids": ids, "vectors": block} for block in stored]
    as_base64 = [{"ids": ids, "vectors": packed(block)} for block in stored]
    plain = orjson.dumps(
        {**NAMES, "queries": queries, "candidates": as_lists},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    compact = orjson.dumps({**NAMES, "queries": packed(queries), "candidates": as_base64})
    path = f"/rescore?{QUERY}"
    return {
        "npy": (path, npy_body(queries, stored), NPY),
        "npy, float16": (path, npy_body(queries, stored.astype(np.float16)), NPY),
        "npy, bfloat16 product": (f"{path}&precision=bfloat16", npy_body(queries, stored), NPY),
        "Arrow": (path, arrow_body(queries, stored), ARROW),
        "base64": ("/rescore", compact, JSON),
        "JSON": ("/rescore", plain, JSON),
    }


def npy_body(*arrays: Array) -> bytes:
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array)
    return file.getvalue()


def arrow_body(queries: Array, stored: Array) -> bytes:
    """One row for each query: its vector, and its candidates with their ids."""
    count, most, dim = stored.shape
    rows = pa.FixedSizeListArray.from_arrays(pa.array(stored.ravel()), dim)
    columns = {
        "query": pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), dim),
        "ids": pa.FixedSizeListArray.from_arrays(pa.array(np.tile(np.arange(most), count)), most),
        "vectors": pa.FixedSizeListArray.from_arrays(rows, most),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def measure_latency(
    service: Connection, empty: Connection, world: World, requests: int
) -> dict[str, Any]:
    """p50 and p99 of each contestant in milliseconds, and ratios of p50."""
    query, stored = world.vectors(1), world.vectors(CANDIDATES)
    every = bodies(query, stored[None])
    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds * 1e3)

    for turn in range(-50, requests):
        here = {name: service.ask(*body)[0] for name, body in every.items()}
        here["empty route"] = empty.ask("/declared", b"{}", JSON)[0]
        for name, (_, body, media) in every.items():
            reads = "/declared" if name == "JSON" else "/read"
            here[f"empty route, {name}"] = empty.ask(reads, body, media)[0]
        started_at = time.perf_counter()
        world.score_here(query[0], stored)
        here["numpy"] = time.perf_counter() - started_at
        if turn >= 0:
            for name, seconds in here.items():
                note(name, seconds)
    points = {name: np.percentile(values, [50, 99]) for name, values in found.items()}
    return {
        name: {
            "p50_ms": round(float(p50), 4),
            "p99_ms": round(float(p99), 4),
            **(
                {
                    "to_empty_route": ratio(p50, points["empty route"]),
                    "to_empty_route_with_this_body": ratio(p50, points[f"empty route, {name}"]),
                    "to_numpy": ratio(p50, points["numpy"]),
                }
                if name in every
                else {}
            ),
        }
        for name, (p50, p99) in points.items()
    }


def ratio(own: float, other: Array) -> float:
    return round(float(own / other[0]), 3)


def measure_throughput(port: int, world: World, seconds: float) -> dict[str, Any]:
    """Candidates a second of each format, and of numpy here."""
    queries, stored = world.vectors(BATCH), world.vectors(BATCH * CANDIDATES)
    blocks = stored.reshape(BATCH, CANDIDATES, DIM)
    rates = {
        name: _rate(port, body, seconds)
        for name, body in bodies(queries, blocks).items()
        if name != "npy, float16"
    }
    ends, done = time.perf_counter() + seconds, 0
    begun = time.perf_counter()
    while time.perf_counter() < ends:
        for query, block in zip(queries, blocks, strict=True):
            world.score_here(query, block)
        done += BATCH * CANDIDATES
    rates["numpy"] = done / (time.perf_counter() - begun)
    return {
        name: {
            "candidates_per_s": round(rate),
            "share_of_numpy": round(rate / rates["numpy"], 3),
        }
        for name, rate in rates.items()
    }


def _rate(port: int, body: Body, seconds: float) -> float:
    """Candidates a second by CONNECTIONS clients at once."""
    counts = [0] * CONNECTIONS
    begun = time.perf_counter()

    def ask(place: int) -> None:
        connection = Connection(port)
        while time.perf_counter() < begun + seconds:
            connection.ask(*body)
            counts[place] += BATCH * CANDIDATES

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def latency_table(found: dict[str, Any]) -> Table:
    title = f"One query, {CANDIDATES} candidates, {DIM} -> {DIM}: milliseconds of the round trip"
    table = Table(title=title, title_justify="left")
    for column in ("", "p50", "p99", "x empty", "x empty with this body", "x numpy"):
        table.add_column(column, justify="left" if not column else "right")
    for name, each in found.items():
        names = ("to_empty_route", "to_empty_route_with_this_body", "to_numpy")
        ratios = [f"{each[key]:.2f}" if key in each else "" for key in names]
        table.add_row(name, f"{each['p50_ms']:.3f}", f"{each['p99_ms']:.3f}", *ratios)
    table.caption = "target: p50 at most 3 times the empty route"
    return table


def throughput_table(found: dict[str, Any]) -> Table:
    title = f"{CONNECTIONS} connections, {BATCH} queries a request, {CANDIDATES} candidates each"
    table = Table(title=title, title_justify="left")
    for column in ("", "candidates/s", "x numpy"):
        table.add_column(column, justify="left" if not column else "right")
    for name, each in found.items():
        rate, share = each["candidates_per_s"], each["share_of_numpy"]
        table.add_row(name, f"{rate:,}", f"{share:.2f}")
    return table


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
