"""What do people find after a change of encoder?

    python -m benchmarks.relevance

Writes benchmarks/results/relevance.json.

nDCG@10 by human judgements of six options, over HTTP with a real server: keep (old queries, old
store), bridge (new queries translated into the old space), cascade (the bridge's 100 candidates by
/rescore), fuse (the candidates of keep and bridge by /rescore, with the weight that the service
chooses without judgements), translate (new queries, translated documents), re-embed (new queries,
new documents). Anchors are documents drawn at
random, translators graded with their defaults. Every ordered pair of three encoders, 100, 300 and
1,000 anchors.

Data: `cranfield` in $ANCHORAGE_DATA: the collection's texts and vectors by USE, e5-small and MiniLM
(benchmarks/relevance/collection.py names the files).
"""

from __future__ import annotations

import sys
from itertools import permutations
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.common import RESULTS, Missing, parser, rounded, show, write
from benchmarks.relevance import report
from benchmarks.relevance.cells import anchor_rows, average, measure_cell
from benchmarks.relevance.client import Direction
from benchmarks.relevance.collection import JudgedCollection, cranfield
from benchmarks.service import Connection, make_set, register
from scripts.servers import serve

ANCHORS = (100, 300, 1_000)
#: draws of anchors
DRAWS = 5


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "relevance.json")
    command.add_argument("--draws", type=int, default=DRAWS, help="draws of anchors")
    command.add_argument("--method", default="graded", help="how translators are fitted")
    options = command.parse_args()
    console = Console(width=max(140, Console().width))
    try:
        data = cranfield()
    except Missing as error:
        sys.exit(str(error))
    section = rounded(measure(data, options.draws, options.method), 4)
    tables = report.tables(data.name, section)
    show(console, tables)
    write(options.json, tables, {"sections": {data.name: section}})


def measure(data: JudgedCollection, draws: int, method: str) -> dict[str, Any]:
    """All cells of a collection."""
    encoders = list(data.documents)
    pairs = list(permutations(encoders, 2))
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    # A request rescores every query: as JSON it is larger than the default limit.
    with serve(max_json=2**26) as server:
        connection = Connection(server.port)
        register(connection, {name: data.documents[name].shape[1] for name in encoders})
        work = [(anchors, draw) for anchors in ANCHORS for draw in range(draws)]
        for anchors, draw in track(work, data.name, console=Console(stderr=True)):
            rows, name = anchor_rows(data, anchors, draw), f"a{anchors}-{draw}"
            make_set(
                connection, name, {each: data.documents[each][rows].copy() for each in encoders}
            )
            for source, target in pairs:
                pair = Direction(source, target, name, method)
                cells.setdefault((source, target, anchors), []).append(
                    measure_cell(connection, data, pair)
                )
    return {
        "documents": data.size,
        "queries": len(data.judged),
        "draws": draws,
        "method": method,
        "encoders": {name: data.documents[name].shape[1] for name in encoders},
        "cells": [
            {
                "source": source,
                "target": target,
                "anchors": anchors,
                **average(cells[source, target, anchors]),
                "draws": cells[source, target, anchors],
            }
            for source, target in pairs
            for anchors in ANCHORS
        ],
    }


if __name__ == "__main__":
    main()
