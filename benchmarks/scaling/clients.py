"""How many requests a second, and how long each takes, with more clients at once."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.scaling.data import embeddings
from benchmarks.scaling.figures import Grid, Rounds, Row, Section, ratios
from benchmarks.service import (
    JSON,
    NPY,
    Connection,
    Server,
    make_set,
    npy,
    register,
    request_head,
    serve,
    started,
)

DIM, ANCHORS, MANY = 768, 1_000, 1_024
CLIENTS, CLIENTS_OF_MANY = (1, 4, 16, 64, 256), (1, 4, 16)
IN_FLIGHT = 512
OURS, EMPTY = "Anchorage", "empty route"

#: by server, number of clients and request: what load.py measured in every round
Found = dict[tuple[str, int, bytes], list[dict[str, Any]]]

NOTE = (
    f"{DIM} -> {DIM}, {ANCHORS:,} anchors, graded; one server process. Each client sends its next "
    "request once it is answered, from one process with uvloop and nothing between it and its "
    "sockets; client's core: how much of a core that process took. The server runs with "
    f"ANCHORAGE_MAX_IN_FLIGHT={IN_FLIGHT}, as 256, the default, would be just enough. empty route: "
    "a FastAPI POST route that reads the same body and answers {}, served by uvicorn with uvloop "
    "and httptools, without access log. Connections are open, and each was answered once, before "
    "anything is counted: accepting many new ones under load takes seconds (uvloop accepts about "
    "one in a turn of its loop). A server that is not measured is stopped meanwhile."
)


def measure(quick: bool) -> Section:
    """One vector a request compared with the empty route, and many vectors a request."""
    clients, many = ((1, 16), (1, 4)) if quick else (CLIENTS, CLIENTS_OF_MANY)
    seconds, rounds = (0.5, 2) if quick else (2.0, 3)
    source, target = embeddings(ANCHORS + MANY, (DIM, DIM))
    names = {"source": "old", "target": "new", "anchor_set": "items"}
    vectors = source[ANCHORS:]
    one = orjson.dumps({**names, "vectors": vectors[:1]}, option=orjson.OPT_SERIALIZE_NUMPY)
    request = request_head("POST", "/translate", JSON, len(one)) + one
    body = npy(vectors)
    request_of_many = (
        request_head("POST", "/translate?source=old&target=new&anchor_set=items", NPY, len(body))
        + body
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(max_in_flight=IN_FLIGHT) as ours,
        started([sys.executable, "-m", "benchmarks.scaling.empty"], {}, Path(folder)) as empty,
    ):
        connection = Connection(ours.port)
        register(connection, {"old": DIM, "new": DIM})
        make_set(connection, "items", {"old": source[:ANCHORS], "new": target[:ANCHORS]})
        connection.ask("/translate", one, JSON)  # which fits the translator
        turns = [(server, number, request) for number in clients for server in (OURS, EMPTY)]
        turns += [(OURS, number, request_of_many) for number in many]
        found: Found = {turn: [] for turn in turns}
        for round_ in range(rounds):
            for name, number, data in turns:
                asked, other = (ours, empty) if name == OURS else (empty, ours)
                warm_s = seconds / 2 if round_ == 0 else 0.2
                with other.asleep():
                    found[name, number, data].append(_load(asked, number, data, seconds, warm_s))
    one_each = "one vector a request, JSON"
    rates = Grid(
        f"More clients: {one_each}",
        "clients",
        {number: _rates(found, number, request) for number in clients},
    )
    latencies: dict[int | str, Row] = {
        number: _latencies(found, (OURS, EMPTY), number, request) for number in clients
    }
    rates_of_many: dict[int | str, Row] = {}
    for number in many:
        runs = found[OURS, number, request_of_many]
        rates_of_many[number] = {
            "vectors/s": Rounds([run["requests_per_s"] * MANY for run in runs]),
            "client's core": _core(runs),
        }
        rates_of_many[number] |= _latencies(found, (OURS,), number, request_of_many)
    grids = [rates, Grid(f"Latencies: {one_each}", "clients", latencies)]
    grids.append(Grid(f"{MANY:,} vectors a request, npy", "clients", rates_of_many))
    slopes = {
        f"{name}'s requests/s over clients": rates.slope(f"{name}, requests/s")
        for name in (OURS, EMPTY)
    }
    slopes |= {
        f"{name}'s p50 over clients": grids[1].slope(f"{name}, p50 ms") for name in (OURS, EMPTY)
    }
    slopes["vectors/s over clients, npy"] = grids[2].slope("vectors/s")
    return Section(NOTE, grids, slopes)


def _rates(found: Found, number: int, request: bytes) -> Row:
    row: Row = {}
    rates = {}
    for name in (OURS, EMPTY):
        runs = found[name, number, request]
        rates[name] = row[f"{name}, requests/s"] = Rounds([run["requests_per_s"] for run in runs])
        row[f"{name}, client's core"] = _core(runs)
    return row | {"of the empty route's": ratios(rates[OURS], rates[EMPTY])}


def _latencies(found: Found, names: Sequence[str], number: int, request: bytes) -> Row:
    return {
        f"{name}, {point} ms": Rounds([run[f"{point}_ms"] for run in found[name, number, request]])
        for name in names
        for point in ("p50", "p99")
    }


def _core(runs: Sequence[dict[str, Any]]) -> float:
    return Rounds([run["client_core"] for run in runs]).median


def _load(
    server: Server, clients: int, request: bytes, seconds: float, warm_s: float
) -> dict[str, Any]:
    """Run load.py, and return what it measured."""
    job = {"port": server.port, "clients": clients, "seconds": seconds, "warm_s": warm_s}
    command = [sys.executable, "-m", "benchmarks.scaling.load"]
    answer = subprocess.run(
        command,
        input=orjson.dumps(job) + b"\n" + request,
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found
