"""Does a filtered search of pgvector find k rows whenever k match, and how fast beside plain SQL?

    python -m benchmarks.filters [--rows 100000]

Writes benchmarks/results/filters.json. Rows are sentences (see benchmarks/migrate/corpus.py) by
static word vectors, with an HNSW index. Each of 100 filters has a query of its own, and matches 10
to 10,000 rows: random ones, or, for every second filter, random ones of the half that is far from
the query. No other index serves a filter. Contestants take turns, three times each:

service  POST /stores/{name}/search, over HTTP
index    SQL by the index, with hnsw.iterative_scan
exact    SQL without the index: what recall is measured against
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console

from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.migrate.corpus import sentences
from benchmarks.migrate.vectors import Vectors, embedded
from benchmarks.service import JSON, Connection, register
from benchmarks.stores.clients import PgvectorClient
from scripts.servers import serve

FILTERS, K, TURNS = 100, 10, 3
COLUMNS = ["search", "10 of 10 rows", "recall@10", "of far rows", "p50, ms", "p99, ms"]
SQL = "SELECT id FROM items WHERE f{} ORDER BY embedding <=> %s LIMIT 10"
SETTINGS = {"index": "hnsw.iterative_scan = strict_order", "exact": "enable_indexscan = off"}

Search = Callable[[int], list[int]]


def matching_rows(rows: Vectors, queries: Vectors) -> list[set[int]]:
    """The rows that each filter matches."""
    draw = np.random.default_rng(47)
    sizes = np.geomspace(K, len(rows) // 10, FILTERS).round().astype(int)
    found = []
    for number, size in enumerate(sizes):
        order = np.argsort(rows @ queries[number])
        pool = order[: len(rows) // 2] if number % 2 else order
        found.append(set(draw.choice(pool, size, replace=False).tolist()))
    return found


def load(connection: Any, rows: Vectors, matching: list[set[int]]) -> None:
    """Create the table, with a column of booleans for each filter."""
    flags = ", ".join(f"f{number} boolean" for number in range(FILTERS))
    dim = rows.shape[1]
    connection.execute(
        f"CREATE TABLE items (id bigint PRIMARY KEY, embedding vector({dim}), {flags})"
    )
    with connection.cursor().copy("COPY items FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["int8", "vector", *["bool"] * FILTERS])
        for id, vector in enumerate(rows):
            copy.write_row((id, vector, *(id in each for each in matching)))
    connection.execute("CREATE INDEX ON items USING hnsw (embedding vector_cosine_ops)")
    connection.execute("VACUUM ANALYZE items")


def by_sql(connection: Any, setting: str, queries: Vectors) -> Search:
    def search(number: int) -> list[int]:
        with connection.transaction():
            connection.execute(f"SET LOCAL {setting}")
            return [id for [id] in connection.execute(SQL.format(number), [queries[number]])]

    return search


def by_service(service: Connection, queries: Vectors) -> Search:
    def search(number: int) -> list[int]:
        body = {"target": "old", "queries": queries[number][None], "k": K}
        content = {**body, "filter": {f"f{number}": True}}
        asked = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        [hits] = orjson.loads(service.ask("/stores/items/search", asked, JSON))["results"]
        return [int(each) for each in hits["ids"]]

    return search


def measure(searches: dict[str, Search]) -> Table:
    """The table. A first turn, which warms the caches, does not count."""
    found: dict[str, dict[int, list[int]]] = defaultdict(dict)
    times: dict[str, list[float]] = defaultdict(list)
    for turn in range(TURNS + 1):
        for number in range(FILTERS):
            for name, search in searches.items():
                begun = time.perf_counter()
                found[name][number] = search(number)
                if turn:
                    times[name].append(1e3 * (time.perf_counter() - begun))
    table = [COLUMNS]
    for name, lists in found.items():
        full = sum(len(each) == K for each in lists.values())
        right = [len({*lists[n]} & {*found["exact"][n]}) / K for n in range(FILTERS)]
        recalls = [f"{np.mean(part):.3f}" for part in (right, right[1::2])]
        speeds = [f"{np.percentile(times[name], part):,.0f}" for part in (50, 99)]
        table.append([name, f"{full} of {FILTERS}", *recalls, *speeds])
    return table


def main() -> None:
    arguments = parser(__doc__, RESULTS / "filters.json")
    arguments.add_argument("--rows", type=int, default=100_000)
    options = arguments.parse_args()
    client = PgvectorClient()
    try:
        every = sentences()
        order = np.random.default_rng(7).permutation(len(every))[: options.rows + FILTERS]
        lines = [every[place].line for place in order]
        vectors = embedded("static", lines)
        queries, rows = vectors[:FILTERS], vectors[FILTERS:]
        with tempfile.TemporaryDirectory() as name, client.running(Path(name)) as url:
            connection = client.connect(url)
            load(connection, rows, matching_rows(rows, queries))
            with serve(stores=json.dumps({"bench": url})) as server:
                service = Connection(server.port)
                register(service, {"old": rows.shape[1]})
                store = {"name": "items", "kind": "pgvector", "address": "bench"}
                store |= {"encoder": "old", "collection": "items"}
                service.ask("/stores", orjson.dumps(store), JSON)
                searches = {"service": by_service(service, queries)}
                searches |= {n: by_sql(connection, s, queries) for n, s in SETTINGS.items()}
                tables = {"filters": measure(searches)}
    except Missing as error:
        sys.exit(str(error))
    show(Console(width=160), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
