"""How much accuracy does a stitched model lose? The papers' tables on real data, every ordered
pair, five seeds.

    python -m research.stitching                   # all, about 30 minutes on one core
    python -m research.stitching --only cora trec  # some sections; the results of the others stay

Writes research/results/stitching.json.

A linear head trained in a target encoder's space reads vectors of another encoder: untranslated
(truncated or padded: the floor), translated by each method, and the target's own (native: the
ceiling). Everything is fitted to anchors drawn anew for each seed. A row is one setting for all
pairs, except "graded, tuned", which chooses for each pair on held-out anchors and sees no label. A
gap is native minus stitched accuracy. The paper's method is irp, omega 8, at its best delta by test
accuracy, as if that were known. Target: the best of the product's rows, chosen alike, has at most
40 % of irp's mean gap.

Data: $ANCHORAGE_DATA (see its README): encoders/, cifar10-embeddings/, planetoid/, fashion-mnist/,
stsb-multi-mt/.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from app.demo.run import new_table
from benchmarks.common import merged, parser, read, rounded
from benchmarks.common import write as write_report
from research.common import RESULTS
from research.stitching import autoencoders, captions, cora, measure, task
from research.stitching.measure import NATIVE, SEEDS, Accuracies

TARGET = 0.4

TASKS: dict[str, Callable[[], task.Task]] = {
    "trec": task.trec,
    "banking77": task.banking77,
    "fmnist": task.fmnist,
    "cifar10": task.cifar10,
    "text-image": captions.task,
}
SECTIONS = (*TASKS, "cora", "autoencoders")

Advance = Callable[[], None]


def main() -> None:
    """Measure the chosen sections; print and write each as it is done."""
    arguments = parser(__doc__, RESULTS / "stitching.json")
    arguments.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="measure only these sections"
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console(width=max(130, Console().width))
    for name in options.only:
        section = timed(name, console)
        write(options.json, name, section)
        for table in section["tables"].values():
            show(console, section, table)
        console.print(
            f"{section['note']}\nPaper: {section['paper']['source']}. {section['seconds']} s.\n",
            highlight=False,
        )
    verdicts(options.json, console)


def timed(name: str, console: Console) -> dict[str, Any]:
    """Measure one section under a progress bar, with its seconds."""
    began = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(name, total=None)
        section = measured(
            name, lambda total: progress.update(bar, total=total), lambda: progress.advance(bar)
        )
    return section | {"seconds": round(time.monotonic() - began)}


def measured(name: str, expect: Callable[[int], None], advance: Advance) -> dict[str, Any]:
    """One section's tables, note and the paper's numbers."""
    if name == "cora":
        expect(len(SEEDS))
        table = summarise("Cora, 7 classes, 300 anchors", cora.measure_all(advance), cora.PAPER)
        return {"title": "Cora", "note": cora.NOTE, "paper": cora.PAPER, "tables": {"300": table}}
    if name == "autoencoders":
        expect(4 * autoencoders.NETWORKS)
        tables = {
            kind: summarise(
                f"{kind} on Fashion-MNIST, MSE x 1000", [cells], autoencoders.PAPER[kind], sign=-1
            )
            for kind, cells in autoencoders.measure_all(advance).items()
        }
        return {
            "title": "Autoencoders",
            "note": autoencoders.NOTE,
            "paper": autoencoders.PAPER,
            "tables": tables,
        }
    return classified(TASKS[name](), expect, advance)


def classified(job: task.Task, expect: Callable[[int], None], advance: Advance) -> dict[str, Any]:
    """A task's tables, one for each number of anchors."""
    expect(len(SEEDS) * len(job.sizes))
    strengths = measure.strengths(job)
    found: dict[int, list[Accuracies]] = {size: [] for size in job.sizes}
    for seed in SEEDS:
        heads = measure.heads_of(job, strengths, seed)
        for size in job.sizes:
            found[size].append(measure.measure(job, heads, size, seed, main=size == job.sizes[0]))
            advance()
    tables = {
        str(size): summarise(f"{job.title}, {size:,} anchors", cells, job.paper)
        for size, cells in found.items()
    }
    return {
        "title": job.title,
        "note": job.note,
        "paper": job.paper,
        "penalties": strengths,
        "tables": tables,
    }


