"""The default search through a real service: does it find what the functions find, and how long?

    python -m benchmarks.search.service

Writes benchmarks/results/search_service.json: nDCG@10 on Cranfield over HTTP, from use to minilm,
whose vectors an endpoint has prepared, beside that of the functions (benchmarks/search/cells.py);
then the time of a search of 5,600 texts of six collections with MiniLM in the service: the cascade
alone, the default search of texts that were never embedded (cold) and of the same again (warm), by
one client and by 16, and while another client has texts embedded without pause.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import lancedb
import numpy as np
import orjson
import pyarrow as pa
import torch
from rich.console import Console

from app.search.scoring import USUAL_NATIVE
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.judged import judgements_of, load
from benchmarks.prepared import endpoint
from benchmarks.search.cells import draws_of, measure_pair, ndcg
from benchmarks.search.sides import CHOSE, collection_vectors, side
from benchmarks.service import Matrix, packed
from scripts.servers import serve

OLD, NEW, ANCHORS = "use", "minilm", 300
CLIENTS, SEARCHES = (1, 16), 40


class Service:
    """Calls of the service. Each must succeed."""

    def __init__(self, port: int) -> None:
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)

    def post(self, path: str, **body: Any) -> Any:
        """The answer. Raises RuntimeError for an error."""
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        while True:
            answer = self.http.post(
                path, content=content, headers={"Content-Type": "application/json"}
            )
            if answer.status_code != 429:
                break
            time.sleep(float(answer.headers["retry-after"]))  # as our client does
        if answer.status_code >= 300:
            raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json()


def prepared(known: Mapping[str, Matrix], model: str, texts: Sequence[str]) -> Matrix:
    """The vectors of these texts."""
    # The service asks for the dimension with texts of its own.
    return np.stack([known.get(text, next(iter(known.values()))) for text in texts])


def fill(folder: Path, vectors: Matrix, texts: Sequence[str]) -> dict[str, Any]:
    """Create a table with the rows."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table({"id": list(range(len(texts))), "text": list(texts), "vector": rows})
    lancedb.connect(str(folder)).create_table("items", table)
    return {
        "name": "docs",
        "address": "lancedb",
        "kind": "lancedb",
        "collection": "items",
        "vector_field": "vector",
        "text_field": "text",
        "encoder": OLD,
    }


@contextmanager
def served(folder: str, **settings: object) -> Iterator[Service]:
    stores = json.dumps({"lancedb": {"url": folder, "remote_texts": True}})
    with serve(stores=stores, native_texts_a_minute=10**9, **settings) as server:
        yield Service(server.port)


def same_as_functions() -> Table:
    """nDCG@10 over HTTP and by the functions, by what is there."""
    texts = load("cranfield")
    judged = judgements_of(texts)
    old, new = (side(texts, judged, each) for each in (OLD, NEW))
    [(_, rows)] = draws_of(judged.size, ANCHORS, 1)
    by_functions = measure_pair(old, new, judged, ANCHORS, 1, None, lambda *_: {})
    by_functions |= {
        f"{name}, no anchors": value
        for name, value in measure_pair(old, new, judged, 0, 1, None, lambda *_: {}).items()
    }
    known = dict(zip(texts.documents, new.documents.numpy(), strict=True))
    table = [["has", "over HTTP", "functions"]]
    with (
        tempfile.TemporaryDirectory() as folder,
        endpoint(0, partial(prepared, known)) as url,
        served(folder, remote_urls=url) as service,
    ):
        service.post("/encoders", name=OLD, dim=old.documents.shape[1])
        service.post("/encoders", name=NEW, kind="openai", model=NEW, options={"url": url})
        pairs = {OLD: packed(old.documents[rows].numpy()), NEW: packed(new.documents[rows].numpy())}
        service.post("/anchor-sets", name="pairs", embeddings=pairs)
        service.post("/stores", **fill(Path(folder), old.documents.numpy(), texts.documents))
        asked, by_old = new.queries[judged.rows].numpy(), old.queries[judged.rows].numpy()
        for name, runs, count_, anchors in (
            ("old and texts: first, no anchors", True, 100, None),
            ("old and texts: first", True, 100, "pairs"),
            ("texts: default", False, 100, "pairs"),
            ("old: first", True, 0, "pairs"),
            ("neither: default", False, 0, "pairs"),
        ):
            found: list[list[int]] = []
            for start in range(0, len(asked), 15):
                body: dict[str, Any] = {"queries": asked[start : start + 15], "native": count_}
                if runs:
                    body |= {"mode": "fuse", "old_queries": by_old[start : start + 15]}
                answer = service.post(
                    "/stores/docs/search",
                    target=NEW,
                    anchor_set=anchors,
                    k=10,
                    exact=True,
                    deadline_ms=30_000,
                    **body,
                )
                found += [[int(each) for each in one["ids"]] for one in answer["results"]]
            value = ndcg(torch.tensor(found), judged)
            table.append([name, f"{value:.4f}", f"{by_functions[name]:.4f}"])
    return table


