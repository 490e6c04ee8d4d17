"""What do native scores cost a search, and what does an encoder that does not answer cost it?

    python -m benchmarks.native_latency [--pgvector postgresql://postgres@localhost/postgres]

Writes benchmarks/results/native_latency.json.

POST /stores/{name}/search over HTTP on Cranfield's 1,400 texts in LanceDB or pgvector, one query a
request, 200 candidates, 300 anchors, from USE to MiniLM, which the service runs in its own process.
`cold`: none of the 20 texts was embedded before; `warm`: all were. `encoder` is POST /v1/embeddings
for as many texts. Each round has its own texts, so that it begins cold.

A remote encoder is a second service behind the OpenAI API, which SIGSTOP freezes; the encoder in
the process is kept busy by a client that embeds long batches.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.native import CANDIDATES, Service, fill_lance, fill_table
from benchmarks.relevance.cells import anchor_rows
from benchmarks.relevance.collection import CRANFIELD, JudgedCollection, cranfield
from benchmarks.store_search.filling import drop_pgvector
from scripts.servers import serve

MODEL = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
NATIVE, CLIENTS, DEADLINE_MS = 20, 16, 500
ROUNDS, QUERIES_OF_ROUND = 3, 24


def texts_of(round_: int) -> list[str]:
    """The collection's texts, with a number that no other round has."""
    documents = json.loads((CRANFIELD / "cranfield.json").read_text(encoding="utf-8"))["docs"]
    return [f"{round_}. {each['text'][:400]}" for each in documents]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = call()
    return 1e3 * (time.perf_counter() - begun), found


def searcher(service: Service, data: JudgedCollection, target: str) -> Callable[..., Any]:
    def search(store: str, query: int, native: int, deadline_ms: int = 30_000) -> Any:
        return service.post(
            f"/stores/{store}/search",
            **{"target": target, "queries": data.queries["minilm"][[query]], "k": 10},
            **{"anchor_set": f"set-{target}", "mode": "cascade", "candidates": CANDIDATES},
            **{"native": native, "native_deadline_ms": deadline_ms},
        )

    return search


def make(service: Service, data: JudgedCollection, target: str, **encoder: Any) -> None:
    """The encoder of the new vectors, and 300 anchors."""
    service.post("/encoders", name=target, **encoder)
    rows = anchor_rows(data, 300, 0)
    vectors = {"use": data.documents["use"][rows], target: data.documents["minilm"][rows]}
    sets = {name: each.tolist() for name, each in vectors.items()}
    service.post("/anchor-sets", name=f"set-{target}", embeddings=sets)


def connect(service: Service, place: str, data: JudgedCollection, round_: int) -> str:
    """Fill and register the store of a round. `place` is a folder, or the URL of a PostgreSQL."""
    name = f"round-{round_}"
    contents = data.documents["use"], texts_of(round_)
    filled = (
        fill_table(place, name, *contents)
        if place.startswith("postgres")
        else fill_lance(Path(place), name, *contents)
    )
    service.post("/stores", name=name, address="main", encoder="use", **filled)
    return name


@contextmanager
def busy(service: Service, target: str) -> Iterator[None]:
    """A client that embeds long batches."""
    ends = threading.Event()

    def embed() -> None:
        number = 100
        while not ends.is_set():
            number += 1
            texts = [f"{number} {text}" for text in texts_of(number)[:500]]
            service.post("/v1/embeddings", model=target, input=texts, input_type="document")

    thread = threading.Thread(target=embed)
    thread.start()
    time.sleep(1.0)
    yield
    ends.set()
    thread.join()


def in_turn(call: Callable[..., Any], times: int = 1) -> list[float]:
    queries = list(range(QUERIES_OF_ROUND)) * times
    return [timed(partial(call, query=each))[0] for each in queries]


