"""How fast does a search learn from what it reads?

    python -m benchmarks.native_learning [--debian] [--pairs use-minilm ...] [--orders random]
        [--queries 500]

Writes benchmarks/results/native_learning.json.

Over HTTP, a LanceDB store with `learn: true`, for ordered pairs of three unrelated encoders: 30
anchors are made from the store, then queries arrive and search with `native: 20`. Their order is
random (each once) or Zipf (drawn by rank, so that few queries are most of the traffic). nDCG@10 is
measured on judged queries that never arrive, through a second registration of the same table that
learns nothing. Cranfield has too few queries: half of the judged ones arrive, and each document's
own vector is a query too. `unread` is the mean cosine of translated and native vectors of
rows that no search has read.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.debian import collection, packages, queries
from benchmarks.native import Service, exact, fill_lance, search, served
from benchmarks.relevance.collection import CRANFIELD, JudgedCollection, cranfield
from benchmarks.synthetic import Matrix

STEPS = (0, 50, 100, 250, 500, 1_000, 2_000)
ANCHORS = 30
NATIVE = 20
AT_ONCE = 5
TRANSLATED_AT_ONCE = 500


@dataclass(frozen=True, eq=False)
class Stream:
    """A collection whose queries are measured, and encoder -> (q, d) the queries that arrive."""

    measured: JudgedCollection
    texts: list[str]
    arriving: Mapping[str, Matrix]


def cranfield_stream() -> Stream:
    """Half of the judged queries arrive, and each document's own vector. Raises Missing."""
    data = cranfield()
    documents = json.loads((CRANFIELD / "cranfield.json").read_text(encoding="utf-8"))["docs"]
    order = np.random.default_rng(0).permutation(data.judged)
    measured, arriving = sorted(order[::2].tolist()), sorted(order[1::2].tolist())
    place = {row: number for number, row in enumerate(measured)}
    held = JudgedCollection(
        data.name,
        {name: each[measured] for name, each in data.queries.items()},
        data.documents,
        [(place[q], d, grade) for q, d, grade in data.relevance if q in place],
    )
    return Stream(
        held,
        [each["text"] for each in documents],
        {
            name: np.concatenate([data.queries[name][arriving], data.documents[name]])
            for name in data.documents
        },
    )


def debian_stream() -> Stream:
    """The queries that `benchmarks.debian` keeps for learning arrive. Raises Missing."""
    documents = packages()
    measured, others = queries(documents)
    return Stream(
        collection(documents, measured),
        [each.text for each in documents],
        collection(documents, others).queries,
    )


def arrivals(stream: Stream, order: str, count: int) -> list[int]:
    """Rows of queries in the order in which they arrive."""
    draw = np.random.default_rng(1)
    every = draw.permutation(len(next(iter(stream.arriving.values()))))
    if order == "random":
        return [int(each) for each in every[:count]]
    weights = 1 / np.arange(1, len(every) + 1)
    return [int(each) for each in draw.choice(every, count, p=weights / weights.sum())]


def wait_for_lessons(service: Service) -> None:
    while any(
        each["kind"] == "learn" and each["finished_at"] is None
        for each in service.http.get("/jobs", params={"limit": 50}).json()["jobs"]
    ):
        time.sleep(0.1)


def run(
    service: Service, stream: Stream, pair: tuple[str, str], order: str, count: int
) -> list[dict[str, Any]]:
    """The cells of one stream of queries."""
    source, target = pair
    data = held = stream.measured
    arriving = arrivals(stream, order, count)
    store, anchors = f"{source}-{target}-{order}", f"set-{source}-{target}-{order}"
    cells: list[dict[str, Any]] = []
    read: set[int] = set()
    done = wanted = 0
    for step in [each for each in STEPS if each <= count]:
        while done < step:
            rows = arriving[done : min(done + AT_ONCE, step)]
            found = service.post(
                f"/stores/{store}/search",
                **{"target": target, "queries": stream.arriving[target][rows], "k": NATIVE},
                **{"anchor_set": anchors, "mode": "cascade", "native": NATIVE},
            )
            done += len(rows)
            scored_rows = [int(each) for one in found["results"] for each in one["native"]]
            read |= set(scored_rows)
            wanted += len(scored_rows)
        wait_for_lessons(service)
        body = {"target": target, "queries": held.queries[target], "anchor_set": anchors}
        scored = {
            name: search(service, held, f"eval-{source}", native=n, mode="cascade", **body)["ndcg"]
            for name, n in (("cascade", 0), ("native 20", NATIVE))
        }
        cells.append(
            {"source": source, "target": target, "order": order, "queries": step}
            | {"keep": exact(held, source), "re-embed": exact(held, target)}
            | scored
            | {"anchors": service.http.get(f"/anchor-sets/{anchors}").json()["size"]}
            # A text is embedded once; those of the measured queries are not counted.
            | {"embedded a query": len(read) / max(1, step)}
            | {"hit rate": 1 - len(read) / wanted if wanted else 0.0, "read": len(read) / data.size}
            | {"unread": unread(service, data, pair, anchors, read)}
        )
    return cells


