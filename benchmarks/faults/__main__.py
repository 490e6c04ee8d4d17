"""Which requests and jobs does a fault lose?

    python -m benchmarks.faults             # all, about 20 minutes on 2 cores
    python -m benchmarks.faults redis-lost  # one of them
    python -m benchmarks.faults --keep      # keep logs and data, and print where they are

Writes benchmarks/results/faults.json.

Each fault starts a Redis, a PostgreSQL cluster, `anchorage serve` and `anchorage worker` on free
ports below a temporary folder, and touches no process that runs already. It needs redis-server (or
valkey-server), initdb and pg_ctl.

Clients wait as Retry-After says and send a creating request again. Every
vector that comes back is compared with the one that app.maths computed before the fault, to 1e-6 of
its largest number. In the end the database is checked: each creation has one row and one audit row;
each job succeeded, with one set, the right pairs and the right vectors.

The last five columns must be 0: 5xx other than 503 with Retry-After; dropped requests (a broken
connection that the fault does not explain, or never the right status); lost jobs or answered
resources; effects that happened twice; wrong vectors.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.faults.deployment import end_on_sigterm
from benchmarks.faults.outages import apis_killed, stores_lost, workers_killed
from benchmarks.faults.row import Row, Stage

FAULTS: dict[str, Callable[[Stage], Row]] = {
    "worker-killed": workers_killed.killed,
    "worker-paused": workers_killed.paused,
    "redis-lost": stores_lost.redis_lost,
    "postgres-restarted": stores_lost.postgres_restarted,
    "postgres-silent": stores_lost.postgres_silent,
    "commit-lost": stores_lost.commits_lost,
    "api-killed": apis_killed.killed,
}

#: fields of a tally, and their headings in the table
COLUMNS = {
    "requests": "requests",
    "ok": "2xx",
    "busy": "503, later",
    "broken": "other 5xx",
    "dropped": "dropped",
    "lost": "lost",
    "twice": "twice",
    "wrong": "wrong",
}


def main() -> None:
    """Run the faults, print and write the table; exit with 1 if a condition did not hold."""
    arguments = parser(__doc__, RESULTS / "faults.json")
    arguments.add_argument("names", nargs="*", metavar="fault", help=", ".join(FAULTS))
    arguments.add_argument("--keep", action="store_true", help="keep logs and data")
    options = arguments.parse_args()
    if unknown := set(options.names) - FAULTS.keys():
        known = ", ".join(FAULTS)
        arguments.error(f"no such fault: {', '.join(sorted(unknown))}. There are {known}.")
    torch.set_num_threads(1)
    end_on_sigterm()
    console = Console(width=max(180, Console().width))
    folder = Path(tempfile.mkdtemp(prefix="anchorage-faults-"))
    folder.chmod(0o711)  # PostgreSQL's user must reach its own folder below
    try:
        rows = {name: measure(name, folder, console) for name in options.names or FAULTS}
    except Missing as error:
        sys.exit(f"{error}: this needs Redis (or Valkey) and PostgreSQL installed")
    finally:
        if options.keep:
            console.print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    tables = {"faults": fault_table(rows)}
    show(console, tables)
    write(options.json, tables)
    sys.exit(not all(row.good for row in rows.values()))


def measure(name: str, folder: Path, console: Console) -> Row:
    """Run one fault and print its progress."""
    say = saying(name, console)
    say("starting Redis, PostgreSQL, APIs and workers")
    try:
        row = FAULTS[name](Stage(folder, say))
    except (TimeoutError, RuntimeError) as error:
        row = Row(done=f"not finished: {error}")
        row.tally.add("lost", f"the fault could not be done to its end: {error}")
    say(f"done, {row.tally.compared} answers compared")
    for fault in row.tally.faults:
        console.print(f"          {fault}", style="red", highlight=False)
    return row


def saying(name: str, console: Console) -> Callable[[str], None]:
    """A function that prints a line of progress."""
    began = time.monotonic()
    return lambda text: console.print(
        f"{time.monotonic() - began:6.1f} s  {name}: {text}", style="dim", highlight=False
    )


def fault_table(rows: dict[str, Row]) -> Table:
    """What was done to the service, and what was counted; the last five columns must be 0."""
    table = [["fault", "what was done", *COLUMNS.values()]]
    for name, row in rows.items():
        counts = [f"{getattr(row.tally, field)}" for field in COLUMNS]
        table.append([name, row.done, *counts])
    return table


if __name__ == "__main__":
    main()