def at_once(call: Callable[..., Any], times: int = 1) -> list[float]:
    """Milliseconds of the same calls by CLIENTS clients."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        queries = list(range(QUERIES_OF_ROUND)) * times
        return [each[0] for each in clients.map(lambda q: timed(partial(call, query=q)), queries)]


def percentile(values: Sequence[float], share: float) -> str:
    return f"{np.quantile(values, share):,.0f}"


def measure(service: Service, place: str, data: JudgedCollection) -> dict[str, list[float]]:
    """Milliseconds by kind of request."""
    found: dict[str, list[float]] = {
        name: [] for name in ("cascade", "encoder", "cold", "warm", "cascade16", "warm16")
    }
    search = searcher(service, data, "new")
    for round_ in range(ROUNDS):
        store = connect(service, place, data, round_)
        for query in range(QUERIES_OF_ROUND):  # in turns, so that all see the same machine
            cascade, native = (partial(search, store, query, each) for each in (0, NATIVE))
            cascade()
            found["cascade"].append(timed(cascade)[0])
            texts = [f"{query} {each}" for each in texts_of(round_)[:NATIVE]]
            body = {"model": "new", "input": texts, "input_type": "document"}
            found["encoder"].append(timed(partial(service.post, "/v1/embeddings", **body))[0])
            spent, answer = timed(native)
            if answer["native"]["embedded"] == NATIVE:
                found["cold"].append(spent)
            found["warm"].append(timed(native)[0])
        for name, count in (("cascade16", 0), ("warm16", NATIVE)):
            found[name] += at_once(partial(search, store, native=count), 4)
    store = connect(service, place, data, 9)
    with busy(service, "new"):
        found["busy"] = in_turn(partial(search, store, native=NATIVE, deadline_ms=DEADLINE_MS))
    return found


def measure_frozen(
    service: Service, place: str, data: JudgedCollection, pid: int
) -> dict[str, list[float]]:
    """Milliseconds of searches whose remote encoder does not answer, and without native scores."""
    search = searcher(service, data, "remote")
    store = connect(service, place, data, 10)
    search(store, 0, NATIVE)
    os.killpg(pid, signal.SIGSTOP)
    try:
        late = partial(search, store, native=NATIVE, deadline_ms=DEADLINE_MS)
        return {"frozen": in_turn(late), "frozen16": at_once(late)}
    finally:
        os.killpg(pid, signal.SIGCONT)


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "native_latency.json")
    command.add_argument("--pgvector", help="URL of a PostgreSQL with the extension vector")
    options = command.parse_args()
    data = cranfield()
    with tempfile.TemporaryDirectory() as folder, serve() as other:
        place = options.pgvector or folder
        remote = Service(other.port)
        remote.post("/encoders", name="minilm", **MODEL)
        url = f"http://127.0.0.1:{other.port}/v1"
        settings = {
            "stores": json.dumps({"main": place}),
            "remote_urls": url,
            "native_remote": "main",
            "native_texts_a_minute": 10**9,
            "native_texts_a_day": 10**9,
        }
        with serve(**settings) as server:
            service = Service(server.port)
            service.post("/encoders", name="use", kind="external", dim=512)
            make(service, data, "new", **MODEL)
            away = {"kind": "openai", "model": "minilm", "options": {"url": url}}
            make(service, data, "remote", **away)
            found = measure(service, place, data)
            found |= measure_frozen(service, place, data, other.process.pid)
    if options.pgvector is not None:
        drop_pgvector(options.pgvector)
    base, encoder = (np.quantile(found[name], 0.5) for name in ("cascade", "encoder"))
    rows = [
        ["cascade", "cascade", ""],
        ["the encoder alone, 20 texts", "encoder", ""],
        ["native 20, cold", "cold", f"cascade + encoder = {base + encoder:,.0f}"],
        ["native 20, warm", "warm", f"1.3 cascades = {1.3 * base:,.0f}"],
        ["cascade, 16 clients", "cascade16", ""],
        [
            "native 20, warm, 16 clients",
            "warm16",
            f"1.3 cascades = {1.3 * np.quantile(found['cascade16'], 0.5):,.0f}",
        ],
        ["encoder busy, deadline 500 ms", "busy", "550"],
        ["remote encoder frozen, deadline 500 ms", "frozen", "550"],
        ["the same, 16 clients", "frozen16", "550"],
    ]
    columns = ["search", "requests", "p50, ms", "p99, ms", "compare with"]
    table: Table = [
        columns,
        *(
            [
                label,
                str(len(found[name])),
                percentile(found[name], 0.5),
                percentile(found[name], 0.99),
                against,
            ]
            for label, name, against in rows
        ),
    ]
    show(Console(width=max(120, Console().width)), {"latency": table})
    write(options.json, {"latency": table}, {"milliseconds": found})


if __name__ == "__main__":
    main()
