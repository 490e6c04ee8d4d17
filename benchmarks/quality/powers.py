"""The graded family over its two powers: where each measure peaks, and what the ridge does."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console

from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.quality import data, table
from benchmarks.quality.measure import Index

ENCODE = (0.0, 0.25, 0.5, 0.75, 1.0)
DECODE = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)
MEASURES = ("cosine", "recall", "mrr")

#: pairs of each task: few, because pairs differ little in where their peak is
PAIRS, SEEDS = 4, 2


def run(console: Console, path: Path, about: str, arguments: argparse.Namespace) -> None:
    """A heat map for each task at the largest number of anchors up to 300, and a row of ridges at
    (1, .25).
    """
    sections = {}
    for task in data.tasks(arguments.tasks, console):
        anchors = max(size for size in task.sizes if size <= (100 if arguments.quick else 300))
        sections[task.name] = _of(task, anchors, 1 if arguments.quick else SEEDS)
        console.print(_table(task.name, anchors, sections[task.name]))
    table.write(
        path,
        {"about": about},
        "powers",
        {"encode": ENCODE, "decode": DECODE, "ridges": RIDGES, "tasks": sections},
    )


def _of(task: data.Task, anchors: int, seeds: int) -> dict[str, Any]:
    """Means over seeds and pairs: for each measure a table by encode and decode power, with each
    space's own ridge.
    """
    torch.set_num_threads(2)
    pairs = task.pairs[:: -(-len(task.pairs) // PAIRS)]
    found: dict[Any, list[tuple[float, ...]]] = {}
    for seed in range(seeds):
        known, held = data.split(task, anchors, seed)
        for source, target in pairs:
            x, y = task.encoders[source], task.encoders[target]
            spaces, centre = (fit_space(x[known]), fit_space(y[known])), y[known].mean(dim=0)
            index = Index(y[held] - centre)
            wanted = [(a, b, None) for a in ENCODE for b in DECODE] + [
                (1.0, 0.25, ridge) for ridge in RIDGES
            ]
            for a, b, ridge in wanted:
                given: methods.Options = {"encode_power": a, "decode_power": b, "ridge": ridge}
                options = methods.resolve("graded", given, anchors=anchors)
                measured = index.measure(
                    apply(methods.fit("graded", *spaces, options), x[held]).vectors.double()
                    - centre
                )
                found.setdefault((a, b, ridge), []).append(
                    tuple(getattr(measured, name) for name in MEASURES)
                )
    means = {
        key: [mean(column) for column in zip(*values, strict=True)] for key, values in found.items()
    }
    return {
        "anchors": anchors,
        "pairs": len(pairs),
        "seeds": seeds,
        **{
            name: [[means[a, b, None][place] for b in DECODE] for a in ENCODE]
            for place, name in enumerate(MEASURES)
        },
        "ridge": {
            name: [means[1.0, 0.25, ridge][place] for ridge in RIDGES]
            for place, name in enumerate(MEASURES)
        },
    }


def _table(name: str, anchors: int, section: dict[str, Any]) -> Any:
    shown = new_table(
        f"{name}, {anchors} anchors: recall@10 (MRR, cosine)",
        ("encode \\ decode",),
        tuple(f"{b:g}" for b in DECODE),
    )
    for row, a in enumerate(ENCODE):
        cells = zip(
            section["recall"][row], section["mrr"][row], section["cosine"][row], strict=True
        )
        shown.add_row(
            f"{a:g}", *(f"{recall:.3f} ({mrr:.2f}, {cosine:.2f})" for recall, mrr, cosine in cells)
        )
    return shown
