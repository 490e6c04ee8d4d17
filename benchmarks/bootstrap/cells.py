"""A cell is one thing to measure in a process of its own; a section is many cells and their
summary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import Missing, Table, parser, rounded, show, write

#: the section's name first, then the arguments of the function that measures
Key = tuple[str | int, ...]
Measured = dict[str, Any]
#: measured cells of a section, by key
Found = Mapping[Key, Measured]


@dataclass(frozen=True)
class Cell:
    """key      the section's name first, then the arguments
    measure  a function of a module, called with the key's arguments
    """

    key: Key
    measure: Callable[..., Measured]


@dataclass(frozen=True)
class Section:
    """cells      yields what to measure, for `quick` and `draws`
    summarise  makes the section of the report from the measured cells
    """

    cells: Callable[..., Iterable[Cell]]
    summarise: Callable[[Found], dict[str, Any]]


def command(
    doc: str | None,
    sections: Mapping[str, Section],
    results: Path,
    tables: Callable[[Mapping[str, Any]], dict[str, Table]],
) -> None:
    """Run the command line over these sections: measure, print and write."""
    arguments = parser(doc, results)
    every = list(sections)
    arguments.add_argument(
        "--only", nargs="+", choices=every, default=every, help="measure only these sections"
    )
    arguments.add_argument("--draws", type=int, help="draws of each cell at most")
    arguments.add_argument("--quick", action="store_true", help="one draw, few seeds and pairs")
    arguments.add_argument("--jobs", type=int, default=1, help="processes at once, a core each")
    chosen = arguments.parse_args()
    console = Console(width=max(200, Console().width))
    path = Path(results.name.replace(".json", "-quick.json")) if chosen.quick else chosen.json
    report: dict[str, Any] = {}
    for name in chosen.only:
        try:
            cells = list(sections[name].cells(quick=chosen.quick, draws=chosen.draws))
            found = run(cells, console, jobs=chosen.jobs)
        except Missing as error:
            console.print(f"[red]{name} is left out.[/red] {error}", highlight=False)
            continue
        report[name] = rounded(sections[name].summarise(found), 4)
        show(console, tables({name: report[name]}))
        write(path, tables(report), {"sections": report})
    console.print(f"Written to {path}")


def run(cells: Sequence[Cell], console: Console, *, jobs: int) -> dict[Key, Measured]:
    """Measure the cells in worker processes; print and leave out those that fail."""
    found: dict[Key, Measured] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin) as pool:
        work = {pool.submit(_one, cell): cell for cell in cells}
        for future in as_completed(work):
            key = work[future].key
            name = " · ".join(map(str, key))
            if error := future.exception():
                console.print(f"[red]{name} failed:[/red] {error!r}", highlight=False)
            else:
                found[key] = future.result()
                console.print(f"{name}: {found[key]['seconds']:.1f} s", highlight=False)
    return {cell.key: found[cell.key] for cell in cells if cell.key in found}


def _begin() -> None:
    """Start a worker process: use one core, and end when the parent ends, even if the parent is
    killed.
    """
    torch.set_num_threads(1)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def _one(cell: Cell) -> Measured:
    begun = time.process_time()
    return {**cell.measure(*cell.key[1:]), "seconds": time.process_time() - begun}
