"""What does a translation cost over HTTP, beside the matrix product it is? And a single vector, beside an empty request?

    python benchmarks/wire.py            # about 3 minutes on 2 cores; writes benchmarks/results/wire.json and wire.png
    python benchmarks/wire.py --profile  # also where the server's time goes, by py-spy (pip install py-spy; may need root)

One running service (`anchorage serve`), 768 -> 768 dimensions, the client on the same machine with one connection and no library
between it and the socket. Everything takes its turn in every round of one run, as these machines are noisy; ratios are of
medians, and the spread is that of the middle half.

4,096 vectors, by format, beside the bare float32 torch product of the same arrays in this process, with all cores: the round
trip, from the first byte sent to the last received, with bodies written beforehand and answers of npy, Arrow and base64 read as
arrays; and the server's own time from the moment the body had arrived (its Server-Timing header: parse + answer). JSON beside
orjson.loads + product + orjson.dumps of the same arrays in this process, which has no HTTP; its answer is not read.

One vector as JSON, beside FastAPI POST routes that do nothing, served by uvicorn with the same settings: one that reads the same
body and answers {}, and one that declares it (`body: dict`).
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pybase64
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / "wire.json"
DIM, COUNT, ANCHORS = 768, 4_096, 1_000
NAMES = "source=old&target=new&anchor_set=items"
NPY, ARROW, JSON = "application/x-npy", "application/vnd.apache.arrow.stream", "application/json"

EMPTY = """
import sys
import uvicorn
from fastapi import FastAPI, Request

app = FastAPI()

@app.post("/read")
async def read(request: Request) -> dict:
    await request.body()
    return {}

@app.post("/declared")
async def declared(body: dict) -> dict:
    return {}

uvicorn.run(app, port=int(sys.argv[1]), http="httptools", ws="none", log_config=None, access_log=False, server_header=False)
"""

console = Console(width=130)


class Connection:
    """One keep-alive connection, and memory for its answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray(80 * 2**20)
        self._view = memoryview(self._data)

    def ask(self, path: str, body: bytes, media: str) -> tuple[float, dict[str, str], memoryview]:
        """Seconds of the round trip, the answer's headers, and its body, which the next answer overwrites."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        started = time.perf_counter()
        if len(body) < 2**16:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)
        got, end, size = 0, -1, 0
        headers: dict[str, str] = {}
        while end < 0 or got < end + size:
            count = self._socket.recv_into(self._view[got:])
            if count == 0:
                raise ConnectionError(bytes(self._data[:got])[:300])
            got += count
            if end < 0 and (found := self._data.find(b"\r\n\r\n", 0, got)) >= 0:
                end = found + 4
                headers = _headers(bytes(self._data[:found]).decode())
                size = int(headers["content-length"])
        seconds = time.perf_counter() - started
        if headers["status"] != "200":
            raise ConnectionError(bytes(self._data[:got])[:600].decode())
        return seconds, headers, self._view[end : end + size]


def _headers(text: str) -> dict[str, str]:
    first, *lines = text.split("\r\n")
    found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return {**found, "status": first.split()[1]}


@contextmanager
def servers() -> Iterator[tuple[int, int, int]]:
    """The ports of the service and of the empty routes, and the service's process id."""
    ports = _free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text(EMPTY)
        command = [Path(sys.executable).parent / "anchorage", "serve", "--port", str(ports[0]), "--data-dir", f"{folder}/data"]
        environment = {**os.environ, "ANCHORAGE_LOG_FORMAT": "json"}
        with (Path(folder) / "log").open("wb") as log:
            processes = [
                subprocess.Popen(command, stdout=log, stderr=log, env=environment),
                subprocess.Popen([sys.executable, script, str(ports[1])], stdout=log, stderr=log, env=environment),
            ]
            try:
                for port in ports:
                    _await_port(port)
                yield ports[0], ports[1], processes[0].pid
            finally:
                for process in processes:
                    process.send_signal(signal.SIGTERM)
                for process in processes:
                    process.wait()


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


