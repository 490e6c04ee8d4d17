"""What does a translation cost over HTTP, compared with its matrix product? And a single vector,
compared with an empty request?

    python -m benchmarks.wire  # about 3 minutes on 2 cores

Writes benchmarks/results/wire.json.

One running service (`anchorage serve`), 768 -> 768 dimensions, the client on the same machine with
one connection and no library between it and the socket. All contestants take turns in every round
of one run, because these machines are noisy; ratios are of medians, and the spread is that of the
middle half.

4,096 vectors, by format, compared with the bare float32 torch product of the same arrays in this
process, with all cores. The round trip goes from the first byte sent to the last received, with
bodies written beforehand and answers of npy and base64 read as arrays. The server's own time
goes from the moment the body has arrived (its Server-Timing header: parse + answer). JSON is
compared with orjson.loads + product + orjson.dumps of the same arrays in this process, without
HTTP; its answer is not read.

One vector as JSON, compared with FastAPI POST routes that do nothing, served by uvicorn with the
same settings: one that reads the same body and answers {}, and one that declares it (`body: dict`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from rich.console import Console

from benchmarks.common import RESULTS, parser, show, write
from benchmarks.service import JSON, make_set, register
from benchmarks.service import Connection as Plain
from benchmarks.wire.bodies import DIM, NAMES, formats
from benchmarks.wire.connection import Connection
from benchmarks.wire.report import COUNT, bulk_results, bulk_table, one_results, one_table
from scripts.servers import serve, started

ANCHORS = 1_000

console = Console(width=130)


def main() -> None:
    """Measure one vector and many, print and write."""
    arguments = parser(__doc__, RESULTS / "wire.json")
    arguments.add_argument(
        "--rounds", type=int, default=45, help="of 4,096 vectors in every format"
    )
    arguments.add_argument("--requests", type=int, default=6_000, help="of one vector")
    options = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        # 4,096 vectors as JSON are larger than the default limit of such a body.
        serve(max_json=2**26) as server,
        started([sys.executable, "-m", "benchmarks.wire.empty"], {}, Path(folder)) as routes,
    ):
        vectors, matrix = set_up(Plain(server.port))
        service, empty = Connection(server.port), Connection(routes.port)
        one = one_results(measure_one(service, empty, vectors, options.requests))
        bulk = bulk_results(measure_bulk(service, vectors, matrix, options.rounds))
    tables = {"formats": bulk_table(bulk), "one": one_table(one)}
    show(console, tables)
    write(options.json, tables, {"bulk": bulk, "one": one})


def set_up(connection: Plain) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
    """Create two encoders and their anchors in the service.

    Returns vectors (COUNT, DIM) to translate, and a matrix of the translator's shape.
    """
    generator = np.random.default_rng(0)
    spectrum = np.linspace(1, 0.05, DIM)
    anchors = (generator.normal(size=(ANCHORS, DIM)) * spectrum + 0.1).astype(np.float32)
    rotation = np.linalg.qr(generator.normal(size=(DIM, DIM)))[0].astype(np.float32)
    register(connection, {"old": DIM, "new": DIM})
    make_set(connection, "items", {"old": anchors, "new": anchors @ rotation})
    vectors = (generator.normal(size=(COUNT, DIM)) * spectrum + 0.1).astype(np.float32)
    return vectors, torch.from_numpy(rotation)


def measure_bulk(
    connection: Connection, vectors: np.ndarray[Any, Any], matrix: torch.Tensor, rounds: int
) -> dict[str, list[Any]]:
    """Milliseconds of every round: of the products in this process, and of each format's round trip
    and server time.
    """
    source, product_of = torch.from_numpy(vectors), torch.empty(COUNT, DIM)
    bodies = formats(vectors)
    text = bodies["JSON"][1]
    found: dict[str, list[Any]] = defaultdict(list)

    def product() -> None:
        torch.mm(source, matrix, out=product_of)

    def json_here() -> None:
        orjson.loads(text)
        product()
        orjson.dumps(product_of.numpy(), option=orjson.OPT_SERIALIZE_NUMPY)

    for turn in range(-2, rounds):
        here = {"product": _milliseconds(product)}
        for name, (path, body, media, read) in bodies.items():
            if name == "JSON" and turn % 3:
                continue
            started = time.perf_counter()
            _, headers, answer = connection.ask(path, body, media)
            if read is not None:
                assert read(answer).shape == (COUNT, DIM)
            here[name] = (time.perf_counter() - started) * 1e3
            here[f"{name}, server"] = _server_time(headers)
            if name == "JSON":
                here["JSON here"] = _milliseconds(json_here)
        if turn >= 0:
            for name, value in here.items():
                found[name].append(value)
        console.print(f"\r  round {turn + 1} of {rounds}", end="", highlight=False)
    console.print("\r", end="")
    return found


def _milliseconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _server_time(headers: dict[str, str]) -> float:
    parts = dict(part.strip().split(";dur=") for part in headers["server-timing"].split(","))
    return float(parts["parse"]) + float(parts["answer"])


def measure_one(
    service: Connection, empty: Connection, vectors: np.ndarray[Any, Any], requests: int
) -> dict[str, list[float]]:
    body = orjson.dumps({**NAMES, "vectors": vectors[:1]}, option=orjson.OPT_SERIALIZE_NUMPY)
    turns = {
        "one vector, JSON": (service, "/translate"),
        "empty route, body read": (empty, "/read"),
        "empty route, body declared": (empty, "/declared"),
    }
    found: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(-200, requests):
        for name, (connection, path) in turns.items():
            seconds, *_ = connection.ask(path, body, JSON)
            if turn >= 0:
                found[name].append(seconds * 1e3)
    return found


if __name__ == "__main__":
    main()
