"""How much accuracy does a stitched model lose? The papers' tables on real data, every ordered
pair, five seeds.

    python -m research.stitching                   # all, about 30 minutes on one core
    python -m research.stitching --only trec  # some sections

Writes research/results/stitching.json.

A linear head trained in a target encoder's space reads vectors of another encoder: untranslated
(truncated or padded: the floor), translated by each method, and the target's own (native: the
ceiling). Everything is fitted to anchors drawn anew for each seed. A row is one setting for all
pairs, except "graded, tuned", which chooses for each pair on held-out anchors and sees no label. A
gap is native minus stitched accuracy. The paper's method is irp, omega 8, at its best delta by test
accuracy, as if that were known. Target: the best of the product's rows, chosen alike, has at most
40 % of irp's mean gap.

Data: $ANCHORAGE_DATA (see its README): encoders/, cifar10-embeddings/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

import torch
from rich.console import Console

from benchmarks.common import parser, show, write
from research.common import RESULTS
from research.stitching import measure, task
from research.stitching.measure import NATIVE, RELATIVE, SEEDS, UNTRANSLATED, Accuracies

TARGET = 0.4
TASKS: dict[str, Callable[[], task.Task]] = {
    "trec": task.trec,
    "banking77": task.banking77,
    "fmnist": task.fmnist,
    "cifar10": task.cifar10,
}
SECTIONS = tuple(TASKS)
GRADED = "graded (1, .25), lambda 1"


def main() -> None:
    """Measure the chosen sections; print all rows of each, and write the page's."""
    arguments = parser(__doc__, RESULTS / "stitching.json")
    arguments.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console(width=max(130, Console().width))
    columns = ["data, anchors", "native", "untranslated", "relative", "irp", "procrustes"]
    table = [[*columns, "graded (1, .25)", "best", "share of irp's loss", "paper's irp"]]
    measured = {}
    for name in options.only:
        for title, seeds, paper in sections(name):
            measured[title] = summarise(seeds)
            table.append(page_row(title, measured[title], paper))
            rows = [[row, *map(str, found.values())] for row, found in measured[title].items()]
            show(console, {title: [["method", "accuracy", "gap"], *rows]})
    tables = {"classifiers": table}
    show(console, tables)
    write(options.json, tables, {"sections": measured})


def sections(name: str) -> Iterator[tuple[str, list[Accuracies], str]]:
    """The title, the accuracies by seed, and the paper's number, for each number of anchors."""
    job = TASKS[name]()
    strengths = measure.strengths(job)
    found: dict[int, list[Accuracies]] = {size: [] for size in job.sizes}
    for seed in SEEDS:
        heads = measure.heads_of(job, strengths, seed)
        for size in job.sizes:
            main = size == job.sizes[0]
            found[size].append(measure.measure(job, heads, size, seed, main=main))
    for size, seeds in found.items():
        yield f"{job.title}, {size:,}", seeds, str(job.paper.get("irp", ""))


def summarise(seeds: list[Accuracies]) -> dict[str, dict[str, float]]:
    """Mean accuracy of each row over pairs and seeds, and its mean gap to the native head."""
    pairs = list(seeds[0])
    return {
        row: {
            "accuracy": round(mean(cells[pair][row] for cells in seeds for pair in pairs), 5),
            "gap": round(
                mean(cells[pair][NATIVE] - cells[pair][row] for cells in seeds for pair in pairs),
                5,
            ),
        }
        for row in seeds[0][pairs[0]]
    }


def page_row(title: str, rows: dict[str, dict[str, float]], paper: str) -> list[str]:
    """One row of the page: the best irp, the best of the product's methods, and their losses."""

    def best(*starts: str) -> str:
        return min((r for r in rows if r.startswith(starts)), key=lambda row: rows[row]["gap"])

    def shown(row: str) -> str:
        return f"{rows[row]['accuracy']:.3f}".removeprefix("0") if row in rows else ""

    irp, ours = best("irp, "), best("graded", "ridge", "procrustes", "irp-ridge")
    # If irp loses nothing there is no gap to close, and a ratio has no meaning.
    ratio = rows[ours]["gap"] / rows[irp]["gap"] if rows[irp]["gap"] > 0 else None
    share = "" if ratio is None else f"{ratio:.2f}".removeprefix("0")
    figures = map(shown, (NATIVE, UNTRANSLATED, RELATIVE, irp, "procrustes", GRADED))
    return [title, *figures, f"{ours}: {shown(ours)}", share, paper]


if __name__ == "__main__":
    main()
