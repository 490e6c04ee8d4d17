"""Which requests and jobs does a fault lose, and what can an outsider do to other clients?
Two tables.

    python -m benchmarks.faults             # all, about 20 minutes on 2 cores
    python -m benchmarks.faults redis-lost  # one of them; the results of the others stay
    python -m benchmarks.faults --keep      # keep logs and data, and print where they are

Writes benchmarks/results/faults.json.

Each fault starts a Redis, a PostgreSQL cluster, `anchorage serve` and `anchorage worker` on free
ports below a temporary folder, and touches no process that runs already. It needs redis-server (or
valkey-server), initdb and pg_ctl; the full disk needs root.

Clients wait as Retry-After says and send a creating request again under its Idempotency-Key. Every
vector that comes back is compared with the one that app.maths computed before the fault, to 1e-6 of
its largest number. In the end the database is checked: each creation has one row and one audit row;
each job succeeded, with one set, the right pairs and the right vectors.

The last five columns must be 0: 5xx other than 503 with Retry-After; dropped requests (a broken
connection that the fault does not explain, or never the right status); lost jobs or answered
resources; effects that happened twice; wrong vectors.

The attacks are those of an outsider with one key or none (benchmarks/faults/attacks). No process
may be killed, /livez must answer within the time that the table names, and no client may get a 500.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from app.demo.run import new_table
from benchmarks.common import RESULTS, Missing, parser, read
from benchmarks.common import write as write_report
from benchmarks.faults.attacks.attacks import ATTACKS
from benchmarks.faults.attacks.scene import COLUMNS as ATTACK_COLUMNS
from benchmarks.faults.attacks.scene import Outcome
from benchmarks.faults.deployment import LEASE_S, end_on_sigterm
from benchmarks.faults.outages import (
    apis_killed,
    apis_rolled,
    disk_full,
    stores_lost,
    workers_killed,
)
from benchmarks.faults.row import NEVER, Row, Stage
from benchmarks.faults.traffic import Tally

FAULTS: dict[str, Callable[[Stage], Row]] = {
    "worker-killed": workers_killed.killed,
    "worker-paused": workers_killed.paused,
    "redis-lost": stores_lost.redis_lost,
    "postgres-restarted": stores_lost.postgres_restarted,
    "postgres-silent": stores_lost.postgres_silent,
    "commit-lost": stores_lost.commits_lost,
    "api-killed": apis_killed.killed,
    "disk-full": disk_full.full,
    "api-rolled": apis_rolled.rolled,
}

#: fields of a tally, and their headings in the table
COLUMNS = {
    "requests": "requests",
    "ok": "2xx",
    "refused": "4xx",
    "busy": "503, later",
    "broken": "other 5xx",
    "dropped": "dropped",
    "lost": "lost",
    "twice": "twice",
    "wrong": "wrong",
}


def main() -> None:
    """Run the faults and attacks, print and write the tables; exit with 1 if a condition did not
    hold.
    """
    arguments = parser(__doc__, RESULTS / "faults.json")
    arguments.add_argument("names", nargs="*", metavar="fault", help=", ".join([*FAULTS, *ATTACKS]))
    arguments.add_argument("--keep", action="store_true", help="keep logs and data")
    options = arguments.parse_args()
    if unknown := set(options.names) - {*FAULTS, *ATTACKS}:
        known = ", ".join([*FAULTS, *ATTACKS])
        arguments.error(f"no such fault: {', '.join(sorted(unknown))}. There are {known}.")
    names = options.names or [*FAULTS, *ATTACKS]
    torch.set_num_threads(1)
    end_on_sigterm()
    console = Console(width=max(180, Console().width))
    folder = Path(tempfile.mkdtemp(prefix="anchorage-faults-"))
    folder.chmod(0o711)  # PostgreSQL's user must reach its own folder below
    try:
        rows = {name: measure(name, folder, console) for name in names if name in FAULTS}
        outcomes = {name: attack(name, folder, console) for name in names if name in ATTACKS}
    except Missing as error:
        sys.exit(f"{error}: this needs Redis (or Valkey) and PostgreSQL installed")
    finally:
        if options.keep:
            console.print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if rows:
        show(rows, console)
    if outcomes:
        show_attacks(outcomes, console)
    write(options.json, rows, outcomes)
    sys.exit(
        not all(row.good for row in rows.values())
        or not all(each.good for found in outcomes.values() for each in found)
    )


def measure(name: str, folder: Path, console: Console) -> Row:
    """Run one fault and print its progress."""
    began = time.monotonic()
    say = saying(name, console)
    say("starting Redis, PostgreSQL, APIs and workers")
    try:
        row = FAULTS[name](Stage(folder, say))
    except (TimeoutError, RuntimeError) as error:
        row = Row(done=f"not finished: {error}")
        row.tally.add("lost", f"the fault could not be done to its end: {error}")
    row.seconds = time.monotonic() - began
    say(
        f"skipped: {row.skipped}" if row.skipped else f"done, {row.tally.compared} answers compared"
    )
    for fault in row.tally.faults:
        console.print(f"          {fault}", style="red", highlight=False)
    return row


def attack(name: str, folder: Path, console: Console) -> list[Outcome]:
    """Run one attack and print its progress."""
    say = saying(name, console)
    try:
        return ATTACKS[name](Stage(folder, say))
    except (TimeoutError, RuntimeError) as error:
        say(f"not finished: {error}")
        return [Outcome(f"not finished: {error}", killed=True)]


def saying(name: str, console: Console) -> Callable[[str], None]:
    """A function that prints a line of progress."""
    began = time.monotonic()
    return lambda text: console.print(
        f"{time.monotonic() - began:6.1f} s  {name}: {text}", style="dim", highlight=False
    )


def show_attacks(outcomes: dict[str, list[Outcome]], console: Console) -> None:
    """Print the attacks' table."""
    table = new_table("Attacks by an outsider", ("attack", "what was sent"), ATTACK_COLUMNS)
    for column in (table.columns[1], table.columns[2], table.columns[-1]):
        column.no_wrap = False
    for name, found in outcomes.items():
        for outcome in found:
            table.add_row(
                name, outcome.what, *outcome.figures(), style="" if outcome.good else "bold red"
            )
    console.print(table)


