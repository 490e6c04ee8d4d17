"""Do native scores hold where a store has 20,000 documents?

    python -m benchmarks.native_debian [--draws 1] [--sizes 300 30 1000]

Writes benchmarks/results/native_debian.json after each block of cells: a run may be stopped.

As benchmarks/native.py, on Debian's tagged packages (benchmarks/debian.py) in LanceDB tables. The
anchors come from the store: POST /anchor-sets with `store`. Draw i has tables of its own, whose
rows are in another order, because the service draws the same places of each store.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.debian import collection, describe, packages, queries
from benchmarks.native import (
    COUNTS,
    Service,
    exact,
    fill_lance,
    search,
    served,
    tables_of,
)
from benchmarks.relevance.collection import JudgedCollection

#: numbers of anchors; with some of them the old encoder is measured, too
SIZES = (300, 30, 1_000)
SIZES_ALIVE = (300,)

Cell = Mapping[str, Any]


def fill(
    service: Service, data: JudgedCollection, texts: Sequence[str], folder: Path, draws: int
) -> None:
    """Connect a table of each encoder and draw, with the rows in an order of the draw."""
    for encoder, draw in itertools.product(data.documents, range(draws)):
        order = np.random.default_rng(draw).permutation(data.size).tolist()
        filled = fill_lance(folder, f"{encoder}-{draw}", data.documents[encoder], texts, order)
        service.post(
            "/stores", name=f"{encoder}-{draw}", address="lancedb", encoder=encoder, **filled
        )


def make_anchors(service: Service, encoder: str, others: list[str], draw: int, size: int) -> None:
    """A set of `size` rows of the store, which the service draws and embeds."""
    store = f"{encoder}-{draw}"
    body = {"name": f"{store}-{size}", "store": store, "encoders": others, "size": size}
    job = service.post("/anchor-sets", **body)
    while job["state"] not in ("succeeded", "failed", "cancelled"):
        time.sleep(0.2)
        job = service.http.get(f"/jobs/{job['id']}").json()
    if job["state"] != "succeeded" or job["result"]["size"] != size:
        raise RuntimeError(str(job))


def blocks(
    service: Service, data: JudgedCollection, sizes: Sequence[int], draws: int
) -> Iterator[list[dict[str, Any]]]:
    """The cells of all pairs: first without anchors, then of each draw and number of anchors."""
    own = {encoder: exact(data, encoder) for encoder in data.documents}

    def measure(source: str, target: str, **cell: Any) -> dict[str, Any]:
        more: dict[str, Any] = {"mode": "cascade"}
        if cell["old"] == "runs":
            more = {"mode": "fuse", "old_queries": data.queries[source]}
        if cell["anchors"]:
            more |= {"anchor_set": f"{source}-{cell['draw']}-{cell['anchors']}"}
            more |= {"method": "graded"}
        about = {"store": "lancedb", "source": source, "target": target, **cell}
        about |= {"keep": own[source], "re-embed": own[target]}
        found = search(
            service,
            data,
            f"{source}-{cell['draw']}",
            target=target,
            queries=data.queries[target],
            native=cell["native"],
            native_deadline_ms=30_000,
            **more,
        )
        return about | found

    pairs = list(itertools.permutations(data.documents, 2))
    yield [
        measure(*pair, old="runs", anchors=0, draw=0, native=count)
        for pair, count in itertools.product(pairs, COUNTS[1:])
    ]
    for size, draw in itertools.product(sizes, range(draws)):
        for encoder in data.documents:
            others = [each for each in data.documents if each != encoder]
            make_anchors(service, encoder, others, draw, size)
        ways = ("is gone", "runs") if size in SIZES_ALIVE else ("is gone",)
        for old in ways:
            yield [
                measure(*pair, old=old, anchors=size, draw=draw, native=count)
                for pair, count in itertools.product(pairs, COUNTS)
            ]


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "native_debian.json")
    command.add_argument("--draws", type=int, default=1, help="draws of anchors")
    command.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="anchors")
    options = command.parse_args()
    try:
        documents = packages()
        measured, others = queries(documents)
        print(describe(documents, measured, others), flush=True)
        data = collection(documents, measured)
    except Missing as error:
        sys.exit(str(error))
    texts = [one.text for one in documents]
    by_text = {
        name: dict(zip(texts, vectors, strict=True)) for name, vectors in data.documents.items()
    }
    cells: list[dict[str, Any]] = []
    tables: dict[str, Table] = {}
    with tempfile.TemporaryDirectory() as name, served({"lancedb": name}, by_text) as service:
        fill(service, data, texts, Path(name), options.draws)
        for block in blocks(service, data, options.sizes, options.draws):
            cells += block
            print(f"{time.strftime('%H:%M:%S')} {len(cells)} cells", flush=True)
            if any(each["old"] == "is gone" for each in cells):
                tables = tables_of(cells)
                write(options.json, tables, {"cells": cells})
    show(Console(width=max(160, Console().width)), tables)


if __name__ == "__main__":
    main()