def summarise(
    title: str, seeds: list[Accuracies], paper: dict[str, Any], *, sign: int = 1
) -> dict[str, Any]:
    """Means over pairs and seeds; `std` between seeds' means (where there are several), `std_pairs`
    between pairs' means.

    sign  1 where more is better, -1 for errors: a gap is what is lost either way
    """
    pairs = list(seeds[0])
    rows = {}
    for row in seeds[0][pairs[0]]:
        by_seed = [mean(cells[pair][row] for pair in pairs) for cells in seeds]
        by_pair = [mean(cells[pair][row] for cells in seeds) for pair in pairs]
        rows[row] = {"mean": mean(by_seed), "std_pairs": stdev(by_pair)} | (
            {"std": stdev(by_seed)} if len(seeds) > 1 else {}
        )
        lost = [cells[pair][NATIVE] - cells[pair][row] for cells in seeds for pair in pairs]
        rows[row]["gap"] = sign * mean(lost) if row != NATIVE else 0.0

    def best_of(*starts: str) -> str:
        return min(
            (row for row in rows if row.startswith(starts)), key=lambda row: rows[row]["gap"]
        )

    irp = min(
        (row for row in rows if row.startswith("irp, ") and "kept" not in row),
        key=lambda row: rows[row]["gap"],
    )
    best = best_of("graded", "ridge", "procrustes", "irp-ridge")
    # If irp loses nothing there is no gap to close, and a ratio has no meaning.
    ratio = rows[best]["gap"] / rows[irp]["gap"] if rows[irp]["gap"] > 0 else None
    shown = (NATIVE, measure.UNTRANSLATED, irp, best)
    return {
        "title": title,
        "rows": rows,
        "irp": irp,
        "best": best,
        "gap_ratio": ratio,
        "target_met": ratio is not None and ratio <= TARGET,
        "paper": {row: text for row, text in paper.items() if row != "source"},
        "pairs": {
            f"{a} -> {b}": {row: mean(cells[a, b][row] for cells in seeds) for row in shown}
            for a, b in pairs
        },
    }


def write(path: Path, name: str, section: dict[str, Any]) -> None:
    """Write one section into the report; the other sections stay."""
    sections = merged(read(path).get("sections", {}), name, section, SECTIONS)
    about = (__doc__ or "").split("\n\n")[2]
    write_report(
        path,
        rounded({"about": about, "target": TARGET, "seeds": len(SEEDS), "sections": sections}, 5),
    )


def show(console: Console, section: dict[str, Any], table: dict[str, Any]) -> None:
    """Print one table."""
    errors = section["title"] == "Autoencoders"
    digits = 2 if errors else 3
    figures = (
        "MSE x 1000" if errors else "accuracy",
        "± seeds",
        "± pairs",
        "gap",
        "gap / irp's",
        "paper's number",
    )
    printed = new_table(table["title"], ("method",), figures)
    irp_gap = table["rows"][table["irp"]]["gap"]
    for row, numbers in table["rows"].items():
        gap = numbers["gap"]
        spread = [
            f"{numbers[key]:.{digits}f}" if key in numbers else "" for key in ("std", "std_pairs")
        ]
        ratio = "" if row == NATIVE or irp_gap <= 0 else f"{gap / irp_gap:.2f}"
        paper = table["paper"].get("irp" if row == table["irp"] else row, "")
        style = "bold" if row in (table["irp"], table["best"]) else None
        printed.add_row(
            row,
            f"{numbers['mean']:.{digits}f}",
            *spread,
            f"{gap:.{digits}f}",
            ratio,
            str(paper),
            style=style,
        )
    console.print(printed)
    console.print(verdict(table), highlight=False)


def verdict(table: dict[str, Any]) -> str:
    ours, irp = (f"gap({table[key]})" for key in ("best", "irp"))
    if table["gap_ratio"] is None:
        return (
            f"{table['title']}: {irp} is not above 0, so there is no gap to close; "
            f"target of {TARGET:.2f} NOT met."
        )
    met = "met" if table["target_met"] else "NOT met"
    return (
        f"{table['title']}: {ours} / {irp} = {table['gap_ratio']:.2f}; "
        f"target of {TARGET:.2f} {met}."
    )


def verdicts(path: Path, console: Console) -> None:
    """Print one line for each table of the report, those of earlier runs included."""
    for section in read(path)["sections"].values():
        for table in section["tables"].values():
            console.print(verdict(table), highlight=False)


if __name__ == "__main__":
    main()