def _await_port(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nobody listens on {port}")


def packed(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """An array as the service takes it in JSON."""
    text = pybase64.b64encode_as_string(np.ascontiguousarray(array).data)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "base64": text}


def set_up(connection: Connection) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
    """Two encoders and their anchors in the service; vectors to translate, and a matrix of the translator's shape."""
    generator = np.random.default_rng(0)
    spectrum = np.linspace(1, 0.05, DIM)
    anchors = (generator.normal(size=(ANCHORS, DIM)) * spectrum + 0.1).astype(np.float32)
    rotation = np.linalg.qr(generator.normal(size=(DIM, DIM)))[0].astype(np.float32)
    for name in ("old", "new"):
        post(connection, "/encoders", {"name": name, "dim": DIM})
    post(connection, "/anchor-sets", {"name": "items", "embeddings": {"old": packed(anchors), "new": packed(anchors @ rotation)}})
    vectors = (generator.normal(size=(COUNT, DIM)) * spectrum + 0.1).astype(np.float32)
    return vectors, torch.from_numpy(rotation)


def post(connection: Connection, path: str, body: dict[str, Any]) -> None:
    try:
        connection.ask(path, orjson.dumps(body), JSON)
    except ConnectionError as error:
        if "201" not in str(error)[:20]:
            raise


def arrow_body(vectors: np.ndarray[Any, Any]) -> bytes:
    """The vectors with an id each, as one record batch."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    batch = pa.record_batch([pa.array(range(len(vectors))), rows], names=["id", "vector"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def npy_body(vectors: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, vectors)
    return file.getvalue()


def read_npy(body: memoryview) -> np.ndarray[Any, Any]:
    size = int.from_bytes(body[8:10], "little") + 10
    return np.frombuffer(body[size:], np.float16 if b"<f2" in bytes(body[:size]) else np.float32).reshape(-1, DIM)


def read_arrow(body: memoryview) -> np.ndarray[Any, Any]:
    column = pa.ipc.open_stream(pa.py_buffer(body)).read_all()["vector"].chunk(0)
    return column.flatten().to_numpy().reshape(-1, DIM)


def read_base64(body: memoryview) -> np.ndarray[Any, Any]:
    return np.frombuffer(pybase64.b64decode(orjson.loads(body)["vectors"]["base64"]), np.float32).reshape(-1, DIM)


#: name -> where to ask, the body, its media type, and how to read the answer
Format = tuple[str, bytes, str, Callable[[memoryview], Any] | None]


def formats(vectors: np.ndarray[Any, Any]) -> dict[str, Format]:
    about = {"source": "old", "target": "new", "anchor_set": "items"}
    path = f"/translate?{NAMES}"
    as_base64 = orjson.dumps({**about, "encoding": "base64", "vectors": packed(vectors)})
    as_json = orjson.dumps({**about, "vectors": vectors}, option=orjson.OPT_SERIALIZE_NUMPY)
    return {
        "npy": (path, npy_body(vectors), NPY, read_npy),
        "Arrow": (path, arrow_body(vectors), ARROW, read_arrow),
        "npy, float16": (f"{path}&dtype=float16", npy_body(vectors.astype(np.float16)), NPY, read_npy),
        "npy, bfloat16 product": (f"{path}&precision=bfloat16", npy_body(vectors), NPY, read_npy),
        "base64": ("/translate", as_base64, JSON, read_base64),
        "JSON": ("/translate", as_json, JSON, None),
    }


def measure_bulk(
    connection: Connection, vectors: np.ndarray[Any, Any], matrix: torch.Tensor, rounds: int
) -> dict[str, list[Any]]:
    """Milliseconds of every round: the products here, and of each format the round trip and the server's own."""
    given, made = torch.from_numpy(vectors), torch.empty(COUNT, DIM)
    bodies = formats(vectors)
    text = bodies["JSON"][1]
    found: dict[str, list[Any]] = collections.defaultdict(list)

    def product() -> None:
        torch.mm(given, matrix, out=made)

    def json_here() -> None:
        orjson.loads(text)
        product()
        orjson.dumps(made.numpy(), option=orjson.OPT_SERIALIZE_NUMPY)

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


def measure_one(service: Connection, empty: Connection, vectors: np.ndarray[Any, Any], requests: int) -> dict[str, list[float]]:
    about = {"source": "old", "target": "new", "anchor_set": "items"}
    body = orjson.dumps({**about, "vectors": vectors[:1]}, option=orjson.OPT_SERIALIZE_NUMPY)
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


def spread(values: Sequence[float]) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{low:.1f} to {high:.1f}"


def bulk_table(found: dict[str, list[Any]]) -> tuple[Table, dict[str, Any]]:
    table = Table(title=f"{COUNT:,} vectors, {DIM} -> {DIM}: milliseconds, and times the bare product", title_justify="left")
    for column in ("", "round trip", "middle half", "x product", "server", "x product", "x JSON here", "target"):
        table.add_column(column, justify="left" if not column else "right")
    product = median(found["product"])
    targets = {"npy": "1.6", "Arrow": "1.5", "base64": "4.0", "JSON": "1.2 x JSON here"}
    table.add_row("bare product, here", f"{product:.1f}", spread(found["product"]), "1.00")
    table.add_row("JSON here: loads + product + dumps", f"{median(found['JSON here']):.1f}", spread(found["JSON here"]))
    results: dict[str, Any] = {
        "product_ms": round(product, 2),
        "json_here_ms": round(median(found["JSON here"]), 2),
        "formats": {},
    }
    for name in ("npy", "Arrow", "npy, float16", "npy, bfloat16 product", "base64", "JSON"):
        trip, server = median(found[name]), median(found[f"{name}, server"])
        beside = trip / median(found["JSON here"])
        table.add_row(
            name,
            f"{trip:.1f}",
            spread(found[name]),
            f"{trip / product:.2f}",
            f"{server:.1f}",
            f"{server / product:.2f}",
            f"{beside:.2f}" if name == "JSON" else "",
            targets.get(name, ""),
        )
        results["formats"][name] = {
            "round_trip_ms": round(trip, 2),
            "middle_half_ms": spread(found[name]),
            "ratio_to_product": round(trip / product, 3),
            "server_ms": round(server, 2),
            "server_ratio_to_product": round(server / product, 3),
            **({"ratio_to_json_here": round(beside, 3)} if name == "JSON" else {}),
        }
    return table, results


def one_table(found: dict[str, list[float]]) -> tuple[Table, dict[str, Any]]:
    table = Table(title=f"One vector of {DIM}, JSON in and out: milliseconds of the round trip", title_justify="left")
    for column in ("", "p50", "p99", "its p50 x", "its p99 x"):
        table.add_column(column, justify="left" if not column else "right")
    points = {name: np.percentile(values, [50, 99]) for name, values in found.items()}
    own = points["one vector, JSON"]
    results = {}
    for name, (p50, p99) in points.items():
        ratios = ("", "") if name == "one vector, JSON" else (f"{own[0] / p50:.2f}", f"{own[1] / p99:.2f}")
        table.add_row(name, f"{p50:.3f}", f"{p99:.3f}", *ratios)
        results[name] = {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}
        if name != "one vector, JSON":
            results[name] |= {"our_p50_ratio": round(float(own[0] / p50), 3), "our_p99_ratio": round(float(own[1] / p99), 3)}
    table.caption = "target: p50 at most 2.2 times an empty route that declares its body"
    return table, results


def plot(bulk: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = list(bulk["formats"])
    trips = [bulk["formats"][name]["ratio_to_product"] for name in names]
    own = [bulk["formats"][name]["server_ratio_to_product"] for name in names]
    axes.barh(names, trips, color="#9ecae1", label="round trip")
    axes.barh(names, own, height=0.4, color="#3182bd", label="of it the server, once the body is there")
    axes.axvline(1, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(f"times the bare product of {COUNT:,} x {DIM} by {DIM} x {DIM}")
    axes.legend()
    figure.savefig(path, dpi=110)


#: where a frame belongs: the first that its stack holds from the inside out
ROOMS = (
    ("torch: the product and its steps", ("app/maths/", "torch/")),
    ("writing the answer", ("app/api/answers.py",)),
    ("reading the body", ("app/api/bodies.py", "app/api/wire.py", "app/api/npy.py", "app/api/arrow")),
    ("log line and metrics", ("logging/", "app/logs.py", "prometheus_client/", "structlog/")),
    ("validation", ("pydantic/",)),
    ("the edge: ids, limits, keys", ("app/api/edge.py", "app/api/limiter.py")),
    ("serving path: names, cache", ("app/services/", "app/storage/")),
    ("HTTP protocol, sockets", ("uvicorn/", "app/api/protocol.py")),
    ("routes", ("app/api/",)),
    ("framework", ("fastapi/", "starlette/")),
)


def profile(pid: int, load: Callable[[], None], seconds: int = 10) -> dict[str, float] | None:
    """Shares of the event loop's busy time, by what it was doing; None without py-spy."""
    command = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if command is None:
        console.print("No profile: pip install py-spy")
        return None
    with tempfile.NamedTemporaryFile() as file:
        arguments = ["record", "--format", "raw", "--rate", "500", "--duration", str(seconds), "--output", file.name]
        process = subprocess.Popen([command, *arguments, "--pid", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            load()
        stacks = Path(file.name).read_text().splitlines()
    counts: collections.Counter[str] = collections.Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        waits = "_lane (" in frames[-1]  # for work: py-spy cannot tell
        if not waits and ("run_asgi" in stack or "data_received" in stack or "_lane (" in stack):
            counts[_room(frames)] += int(count)
    whole = sum(counts.values())
    return {name: round(count / whole, 3) for name, count in counts.most_common()}


def _room(frames: list[str]) -> str:
    for frame in reversed(frames):
        for name, parts in ROOMS:
            if any(part in frame for part in parts):
                return name
    return "other"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--requests", type=int, default=6_000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with servers() as (port, empty_port, pid):
        service, empty = Connection(port), Connection(empty_port)
        vectors, matrix = set_up(service)
        one, one_results = one_table(measure_one(service, empty, vectors, options.requests))
        bulk, bulk_results = bulk_table(measure_bulk(service, vectors, matrix, options.rounds))
        console.print(bulk)
        console.print(one)
        results = {
            "machine": {
                "cores": os.cpu_count(),
                "processor": platform.processor() or platform.machine(),
                "torch": torch.__version__,
            },
            "bulk": bulk_results,
            "one": one_results,
        }
        if options.profile:
            about = {"source": "old", "target": "new", "anchor_set": "items"}
            body = orjson.dumps({**about, "vectors": vectors[:1]}, option=orjson.OPT_SERIALIZE_NUMPY)
            path, many, media, _ = formats(vectors)["npy"]
            results["profile"] = {
                "one vector, JSON": profile(pid, lambda: service.ask("/translate", body, JSON) and None),
                f"{COUNT} vectors, npy": profile(pid, lambda: service.ask(path, many, media) and None),
            }
            for name, shares in results["profile"].items():
                table = Table(title=f"Where the server's time goes: {name}", title_justify="left")
                table.add_column("")
                table.add_column("share", justify="right")
                for room, share in (shares or {}).items():
                    table.add_row(room, f"{share:.1%}")
                console.print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    plot(bulk_results, RESULTS.with_suffix(".png"))


if __name__ == "__main__":
    main()
