"""A cell: one thing to measure, in a separate process, under a key that names everything that it
depends on.
"""

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
#: measured cells of a section, by key
Found = Mapping[Key, Measured]


@dataclass(frozen=True)
class Cell:
    """key      the section's name first, then the arguments
    measure  a function of a module, called with the key's arguments
    group    the name under which its seconds are reported
    alone    whether nothing else may run in its process, before or after
    fresh    whether to measure it each time, because it depends on more than `store.version` covers
    """

    key: Key
    measure: Callable[..., Measured]
    group: str
    alone: bool = False
    fresh: bool = False


def run(cells: Sequence[Cell], console: Console, *, jobs: int) -> dict[Key, Measured]:
    """Measure the cells, or take them from the store. Each has its seconds of one core next to its
    figures.
    """
    found = {
        cell.key: known
        for cell in cells
        if not cell.fresh and (known := store.cell(cell.key)) is not None
    }
    missing = [cell for cell in cells if cell.key not in found]
    if found:
        console.print(f"{len(found)} of {len(cells)} cells are known already.")
    for alone in (False, True):
        found |= _measured(
            [cell for cell in missing if cell.alone == alone],
            console,
            jobs=1 if alone else jobs,
            alone=alone,
        )
    return {cell.key: found[cell.key] for cell in cells if cell.key in found}


def _measured(
    cells: Sequence[Cell], console: Console, *, jobs: int, alone: bool
) -> dict[Key, Measured]:
    """Measure each in a worker process; print and leave out those that fail."""
    if not cells:
        return {}
    found: dict[Key, Measured] = {}
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(
            jobs, get_context("spawn"), _begin, max_tasks_per_child=1 if alone else None
        ) as pool,
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
                        # A progress bar is invisible there, so print a line for each.
                        console.print(
                            f"{name}: {found[cell.key]['seconds']:.1f} s", highlight=False
                        )
                progress.update(bar, advance=1, description=f"{cell.key[0]}: {cell.group}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


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
    begun, clock = time.process_time(), time.monotonic()
    measured = cell.measure(*cell.key[1:])
    measured |= {"seconds": time.process_time() - begun, "wall": time.monotonic() - clock}
    store.keep(cell.key, measured)
    return measured
