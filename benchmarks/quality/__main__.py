"""How good are translations, and how do peers compare?

    python -m benchmarks.quality                    # everything: an hour and a half on 2 cores
    python -m benchmarks.quality --only powers hub  # some sections; the results of the others stay
    python -m benchmarks.quality --quick            # one seed, few pairs; writes quality-quick.json

Writes benchmarks/results/quality.json and quality.png.

compare   every method, every peer and auto on the same splits
choosing  how auto could choose, and what each way reaches
powers    the graded family over its two powers
hub       N projectors and N decoders instead of N (N - 1) fitted pairs
classes   a classifier of the target encoder on translated vectors
shuffled  reports of anchors whose pairs are wrong

Data: see benchmarks/quality/data.py. Peers are measured where they are installed: see
benchmarks/quality/peers.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.progress import Progress

from benchmarks.common import RESULTS, parser, read
from benchmarks.quality import (
    choosing,
    classes,
    compare,
    data,
    hub,
    plot,
    powers,
    shuffled,
    table,
)
from benchmarks.quality.compare import AUTO, FIXED, Cell

ABOUT = (
    "Anchors and tested items are disjoint draws; every ordered pair of a task's encoders; mean "
    "and standard deviation over seeds of the mean over pairs. Vectors are centred on the anchors' "
    "mean. recall@10: of the 10 test items that the native query finds, the share that the "
    "translated query finds; MRR of the item's own native vector. Peers with their own defaults, "
    "on the same splits, in the same run. `auto` is compared with the best of the fixed methods on "
    "the same test items, of hindsight."
)
SEEDS = 5

#: fewer draws where five of all pairs take hours
FEWER = {
    ("text-embeddings", 50): 1,
    ("text-embeddings", 100): 1,
    ("text-embeddings", 180): 1,
    ("cifar10", 1000): 2,
}


Found = dict[tuple[int, tuple[str, str]], Cell]


def main() -> None:
    arguments = _arguments()
    console = Console(width=160)
    path = Path("quality-quick.json") if arguments.quick else arguments.json
    if "compare" in arguments.only:
        _compare(console, path, arguments)
    if "choosing" in arguments.only:
        choosing.run(console, path, ABOUT, arguments)
    if "powers" in arguments.only:
        powers.run(console, path, ABOUT, arguments)
    if "hub" in arguments.only:
        hub.run(console, path, ABOUT)
    if "classes" in arguments.only:
        classes.run(console, path, ABOUT, arguments)
    if "shuffled" in arguments.only:
        shuffled.run(console, path, ABOUT, arguments)
    if not arguments.quick:
        plot.draw(read(path), path.with_suffix(".png"))
    console.print(f"Written to {path}")


def _arguments() -> argparse.Namespace:
    arguments = parser(__doc__, RESULTS / "quality.json")
    sections = ("compare", "choosing", "powers", "hub", "classes", "shuffled")
    arguments.add_argument("--only", nargs="+", choices=sections, default=sections)
    arguments.add_argument("--tasks", nargs="+", choices=list(data.TASKS), default=list(data.TASKS))
    arguments.add_argument(
        "--anchors", nargs="+", type=int, help="numbers of anchors; the others' results stay"
    )
    arguments.add_argument(
        "--quick", action="store_true", help="one seed, four pairs, up to 100 anchors"
    )
    arguments.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at once"
    )
    return arguments.parse_args()


def _compare(console: Console, path: Path, arguments: argparse.Namespace) -> None:
    """A table for each task and number of anchors, written as soon as it is known."""
    choices: dict[str, table.Choice] = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for task in data.tasks(arguments.tasks, console):
            pairs = task.pairs[:4] if arguments.quick else task.pairs
            for anchors in task.sizes:
                if (arguments.quick and anchors > 100) or (
                    arguments.anchors and anchors not in arguments.anchors
                ):
                    continue
                name, started = f"{task.name}, {anchors}", time.monotonic()
                found = _gather(
                    pool,
                    task.name,
                    anchors,
                    pairs,
                    1 if arguments.quick else FEWER.get((task.name, anchors), SEEDS),
                )
                rows = table.summarise({key: cell.reached for key, cell in found.items()})
                choices[name] = table.choice(
                    {key: cell.reached for key, cell in found.items()}, AUTO, list(FIXED)
                )
                console.print(
                    table.printed(f"{name} anchors ({time.monotonic() - started:.0f} s)", rows)
                )
                section = {
                    "task": task.name,
                    "anchors": anchors,
                    "seeds": len({seed for seed, _ in found}),
                    "rows": {
                        method: {**row.as_json(), "seconds": _seconds(found, method)}
                        for method, row in rows.items()
                    },
                    "choice": vars(choices[name]),
                    "chosen": _chosen(found.values()),
                }
                table.write(path, {"about": ABOUT}, name, section)
    console.print(
        table.chosen("auto compared with the best fixed method of each pair and split", choices)
    )


def _gather(
    pool: ProcessPoolExecutor, task: str, anchors: int, pairs: list[tuple[str, str]], seeds: int
) -> Found:
    """Submit one piece of work for each seed and eight pairs, so that no piece takes long and each
    target's neighbours serve several sources.
    """
    by_target = sorted(pairs, key=lambda pair: pair[1])
    parts = [by_target[start : start + 8] for start in range(0, len(by_target), 8)]
    work = [(seed, part) for seed in range(seeds) for part in parts]
    found: Found = {}
    with Progress(transient=True) as progress:
        told = progress.add_task(f"{task}, {anchors}", total=len(work))
        asked = [pool.submit(compare.cells, task, anchors, seed, part) for seed, part in work]
        for (seed, _), answer in zip(work, asked, strict=True):
            found |= {(seed, pair): cell for pair, cell in answer.result().items()}
            progress.advance(told)
    return found


def _seconds(found: Found, method: str) -> float:
    """Mean seconds to fit and to translate the test items, on shared cores."""
    return mean(cell.seconds[method] for cell in found.values() if method in cell.seconds)


def _chosen(cells: Iterable[Cell]) -> dict[str, int]:
    """What auto chose, and how often; the rarest choices together."""
    counts = Counter(
        f"{method} {json.dumps(options, sort_keys=True)}"
        for method, options in (cell.chosen for cell in cells)
    )
    rest = sum(counts.values()) - sum(count for _, count in counts.most_common(8))
    return dict(counts.most_common(8)) | ({"others": rest} if rest else {})
