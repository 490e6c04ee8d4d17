"""What does a translation cost over HTTP, compared with its product in torch? And a single vector,
compared with an empty request?

    python -m benchmarks.wire  # about 3 minutes on 2 cores

Writes benchmarks/results/wire.json.

One running service (`anchorage serve`), a real pair of encoders: Cranfield's abstracts by USE (512
dimensions) and all-MiniLM-L6-v2 (384), 1,000 of them as anchors. The client is on the same machine,
with one connection and no library between it and the socket. All contestants take turns in every
round of one run, because these machines are noisy; ratios are of medians, and the spread is that of
the middle half.

4,096 vectors, by format and method, compared with the bare float32 product of the same arrays in
this process, with all cores: v T for `graded`, and expm1(n(v - m) L^T) B for `kernel`, which `auto`
takes. The round trip goes from the first byte sent to the last received. JSON is compared with
orjson.loads + product + orjson.dumps of the same arrays in this process; its answer is not read.

One vector as JSON, compared with FastAPI POST routes that do nothing, served by uvicorn with the
same settings: one that reads the same body and answers {}, and one that declares it (`body: dict`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import orjson
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.cranfield import cranfield
from benchmarks.service import JSON, NPY, Connection, Matrix, make_set, npy, read_npy, register
from scripts.servers import serve, started

SOURCE, TARGET, ANCHORS = "use", "minilm", 1_000
#: vectors of a large request
COUNT = 4_096
#: a format: its method, the path, the body and its media type, and whether the answer is read
Format = tuple[str, str, bytes, str, bool]
#: the ratios asked
TARGETS = {"npy, graded": "1.6", "npy, kernel": "1.3", "JSON, kernel": "1.25 of its three steps"}


def main() -> None:
    """Measure one vector and many, print and write."""
    arguments = parser(__doc__, RESULTS / "wire.json")
    arguments.add_argument("--rounds", type=int, default=45, help="of 4,096 vectors in each format")
    arguments.add_argument("--requests", type=int, default=6_000, help="of one vector")
    options = arguments.parse_args()
    try:
        known = cranfield().documents
    except Missing as error:
        sys.exit(str(error))
    anchors = {name: known[name][:ANCHORS].copy() for name in (SOURCE, TARGET)}
    vectors = np.resize(known[SOURCE], (COUNT, known[SOURCE].shape[1]))
    with (
        tempfile.TemporaryDirectory() as folder,
        # 4,096 vectors as JSON are larger than the default limit of such a body.
        serve(max_json=2**26) as server,
        started([sys.executable, "-m", "benchmarks.empty"], {}, Path(folder)) as routes,
    ):
        service, empty = Connection(server.port), Connection(routes.port)
        register(service, {name: rows.shape[1] for name, rows in anchors.items()})
        make_set(service, "items", anchors)
        one = measure_one(service, empty, vectors, options.requests)
        many = measure_many(service, vectors, products(anchors), options.rounds)
    tables = {"formats": many_table(many), "one": one_table(one)}
    show(Console(width=130), tables)
    write(options.json, tables, {"many": many, "one": one})


def products(anchors: Mapping[str, Matrix]) -> dict[str, Callable[[Tensor], Tensor]]:
    """The bare product of each method in torch."""
    x, y = (fit_space(torch.from_numpy(rows)) for rows in anchors.values())

    def fitted(method: str) -> Any:
        return methods.fit(method, x, y, methods.resolve(method, {}, anchors=ANCHORS))

    linear, kernel = fitted("graded"), fitted("kernel")

    def by_kernel(vectors: Tensor) -> Tensor:
        unit = normalize(vectors - kernel.source_mean)
        features = torch.expm1(unit @ kernel.landmarks)
        return torch.mm(features, kernel.decoder.matrix)

    return {"graded": lambda vectors: torch.mm(vectors, linear.decoder.matrix), "kernel": by_kernel}


def names(method: str) -> dict[str, str]:
    """What a translation names in addition to its vectors."""
    return {"source": SOURCE, "target": TARGET, "anchor_set": "items", "method": method}


def formats(vectors: Matrix) -> dict[str, Format]:
    """The vectors of a request in each format."""
    found: dict[str, Format] = {}
    for method in ("graded", "kernel"):
        query = "&".join(f"{name}={value}" for name, value in names(method).items())
        path = f"/translate?{query}"
        found[f"npy, {method}"] = method, path, npy(vectors), NPY, True
        half = npy(vectors.astype(np.float16))
        found[f"npy of float16, {method}"] = method, f"{path}&dtype=float16", half, NPY, True
    body = orjson.dumps({**names("kernel"), "vectors": vectors}, option=orjson.OPT_SERIALIZE_NUMPY)
    return {**found, "JSON, kernel": ("kernel", "/translate", body, JSON, False)}


def milliseconds(call: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - begun) * 1e3


def measure_many(
    service: Connection,
    vectors: Matrix,
    bare: Mapping[str, Callable[[Tensor], Tensor]],
    rounds: int,
) -> dict[str, list[float]]:
    """Milliseconds of every round: of the bare products, and of each format's round trip."""
    source, asked = torch.from_numpy(vectors), formats(vectors)
    text = asked["JSON, kernel"][2]
    found: dict[str, list[float]] = defaultdict(list)

    def json_here() -> None:
        orjson.loads(text)
        orjson.dumps(bare["kernel"](source).numpy(), option=orjson.OPT_SERIALIZE_NUMPY)

    def trip(path: str, body: bytes, media: str, is_read: bool) -> None:
        answer = service.ask(path, body, media)
        if is_read:
            assert len(read_npy(answer)) == COUNT

    for turn in range(-2, rounds):
        for method, product in bare.items():
            found[f"product, {method}"].append(milliseconds(product, source))
        for name, (_, *sent) in asked.items():
            if media_of(name) == "JSON" and turn % 3:
                continue
            found[name].append(milliseconds(trip, *sent))
            if media_of(name) == "JSON":
                found["JSON here"].append(milliseconds(json_here))
        if turn == -1:  # the first rounds fit and warm up
            found.clear()
    return found