def unread(
    service: Service, data: JudgedCollection, pair: tuple[str, str], anchors: str, read: set[int]
) -> float:
    """The mean cosine of translations with native vectors, of rows that no search has read."""
    source, target = pair
    rows = np.setdiff1d(np.arange(data.size), sorted(read))[:TRANSLATED_AT_ONCE]
    if not len(rows):
        return float("nan")
    vectors: Matrix = np.array(
        service.post(
            "/translate",
            **{"source": source, "target": target, "anchor_set": anchors},
            vectors=data.documents[source][rows],
        )["vectors"]
    )
    native = data.documents[target][rows]
    dots = (vectors * native).sum(axis=1)
    return float((dots / np.linalg.norm(vectors, axis=1) / np.linalg.norm(native, axis=1)).mean())


def tables_of(cells: list[dict[str, Any]], name: str) -> dict[str, Table]:
    columns = ["old -> new", "order", "queries", "keep", "re-embed", "cascade", "native 20"]
    numbers = ("keep", "re-embed", "cascade", "native 20")
    more = ["anchors", "texts a query", "hit rate", "rows read", "cosine of unread rows"]
    rows = [
        [
            f"{each['source']} -> {each['target']}",
            each["order"],
            f"{each['queries']:,}",
            *(f"{each[name]:.3f}" for name in numbers),
            f"{each['anchors']:,}",
            f"{each['embedded a query']:.1f}",
            f"{each['hit rate']:.2f}",
            f"{each['read']:.1%}".replace("%", " %"),
            f"{each['unread']:.3f}",
        ]
        for each in cells
    ]
    return {name: [[*columns, *more], *rows]}


def measure(
    stream: Stream, pairs: list[tuple[str, str]], orders: list[str], count: int
) -> Iterator[list[dict[str, Any]]]:
    """The cells of each stream, which has its own store and its own service."""
    data, texts = stream.measured, stream.texts
    by_text = {
        name: dict(zip(texts, vectors, strict=True)) for name, vectors in data.documents.items()
    }
    for pair, order in itertools.product(pairs, orders):
        vectors = {each: by_text[each] for each in pair}
        with tempfile.TemporaryDirectory() as name, served({"lancedb": name}, vectors) as service:
            source, target = pair
            filled = fill_lance(Path(name), source, data.documents[source], texts)
            where = {"address": "lancedb", "encoder": source, **filled}
            store = f"{source}-{target}-{order}"
            service.post("/stores", name=store, learn=True, **where)
            service.post("/stores", name=f"eval-{source}", **where)
            made = {"store": store, "encoders": [target], "size": ANCHORS}
            job = service.post("/anchor-sets", name=f"set-{store}", **made)["id"]
            while not service.http.get(f"/jobs/{job}").json()["finished_at"]:
                time.sleep(0.1)
            yield run(service, stream, pair, order, count)


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "native_learning.json")
    command.add_argument("--pairs", nargs="*", help="such as use-minilm; default: all six")
    command.add_argument("--queries", type=int, default=500, help="queries that arrive")
    command.add_argument("--debian", action="store_true", help="measure benchmarks.debian")
    command.add_argument(
        "--orders", nargs="*", default=["random", "zipf"], help="orders of the queries"
    )
    options = command.parse_args()
    name = "debian" if options.debian else "learning"
    made = debian_stream() if options.debian else cranfield_stream()
    every = list(itertools.permutations(made.measured.documents, 2))
    pairs = [each for each in every if not options.pairs or "-".join(each) in options.pairs]
    cells: list[dict[str, Any]] = []
    for found in measure(made, pairs, options.orders, options.queries):
        cells += found
        show(Console(width=max(160, Console().width)), tables_of(found, name))
        write(options.json, tables_of(cells, name), {"cells": cells})


if __name__ == "__main__":
    main()
