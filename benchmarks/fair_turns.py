"""What one project's heaviest requests cost, and how long another project waits meanwhile.

    python -m benchmarks.fair_turns [--only TEXT] [--seconds 30]

A real server with its worker and API keys. Two requests of one key at once, at a route's
documented limits, on a set of 16,384 anchors of 768 dimensions; and all the while another project's
warm translations, and cold ones that fit again each time. A request that is answered with a job
counts until the job ends, or until `--seconds`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import lancedb
import numpy as np
import pyarrow as pa
from rich.console import Console

from app.access.service import create_key
from app.request_context import RequestContext
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services
from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.relevance.client import packed
from benchmarks.service import Matrix, npy
from scripts.servers import Server, serve

#: the anchors of the attacker's set, their dimensions, and the anchors of the smaller one for irp
ANCHORS, DIM, FEWER = 16_384, 768, 4_096

#: rows of a JSON body of 8 MiB, as base64 of float16
JSON_ROWS = 3_500

#: what another project's requests may wait
MAX_WARM_S, MAX_COLD_S = 1.0, 2.0

#: what the keys may ask
RATE = "1000000/minute"

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
NUMBERS = count(1)

Attack = Callable[[httpx2.Client, int], httpx2.Response]


@dataclass
class Watch:
    """What was measured while an attack ran."""

    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    refused: int = 0
    answers: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    grown_mib: float = 0.0
    seconds: float = 0.0


def spaces(size: int, dims: tuple[int, int], hidden: int, seed: int) -> tuple[Matrix, Matrix]:
    """The same made-up items by two encoders."""
    draw = np.random.default_rng(seed)
    items = draw.normal(size=(size, hidden))
    x, y = (
        items @ draw.normal(size=(hidden, dim)) + 0.1 * draw.normal(size=(size, dim))
        for dim in dims
    )
    return x.astype(np.float32), y.astype(np.float32)


def keys_of(folder: str) -> dict[str, str]:
    """A write and a read key of the projects a, which attacks, and b."""
    services = make_services(Settings(data_dir=Path(folder)))
    services.db.upgrade()
    made = {
        project + scope.value: create_key(
            services, RequestContext(project), name=scope.value, scopes=[scope], rate_limit=RATE
        )[1]
        for project in "ab"
        for scope in (Scope.write, Scope.read)
    }
    services.close()
    return made


def client_of(server: Server, key: str) -> httpx2.Client:
    """A client with that key."""
    url, headers = f"http://127.0.0.1:{server.port}", {"Authorization": f"Bearer {key}"}
    return httpx2.Client(base_url=url, headers=headers, timeout=300)


def register(client: httpx2.Client, name: str, x: Matrix, y: Matrix) -> None:
    """Register two encoders and their anchor set."""
    media = {"Content-Type": "application/x-npy"}
    for side, matrix in (("x", x), ("y", y)):
        body = {"name": f"{name}-{side}", "dim": matrix.shape[1]}
        client.post("/encoders", json=body).raise_for_status()
    path = f"/anchor-sets?name={name}&encoder={name}-x"
    client.post(path, content=npy(x), headers=media).raise_for_status()
    path = f"/anchor-sets/{name}/embeddings/{name}-y"
    client.put(path, content=npy(y), headers=media).raise_for_status()


def connect(client: httpx2.Client, folder: str, x: Matrix) -> None:
    """Connect a store of all vectors, and register a head of 1,000 classes."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), DIM)
    table = pa.table({"id": list(range(len(x))), "vector": rows})
    lancedb.connect(folder).create_table("docs", table)
    store = {"name": "docs", "kind": "lancedb", "address": "main", "collection": "docs"}
    client.post("/stores", json={**store, "encoder": "fewer-x"}).raise_for_status()
    head = {
        "name": "head",
        "encoder": "fewer-y",
        "weight": packed(np.random.default_rng(2).normal(size=(1_000, DIM)).astype(np.float32)),
        "bias": [0.0] * 1_000,
        "classes": [str(each) for each in range(1_000)],
    }
    client.post("/heads", json=head).raise_for_status()


def names_of(name: str) -> dict[str, str]:
    """The fields of a request for the pair."""
    return {"source": f"{name}-x", "target": f"{name}-y", "anchor_set": name}


