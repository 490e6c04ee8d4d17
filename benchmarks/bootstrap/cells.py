"""A cell: one thing to measure, in a process of its own, by a key that says everything that it depends on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from benchmarks.bootstrap import store
from benchmarks.bootstrap.store import Key

Measured = dict[str, Any]
#: what a section measured, by key
Found = Mapping[Key, Measured]


@dataclass(frozen=True)
class Cell:
    """key      the section's name first, then the arguments
    measure  a function of a module, of the key's arguments
    group    what its seconds are told with
    alone    whether nothing else may run in its process, before or after
    fresh    whether it is measured each time: it depends on more than `store.version` looks at
    """

    key: Key
    measure: Callable[..., Measured]
    group: str
    alone: bool = False
    fresh: bool = False


def run(cells: Sequence[Cell], console: Console, *, jobs: int) -> dict[Key, Measured]:
    """Measure them, or find them where they were measured before; the seconds of one core beside what they found."""
    found = {cell.key: known for cell in cells if not cell.fresh and (known := store.cell(cell.key)) is not None}
    missing = [cell for cell in cells if cell.key not in found]
    if found:
        console.print(f"{len(found)} of {len(cells)} cells are known already.")
    for alone in (False, True):
        found |= _measured([cell for cell in missing if cell.alone == alone], console, jobs=1 if alone else jobs, alone=alone)
    return {cell.key: found[cell.key] for cell in cells if cell.key in found}


def _measured(cells: Sequence[Cell], console: Console, *, jobs: int, alone: bool) -> dict[Key, Measured]:
    """Each in a worker process; what fails is told and left out."""
    if not cells:
        return {}
    found: dict[Key, Measured] = {}
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(jobs, get_context("spawn"), _begin, max_tasks_per_child=1 if alone else None) as pool,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        bar = progress.add_task(str(cells[0].key[0]), total=len(cells))
        asked: dict[Future[Measured], Cell] = {pool.submit(_one, cell): cell for cell in cells}
        try:
            for future in as_completed(asked):
                cell = asked[future]
                name = " · ".join(map(str, cell.key))
                if error := future.exception():
                    console.print(f"[red]{name} failed:[/red] {error!r}", highlight=False)
                else:
                    found[cell.key] = future.result()
                    if not console.is_terminal:
                        # No bar is seen there: a line for each.
                        console.print(f"{name}: {found[cell.key]['seconds']:.1f} s", highlight=False)
                progress.update(bar, advance=1, description=f"{cell.key[0]}: {cell.group}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _begin() -> None:
    """In a worker: one core, and an end when the parent has ended, which a killed one cannot tell."""
    torch.set_num_threads(1)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def _one(cell: Cell) -> Measured:
    begun, clock = time.process_time(), time.monotonic()
    measured = cell.measure(*cell.key[1:])
    measured |= {"seconds": time.process_time() - begun, "wall": time.monotonic() - clock}
    store.keep(cell.key, measured)
    return measured