def show(rows: dict[str, Row], console: Console) -> None:
    """Print the table."""
    title = "Faults of real processes; the last five columns must be 0"
    table = new_table(title, ("fault", "what was done"), tuple(COLUMNS.values()))
    table.columns[1].no_wrap = False
    for name, row in rows.items():
        if row.skipped:
            table.add_row(name, f"skipped: {row.skipped}")
        else:
            table.add_row(
                name, row.done, *(_figure(field, getattr(row.tally, field)) for field in COLUMNS)
            )
    console.print(table)


def _figure(name: str, value: int) -> str:
    return f"[bold red]{value:,}[/]" if name in NEVER and value else f"{value:,}"


def write(path: Path, rows: dict[str, Row], outcomes: dict[str, list[Outcome]]) -> None:
    """Write these rows into the report; the rows of other faults and attacks stay."""
    before = read(path)
    known = {**before.get("faults", {}), **{name: described(row) for name, row in rows.items()}}
    attacked = {
        **before.get("attacks", {}),
        **{name: [each.described() for each in found] for name, found in outcomes.items()},
    }
    report = {
        "about": __doc__.split("\n\n", 2)[2],
        "cores": os.cpu_count(),
        "lease_s": LEASE_S,
        "faults": {name: known[name] for name in FAULTS if name in known},
        "attacks": {name: attacked[name] for name in ATTACKS if name in attacked},
    }
    write_report(path, report)


def described(row: Row) -> dict[str, Any]:
    """A row for the report."""
    if row.skipped:
        return {"skipped": row.skipped}
    counted = {
        item.name: getattr(row.tally, item.name)
        for item in fields(Tally)
        if not item.name.startswith("_")
    }
    return {"done": row.done, "seconds": round(row.seconds, 1), **counted, **row.more}


if __name__ == "__main__":
    main()
