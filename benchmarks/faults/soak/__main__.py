"""Does the service stay correct, and stay the same size, under every kind of load at once for
minutes or hours?

    python -m benchmarks.faults.soak               # 10 minutes on 2 cores
    python -m benchmarks.faults.soak --minutes 60

Writes benchmarks/results/soak.json.

Two APIs and a worker share a separate PostgreSQL and Redis. Clients make anchor sets,
translate through both APIs, delete the sets and make them again with other content under the same
name; they queue jobs, cancel some of them, and read them back; they hang up in the middle of a
request and in the middle of an answer.

Each translation must be one that was right at some moment between its request and its answer: by
one version of the set, to 1e-6 of its largest number, and by none whose deletion was answered
before the request was sent. The exit status is 1 if an answer is anything else, if a request gets a
5xx other than 503 with Retry-After, or if a process ends. The report also says how the memory, the
open files and the tables grew.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.faults.deployment import Deployment, Process, deployment, end_on_sigterm, wait_until
from benchmarks.faults.soak.clients import Book, Remaker, cancel_jobs, hang_up, translate
from benchmarks.faults.soak.samples import Sample, Samples

#: sets that are made again and again, each by its own client, and clients that translate by any of
#: them
SETS = 4
TRANSLATORS = 4
HANG_UPS = 2

SAMPLE_S = 10
#: share of the time after which memory should no longer grow
WARM_UP = 0.3


def main() -> None:
    """Soak, print and write the report; exit with 1 if something was wrong."""
    arguments = parser(__doc__, RESULTS / "soak.json")
    arguments.add_argument("--minutes", type=float, default=10)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    end_on_sigterm()
    console = Console(width=max(120, Console().width))
    with tempfile.TemporaryDirectory(prefix="anchorage-soak-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL's user must reach its own folder below
        try:
            report = soak(folder / "soak", options.minutes * 60, console)
        except Missing as error:
            sys.exit(f"{error}: this needs Redis (or Valkey) and PostgreSQL installed")
    tables = tables_of(report)
    show(console, tables)
    console.print(*report["faults"], sep="\n", style="red", highlight=False)
    write(options.json, tables)
    sys.exit(any(report["must_be_0"].values()))


def soak(folder: Path, seconds: float, console: Console) -> dict[str, Any]:
    """Run all clients at once for that long. Returns the report."""
    with deployment(folder, apis=2, workers=1) as made:
        book = Book(made.urls, SETS)
        book.stock()
        samples = Samples(made)
        samples.take()
        ended = threading.Event()
        threads = [
            threading.Thread(target=work, args=(book, ended), daemon=True) for work in _work(book)
        ]
        for thread in threads:
            thread.start()
        _sample_until(time.monotonic() + seconds, samples, book, console)
        ended.set()
        for thread in threads:
            thread.join(120)
        stuck = sum(thread.is_alive() for thread in threads)
        unfinished = _settle(made)
        samples.take()
        return _report(made, book, samples, stuck, unfinished)


def _work(book: Book) -> list[Any]:
    remakers = [Remaker(f"set-{number}").run for number in range(SETS)]
    return [*remakers, *[translate] * TRANSLATORS, *[hang_up] * HANG_UPS, cancel_jobs]


def _sample_until(end: float, samples: Samples, book: Book, console: Console) -> None:
    last_said = time.monotonic()
    while time.monotonic() < end:
        time.sleep(max(0.0, min(SAMPLE_S, end - time.monotonic())))
        sample = samples.take()
        if time.monotonic() - last_said >= 60:
            last_said = time.monotonic()
            console.print(
                f"{sample.at:6.0f} s  {book.said()}  {sample.said()}", style="dim", highlight=False
            )


def _settle(made: Deployment, timeout_s: float = 180) -> int:
    """Wait for the jobs. Returns how many have not ended."""
    unfinished = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
    with suppress(TimeoutError):
        wait_until(lambda: made.postgres.number(unfinished) == 0, "jobs to end", timeout_s, 0.5)
    return made.postgres.number(unfinished)


def _report(
    made: Deployment, book: Book, samples: Samples, stuck: int, unfinished: int
) -> dict[str, Any]:
    processes: list[Process] = [*made.apis, *made.workers]
    first, last = samples.all[0], samples.all[-1]
    return {
        "requests": sum(book.statuses.values()),
        "compared": book.compared,
        "versions": book.versions,
        "must_be_0": {
            "wrong": book.counts["wrong"],
            "stale": book.counts["stale"],
            "5xx but 503": book.counts["broken"],
            "broken connections": book.counts["cut"],
            "processes ended": sum(not process.alive for process in processes),
            "clients that never came back": stuck,
            "jobs that never ended": unfinished,
        },
        "faults": book.faults,
        "processes": {name: samples.of(name, WARM_UP) for name in samples.names},
        "rows": _from_to(first, last, "rows"),
        "blobs": [first.blobs, last.blobs],
    }


def _from_to(first: Sample, last: Sample, name: str) -> dict[str, list[int]]:
    before, after = getattr(first, name), getattr(last, name)
    return {each: [before.get(each, 0), after[each]] for each in sorted(after)}


def tables_of(report: dict[str, Any]) -> dict[str, Table]:
    """What must be 0, and how the processes and tables grew."""
    columns = ["process", "RSS first", "RSS last, MiB", "slope, MiB/h", "files first", "files last"]
    processes = [columns]
    for name, each in report["processes"].items():
        rss, files = each["rss_mib"], each["files"]
        slope = f"{each['slope_mib_per_hour']:.1f}"
        processes.append([name, *map(str, (rss[0], rss[-1], slope, files[0], files[-1]))])
    rows = {**report["rows"], "blobs (files)": report["blobs"]}
    counts = {"requests": report["requests"], "compared": report["compared"]}
    counts |= {"versions of the sets": report["versions"], **report["must_be_0"]}
    return {
        "counts": [["what", "count"], *([name, f"{each:,}"] for name, each in counts.items())],
        "processes": processes,
        "rows": [["table", "before", "after"], *([n, *map(str, each)] for n, each in rows.items())],
    }


if __name__ == "__main__":
    main()