def embed(service: Service, texts: Sequence[str]) -> list[list[float]]:
    """Vectors by the new encoder."""
    answer = service.post("/v1/embeddings", model=NEW, input=texts)
    return [each["embedding"] for each in answer["data"]]


def timed(search: Callable[[int], Any], clients: int, numbers: Sequence[int]) -> list[float]:
    """The milliseconds of each search, by so many clients at once."""
    taken: list[float] = []
    left = iter(numbers)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            began = time.perf_counter()
            search(number)
            taken.append((time.perf_counter() - began) * 1e3)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return taken


def latencies() -> Table:
    """Milliseconds of a search by what is asked; `texts` are those embedded and those cached."""
    texts = [load(name) for name in CHOSE]
    parts = [collection_vectors(each, OLD) for each in texts]
    documents, queries = (torch.cat([each[place] for each in parts]).numpy() for place in (0, 1))
    every = [text for each in texts for text in each.documents]
    asked = [text for each in texts for text in each.queries]
    order = np.random.default_rng(3).permutation(len(asked))
    table = [["search", "clients", "p50, ms", "p99, ms", "longest, ms", "texts of a query"]]
    numbers = count()
    with tempfile.TemporaryDirectory() as folder, served(folder) as service:
        service.post("/encoders", name=OLD, dim=documents.shape[1])
        service.post("/encoders", name=NEW, kind="sentence-transformers", model="all-MiniLM-L6-v2")
        rows = torch.randperm(len(every), generator=torch.Generator().manual_seed(1))[:ANCHORS]
        pairs = {
            OLD: packed(documents[rows]),
            NEW: embed(service, [every[row] for row in rows]),
        }
        service.post("/anchor-sets", name="pairs", embeddings=pairs)
        service.post("/stores", **fill(Path(folder), documents, every))
        known: list[float] = []

        def search(number: int, **body: Any) -> None:
            row = int(order[number % len(order)])
            answer = service.post(
                "/stores/docs/search",
                target=NEW,
                inputs=[asked[row]],
                anchor_set="pairs",
                k=10,
                **body,
            )
            if answer["native"]:
                known.append(answer["native"]["embedded"] + answer["native"]["cached"])

        cascade = partial(search, mode="cascade", native=0)

        def default(number: int, **body: Any) -> None:
            row = int(order[number % len(order)])
            search(number, mode="fuse", old_queries=queries[row : row + 1], **body)

        def measure(
            name: str, clients: int, chosen: Sequence[int], what: Callable[[int], None] = default
        ) -> None:
            known.clear()
            taken = timed(what, clients, chosen)
            p50, p99 = np.percentile(taken, [50, 99])
            table.append(
                [name, str(clients), f"{p50:.0f}", f"{p99:.0f}", f"{max(taken):.0f}",
                 f"{np.mean(known or [0]):.0f}"]
            )  # fmt: skip

        for clients in CLIENTS:
            chosen = [next(numbers) for _ in range(SEARCHES)]
            measure("cascade, no texts", clients, chosen, cascade)
            measure("old and translated, no texts", clients, chosen, partial(default, native=0))
            measure("default, cold", clients, chosen)
            while np.mean(known) < USUAL_NATIVE[0]:  # the rest is embedded after each deadline
                known.clear()
                timed(partial(default, deadline_ms=5_000), 4, chosen)
            measure("default, warm", clients, chosen)
        stop = threading.Event()

        def busy() -> None:
            while not stop.is_set():
                embed(service, every[:32])

        thread = threading.Thread(target=busy)
        thread.start()
        measure("default, cold, encoder busy", 1, [next(numbers) for _ in range(SEARCHES)])
        stop.set()
        thread.join()
    return table


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "search_service.json")
    command.add_argument("--only", choices=("same", "latency"), help="one of the two tables")
    options = command.parse_args()
    parts = {"same": same_as_functions, "latency": latencies}
    try:
        tables = {name: made() for name, made in parts.items() if options.only in (None, name)}
    except Missing as error:
        sys.exit(str(error))
    show(Console(width=140), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
