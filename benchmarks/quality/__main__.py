"""How good are translations, and how do peers compare?

    python -m benchmarks.quality          # everything: half an hour on 2 cores
    python -m benchmarks.quality --quick  # one seed, few pairs; writes quality-quick.json

Writes benchmarks/results/quality.json.

Anchors and tested items are disjoint draws; every ordered pair of a task's encoders; mean and
standard deviation over seeds of the mean over pairs. Vectors are centred on the anchors' mean.
recall@10: of the 10 test items that the native query finds, the share that the translated query
finds; MRR of the item's own native vector. Peers with their own defaults, on the same splits, in
the same run.

Data: see benchmarks/quality/data.py. Peers are measured where they are installed: see
benchmarks/quality/peers.txt.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console

from benchmarks.common import RESULTS, parser, rounded, show, write
from benchmarks.quality import compare, data, table
from benchmarks.quality.compare import Cell

SEEDS = 2
#: fewer draws where two of all pairs take hours
FEWER = {
    ("text-embeddings", 50): 1,
    ("text-embeddings", 100): 1,
    ("text-embeddings", 180): 1,
}

Found = dict[tuple[int, tuple[str, str]], Cell]


def main() -> None:
    """Measure every task and number of anchors, print and write."""
    command = parser(__doc__, RESULTS / "quality.json")
    command.add_argument("--tasks", nargs="+", choices=list(data.TASKS), default=list(data.TASKS))
    command.add_argument("--quick", action="store_true", help="one seed, 4 pairs, 100 anchors")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    arguments = command.parse_args()
    console = Console(width=160)
    path = Path("quality-quick.json") if arguments.quick else arguments.json
    sections = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for task in data.tasks(arguments.tasks, console):
            pairs = task.pairs[:4] if arguments.quick else task.pairs
            for anchors in task.sizes:
                if arguments.quick and anchors > 100:
                    continue
                seeds = 1 if arguments.quick else FEWER.get((task.name, anchors), SEEDS)
                found = _gather(pool, task.name, anchors, pairs, seeds)
                sections[f"{task.name}, {anchors}"] = {
                    "task": task.name,
                    "anchors": anchors,
                    "rows": table.summarise(found),
                }
                console.print(f"{task.name}, {anchors} anchors are measured")
    tables = table.tables(sections.values())
    show(console, tables)
    write(path, tables, rounded({"sections": sections}, 5))
    console.print(f"Written to {path}")


def _gather(
    pool: ProcessPoolExecutor, task: str, anchors: int, pairs: list[tuple[str, str]], seeds: int
) -> Found:
    """Submit one piece of work for each seed and eight pairs, so that no piece takes long and each
    target's neighbours serve several sources.
    """
    by_target = sorted(pairs, key=lambda pair: pair[1])
    parts = [by_target[start : start + 8] for start in range(0, len(by_target), 8)]
    work = [(seed, part) for seed in range(seeds) for part in parts]
    asked = [pool.submit(compare.cells, task, anchors, seed, part) for seed, part in work]
    return {
        (seed, pair): cell
        for (seed, _), answer in zip(work, asked, strict=True)
        for pair, cell in answer.result().items()
    }


if __name__ == "__main__":
    main()