def media_of(name: str) -> str:
    """The first word of a format's name."""
    return name.partition(",")[0]


def measure_one(
    service: Connection, empty: Connection, vectors: Matrix, requests: int
) -> dict[str, list[float]]:
    """Milliseconds of each request of one vector, and of the empty routes."""
    sent = {**names("kernel"), "vectors": vectors[:1]}
    body = orjson.dumps(sent, option=orjson.OPT_SERIALIZE_NUMPY)
    turns = {
        "one vector, JSON": (service, "/translate"),
        "empty route, body read": (empty, "/read"),
        "empty route, body declared": (empty, "/declared"),
    }
    found: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(-200, requests):
        for name, (connection, path) in turns.items():
            took = milliseconds(connection.ask, path, body, JSON)
            if turn >= 0:
                found[name].append(took)
    return found


def many_table(found: Mapping[str, list[float]]) -> Table:
    """The round trips beside the products."""
    table = [["what", "ms", "middle half", "ratio", "asked"]]
    for name, values in found.items():
        low, _, high = quantiles(values, n=4)
        row = [name, f"{median(values):.1f}", f"{low:.1f} to {high:.1f}"]
        beside = ""
        if name == "JSON, kernel":
            beside = "JSON here"
        elif name.startswith("npy"):
            beside = f"product, {name.rpartition(', ')[2]}"
        ratio = f"{median(values) / median(found[beside]):.2f}" if beside else ""
        table.append([*row, ratio, TARGETS.get(name, "")])
    return table


def one_table(found: Mapping[str, list[float]]) -> Table:
    """One vector as JSON, compared with empty routes."""
    table = [["", "p50, ms", "p99, ms", "a translation's p50 is", "its p99 is"]]
    own: Any = None
    for name, values in found.items():
        points = np.percentile(values, [50, 99])
        own = points if own is None else own
        ratios = [f"{ours / each:.2f} times that" for ours, each in zip(own, points, strict=True)]
        shown = ratios if points is not own else ["", ""]
        table.append([name, *(f"{each:.2f}" for each in points), *shown])
    return table


if __name__ == "__main__":
    main()
