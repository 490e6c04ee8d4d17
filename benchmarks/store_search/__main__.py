"""What does a search of a store with a new encoder find, and what does it cost?

    python -m benchmarks.store_search --pgvector postgresql://postgres@localhost/postgres
    python -m benchmarks.store_search                     # without pgvector

Writes benchmarks/results/store_search.json.

nDCG@10 by human judgements on Cranfield. Section `before`: POST /stores/{name}/search, its cascade
with 100 candidates, over unchanged stores. Times of single queries over HTTP, with those of the
store's own search by the old encoder's query, for the same k. Section `spaces`: which
encoder a sample of 50 rows comes from.

Anchors are documents drawn at random, translators graded with their defaults. Data: `cranfield`
(benchmarks/relevance/collection.py names the files) and `text-embeddings` in $ANCHORAGE_DATA, 250
texts by 13 encoders, one npy file each. The PostgreSQL needs the extension `vector`; the schema
`anchorage_store_search` in it is created anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common import RESULTS, Missing, parser, show, write
from benchmarks.relevance.collection import cranfield
from benchmarks.store_search import filling, report
from benchmarks.store_search.before import PAIRS, measure_before
from scripts.servers import serve


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "store_search.json")
    command.add_argument("--pgvector", help="URL of a PostgreSQL with the extension vector")
    command.add_argument("--draws", type=int, default=3, help="draws of anchors")
    command.add_argument("--anchors", type=int, default=300)
    options = command.parse_args()
    try:
        data = cranfield()
    except Missing as error:
        sys.exit(str(error))
    console = Console(width=max(140, Console().width))
    found = before(data, options)
    tables = report.tables(found)
    show(console, tables)
    write(options.json, tables, found)
    if options.pgvector is not None:
        filling.drop_pgvector(options.pgvector)


def before(data: Any, options: Any) -> dict[str, Any]:
    """Every pair of encoders in every kind of store."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        addresses = {"local": str(folder)}
        stores = {}
        for encoder in {source for source, _ in PAIRS}:
            vectors = data.documents[encoder]
            stores[f"local-{encoder}"] = ("local", filling.fill_local(folder, encoder, vectors))
            if options.pgvector is not None:
                addresses["pgvector"] = options.pgvector
                definition = filling.fill_pgvector(options.pgvector, encoder, vectors)
                stores[f"pgvector-{encoder}"] = ("pgvector", definition)
        with serve(stores=json.dumps(addresses)) as server:
            return measure_before(server, data, stores, options.anchors, options.draws)


if __name__ == "__main__":
    main()
