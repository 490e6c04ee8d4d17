"""POST /translate with more processes: requests/s and vectors/s, compared with one process.

768 -> 768, 1,000 anchors, graded. All servers run at the same time and take turns in one run; the
clients have the cores that a server's processes leave, and at least one. One vector a request as
JSON, and many as npy; and one client alone with many, which has nothing to share. The bare product
is that of torch on all threads.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.gpu.device import paired
from benchmarks.gpu.report import Table, number
from benchmarks.gpu.run import Run
from benchmarks.gpu.servers import Target, backing, load, serve
from benchmarks.scaling.data import Matrix, embeddings
from benchmarks.service import NPY, Connection, make_set, npy, register

NAME = "processes"
TITLE = "POST /translate with more processes"

DIM, ANCHORS, MANY = 768, 1_000, 4_096
NUMBER_BYTES = 4
COUNTS = (1, 2, 4, 8, 16)
ROUNDS = 3
#: clients that send one vector, and requests of one process
ONE_CLIENTS, ONE_REQUESTS = 64, 2_000
#: clients that send many vectors, and requests of one process; on up to FEW_CORES cores and on more
FEW_CORES = 4
FEW_MANY, MANY_MANY = (4, 24), (16, 160)
NAMES = {"source": "old", "target": "new", "anchor_set": "items"}

Loads = dict[str, tuple[bytes, int, int, int]]


def measure(run: Run) -> dict[str, Any]:
    """Rates by number of processes. Raises Missing without Redis or PostgreSQL."""
    cores = os.cpu_count() or 1
    counts = [count for count in COUNTS if count <= cores]
    source, target = embeddings(ANCHORS + MANY, (DIM, DIM))
    found: dict[int, dict[str, list[dict[str, float]]]] = {count: {} for count in counts}
    with ExitStack() as ending:
        settings = ending.enter_context(backing(run))
        servers = {}
        for count in counts:
            name = f"processes-{count}"
            servers[count] = ending.enter_context(serve(run, name, settings(name), processes=count))
            _set_up(servers[count], source, target)
        loads = _loads(servers[1], source[ANCHORS:], cores)
        for turn in range(-1, ROUNDS):
            for count, server in servers.items():
                for name, measured in _round(server, loads, count, cores).items():
                    if turn >= 0:
                        found[count].setdefault(name, []).append(measured)
    rows = {str(count): _row(found[count], found[1]) for count in counts}
    return {"cores": cores, "rows": rows, "product_vectors_per_s": _product(run, source)}


def tables(report: dict[str, Any]) -> list[Table]:
    """One row for each number of processes."""
    names = list(next(iter(report["rows"].values())))
    columns = ["processes"]
    for name in names:
        columns += [f"{name}: {_unit(name)}", "times one process", "p99 ms"]
        columns += ["MB/s each way"] if _unit(name) == "vectors/s" else []
    rows = []
    for count, row in report["rows"].items():
        cells = [count]
        for name in names:
            one = row[name]
            cells += [number(one["per_s"]), number(one["ratio"]), number(one["p99_ms"])]
            if _unit(name) == "vectors/s":
                cells.append(number(one["per_s"] * DIM * NUMBER_BYTES / 1e6))
        rows.append(cells)
    product = [["all threads", number(report["product_vectors_per_s"])]]
    return [Table(TITLE, columns, rows), Table("The bare product", ["", "vectors/s"], product)]


def _unit(name: str) -> str:
    return "requests/s" if "x 1" in name else "vectors/s"


def _set_up(server: Target, source: Matrix, target: Matrix) -> None:
    connection = Connection(server.port)
    register(connection, {"old": DIM, "new": DIM})
    make_set(connection, "items", {"old": source[:ANCHORS], "new": target[:ANCHORS]})


def _loads(server: Target, vectors: Matrix, cores: int) -> Loads:
    """Name -> a request, clients, requests of one process, and vectors of a request."""
    clients, requests = FEW_MANY if cores <= FEW_CORES else MANY_MANY
    one = orjson.dumps({**NAMES, "vectors": vectors[:1]}, option=orjson.OPT_SERIALIZE_NUMPY)
    query = "&".join(f"{name}={value}" for name, value in NAMES.items())
    many = server.request(f"/translate?{query}", npy(vectors), NPY)
    return {
        f"{ONE_CLIENTS} clients x 1": (
            server.request("/translate", one),
            ONE_CLIENTS,
            ONE_REQUESTS,
            1,
        ),
        f"{clients} clients x {MANY:,}": (many, clients, requests, MANY),
        f"1 client alone x {MANY:,}": (many, 1, max(8, requests // 4), MANY),
    }


def _round(server: Target, loads: Loads, count: int, cores: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, (request, clients, requests, vectors) in loads.items():
        total = requests * (count if clients > 1 else 1)
        loaded = load(server, [request] * total, clients=clients, processes=max(1, cores - count))
        found[name] = {
            "per_s": loaded.per_s * vectors,
            "p99_ms": loaded.p99_ms,
            "client_cores": loaded.client_cores,
        }
    return found


def _row(
    found: dict[str, list[dict[str, float]]], one: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, rounds in found.items():
        row[name] = {key: median(each[key] for each in rounds) for key in rounds[0]}
        row[name]["ratio"] = median(
            mine["per_s"] / base["per_s"] for mine, base in zip(rounds, one[name], strict=True)
        )
    return row


def _product(run: Run, source: Matrix) -> float:
    vectors = torch.from_numpy(np.ascontiguousarray(source[:MANY]))
    matrix, out = torch.randn(DIM, DIM), torch.empty(MANY, DIM)
    times = paired(run.device, {"product": lambda: torch.mm(vectors, matrix, out=out)}, 5 * ROUNDS)
    return MANY / median(times["product"])