def used(server: Server) -> tuple[float, float]:
    """The seconds of CPU and the MiB in memory of the server's process."""
    folder = Path(f"/proc/{server.process.pid}")
    numbers = (folder / "stat").read_text().rpartition(")")[2].split()
    status = (folder / "status").read_text().partition("VmRSS:")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / CLOCK_TICKS, int(status[0]) / 1024


def attacks(x: Matrix, y: Matrix) -> dict[str, Attack]:
    """The heaviest request of each route that computes. Its number makes it new."""

    def translate(pair: str, method: str, **options: Any) -> Attack:
        def ask(client: httpx2.Client, n: int) -> httpx2.Response:
            own = {"seed": n} if method == "irp" else {"keep_norms": n % 2 == 1}
            more = {"method": method, "options": {**options, **own}, "vectors": x[:2].tolist()}
            return client.post("/translate", json={**names_of(pair), **more})

        return ask

    def post(path: str, **body: Any) -> Attack:
        return lambda client, n: client.post(path, json=body)

    def of_translator(path: str) -> Attack:
        def ask(client: httpx2.Client, n: int) -> httpx2.Response:
            page = client.get("/translators").json()["translators"]
            mine = [each["id"] for each in page if each["anchor_set"] == "fewer"]
            return client.get(f"/translators/{mine[n % len(mine)]}{path}")

        return ask

    big, fewer = names_of("big"), names_of("fewer")
    some = packed(x[:JSON_ROWS])
    ids = [str(row) for row in range(JSON_ROWS)]
    graded = {"method": "graded"}
    candidates = [{"ids": ids, "vectors": some}]
    space = {"encoder": "big-x", "encode_power": 0.5, "anchor_set": "big"}
    fused = {"mode": "fuse", "queries": y[:1].tolist(), "old_queries": x[:1].tolist()}
    return {
        "/translate irp, omega 64, 16,384 anchors": translate("big", "irp", omega=64),
        "/translate graded, 4,096 anchors": translate("fewer", "graded"),
        "/relative, encode_power 0.5": post("/relative", **space, vectors=x[:2].tolist()),
        "/translators/{id}": of_translator(""),
        "/anchor-sets/{name}/report": lambda client, n: client.get("/anchor-sets/big/report"),
        "/rescore, fuse": post("/rescore", **fewer, **graded, **fused, candidates=candidates),
        "/evaluate": post("/evaluate", **big),
        "/evaluate with items": post(
            "/evaluate", **fewer, **graded, vectors=packed(x[:900]), native=packed(y[:900])
        ),
        "/advice": post("/advice", **fewer, **graded, corpus_size=10**6),
        "/stitch, a head of 1,000 classes": post(
            "/stitch", head="head", encoder="fewer-x", anchor_set="fewer", **graded, vectors=some
        ),
        "/stores/{name}/search, 10,000 candidates": post(
            "/stores/docs/search",
            target="fewer-y",
            anchor_set="fewer",
            queries=y[:1].tolist(),
            candidates=10_000,
            k=1_000,
            exact=True,
            **graded,
        ),
        # Last, because their jobs go on for minutes.
        "/translate graded, 16,384 anchors": translate("big", "graded"),
        "/translate kernel, 16,384 anchors": translate("big", "kernel"),
        "/translate irp, omega 64, 4,096 anchors": translate("fewer", "irp", omega=64),
    }


def attack(client: httpx2.Client, ask: Attack, watch: Watch, until: float) -> None:
    """Send the request, and wait for the job that it becomes."""
    begun = time.monotonic()
    try:
        answer = ask(client, next(NUMBERS))
        what = str(answer.status_code)
        if answer.status_code >= 400 and "json" in answer.headers["content-type"]:
            what += f" {answer.json().get('code')}"
        job = answer.headers.get("location", "")
        if job.startswith("/jobs/"):
            what += " job"
            while time.monotonic() < until and not client.get(job).json()["finished_at"]:
                time.sleep(0.2)
    except httpx2.TransportError as error:
        what = type(error).__name__
    watch.answers.append(f"{what} {time.monotonic() - begun:.1f} s")


@contextmanager
def other_project(client: httpx2.Client, vector: list[float], watch: Watch) -> Iterator[None]:
    """Translate for the other project meanwhile: warm each 20 ms, and cold each 200 ms."""
    ended = threading.Event()
    pair = {**names_of("small"), "method": "ridge", "vectors": [vector]}

    def ask(into: list[float], every_s: float, ridge: Callable[[], float]) -> None:
        while not ended.is_set():
            begun = time.monotonic()
            answer = client.post("/translate", json={**pair, "options": {"ridge": ridge()}})
            if answer.status_code == 200:
                into.append(time.monotonic() - begun)
            else:
                watch.refused += 1
            ended.wait(every_s)

    threads = [
        threading.Thread(target=ask, args=(watch.warm, 0.02, lambda: 1.0)),
        threading.Thread(target=ask, args=(watch.cold, 0.2, lambda: 1.0 + next(NUMBERS) * 1e-4)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def watched(
    server: Server, keys: dict[str, str], ask: Attack | None, vector: list[float], seconds: float
) -> Watch:
    """Measure during two requests of one read key; on an idle server without `ask`."""
    watch = Watch()
    with client_of(server, keys["bread"]) as other, client_of(server, keys["awrite"]) as attacker:
        before, begun = used(server), time.monotonic()
        most = before[1]
        with other_project(other, vector, watch):
            until = begun + seconds
            threads = [
                threading.Thread(target=attack, args=(attacker, ask, watch, until))
                for _ in range(0 if ask is None else 2)
            ]
            for thread in threads:
                thread.start()
            while any(each.is_alive() for each in threads) or time.monotonic() < begun + 3:
                most = max(most, used(server)[1])
                time.sleep(0.1)
        after = used(server)
        watch.cpu_s, watch.grown_mib = after[0] - before[0], most - before[1]
        watch.seconds = time.monotonic() - begun
        end_jobs(client_of(server, keys["awrite"]))
    return watch


def end_jobs(client: httpx2.Client) -> None:
    """Cancel what the attack has queued, and wait for what runs."""
    with client:
        for state in ("queued", "running"):
            for job in client.get("/jobs", params={"state": state}).json()["jobs"]:
                client.post(f"/jobs/{job['id']}/cancel")
        while client.get("/jobs", params={"state": "running"}).json()["jobs"]:
            time.sleep(0.5)


def p99(values: list[float]) -> float:
    """The 99th percentile; infinite without values."""
    return float(np.quantile(values, 0.99)) if values else float("inf")


def row(name: str, watch: Watch) -> list[str]:
    """The row of a table."""
    return [
        name,
        ", ".join(sorted(watch.answers)) or "-",
        f"{watch.cpu_s:.1f}",
        f"{watch.grown_mib:.0f}",
        f"{p99(watch.warm):.2f}",
        f"{p99(watch.cold):.2f}",
        str(watch.refused),
        f"{os.getloadavg()[0]:.1f}",
    ]


COLUMNS = [
    "two requests of one key",
    "answers",
    "CPU, s",
    "memory, MiB",
    "other's warm p99, s",
    "other's cold p99, s",
    "other's refusals",
    "load of the machine",
]


def measure(only: str, seconds: float, console: Console) -> Table:
    """The table of all attacks."""
    x, y = spaces(ANCHORS, (DIM, DIM), 200, 0)
    small = spaces(400, (64, 64), 20, 1)
    table = [COLUMNS]
    with TemporaryDirectory() as folder:
        keys, stores = keys_of(folder), str(Path(folder) / "lance")
        allowed = json.dumps({"main": {"url": stores, "projects": ["a"]}})
        with serve(data_dir=folder, auth="keys", stores=allowed) as server:
            with client_of(server, keys["awrite"]) as owner:
                register(owner, "big", x, y)
                register(owner, "fewer", x[:FEWER], y[:FEWER])
                connect(owner, stores, x)
            with client_of(server, keys["bwrite"]) as owner:
                register(owner, "small", *small)
            vector = small[0][0].tolist()
            chosen = {name: each for name, each in attacks(x, y).items() if only in name}
            for name, ask in {"none": None, **chosen}.items():
                found = row(name, watched(server, keys, ask, vector, seconds))
                console.print(*found, sep=" | ")
                table.append(found)
    return table


def main() -> None:
    """Measure, print and write the table."""
    options = parser(__doc__, RESULTS / "fair_turns.json")
    options.add_argument("--only", default="", help="only requests whose name contains this")
    options.add_argument("--seconds", type=float, default=30.0, help="longest wait for a job")
    arguments = options.parse_args()
    console = Console()
    tables = {"requests": measure(arguments.only, arguments.seconds, console)}
    show(console, tables)
    write(arguments.json, tables)


if __name__ == "__main__":
    main()
