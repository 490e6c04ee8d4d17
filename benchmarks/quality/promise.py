"""What reports promise, and what unseen items show, in an index of the same size."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.quality import selection
from app.maths.quality.crossfit import cross_fit
from app.maths.quality.learning_curve import learning_curve
from app.maths.quality.metrics import item_metrics
from app.maths.quality.promise import Promise, promise
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.quality import data, table
from benchmarks.quality.compare import task_of

MEASURES = ("recall", "mrr", "cosine")
SEEDS, PAIRS = 2, 3

#: random indexes of unseen items, of the size that the promise is about
INDEXES = 40


@dataclass(frozen=True)
class Kept:
    """One pair and split: each measure as promised, the ends of its interval, and the measure of
    unseen items.
    """

    promised: Mapping[str, tuple[float, float, float]]
    found: Mapping[str, float]


def run(console: Console, path: Path, about: str, arguments: argparse.Namespace) -> None:
    """A row for each task and number of anchors, with auto's translators."""
    shown = new_table(
        "promised and kept, mean absolute difference (mean difference)",
        ("task", "anchors", "index"),
        MEASURES,
    )
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for task in data.tasks(arguments.tasks, console):
            pairs = task.pairs[:: -(-len(task.pairs) // (2 if arguments.quick else PAIRS))]
            for anchors in task.sizes:
                if (arguments.quick and anchors > 100) or (
                    arguments.anchors and anchors not in arguments.anchors
                ):
                    continue
                work = [
                    (seed, pair)
                    for seed in range(1 if arguments.quick else SEEDS)
                    for pair in pairs
                ]
                asked = [pool.submit(_kept, task.name, anchors, *each) for each in work]
                kept = [answer.result() for answer in asked]
                measures = _compared(kept)
                rows.append(
                    {
                        "task": task.name,
                        "anchors": anchors,
                        "cases": len(kept),
                        "measures": measures,
                    }
                )
                cells = [
                    f"{each['absolute']:.4f} ({each['mean']:+.4f})" for each in measures.values()
                ]
                shown.add_row(task.name, str(anchors), str(anchors // 5), *cells)
                table.write(path, {"about": about}, "promise", {"seeds": SEEDS, "rows": rows})
    console.print(shown)


def _compared(kept: list[Kept]) -> dict[str, dict[str, Any]]:
    """By measure: mean absolute and mean difference, and the share of intervals that hold the
    measure of unseen items.
    """
    figures = {}
    for name in MEASURES:
        apart = [each.promised[name][0] - each.found[name] for each in kept]
        held = [
            each.promised[name][1] <= each.found[name] <= each.promised[name][2] for each in kept
        ]
        figures[name] = {
            "promised": mean(each.promised[name][0] for each in kept),
            "found": mean(each.found[name] for each in kept),
            "absolute": mean(map(abs, apart)),
            "mean": mean(apart),
            "interval_holds": mean(map(float, held)),
        }
    return figures


def _kept(name: str, anchors: int, seed: int, pair: tuple[str, str]) -> Kept:
    torch.set_num_threads(1)
    task = task_of(name)
    known, held = data.split(task, anchors, seed)
    x, y = (task.encoders[encoder] for encoder in pair)
    choice = selection.choose_method(x[known], y[known])
    held_out = cross_fit(choice.method, x[known], y[known], choice.options)
    assert held_out is not None
    made = promise(
        anchors, held_out, learning_curve(choice.method, x[known], y[known], choice.options)
    )
    translator = methods.fit(
        choice.method, fit_space(x[known]), fit_space(y[known]), choice.options
    )
    centre = y[known].mean(dim=0)
    found = _found(
        made, apply(translator, x[held]).vectors.double() - centre, y[held] - centre, seed
    )
    return Kept({measure: tuple(made.measures[measure]) for measure in MEASURES}, found)  # type: ignore[misc]


def _found(made: Promise, translated: Tensor, native: Tensor, seed: int) -> dict[str, float]:
    """Measures of unseen items, each searched for in an index of the promise's size: means over
    random indexes.
    """
    generator = torch.Generator().manual_seed(seed)
    sums: list[list[float]] = []
    for _ in range(INDEXES):
        rows = torch.randperm(len(native), generator=generator)[: made.index]
        items = item_metrics(translated[rows], native[rows], made.neighbours)
        sums.append(
            [float(each.mean()) for each in (items.recall, items.reciprocal_rank, items.cosine)]
        )
    return dict(zip(MEASURES, map(mean, zip(*sums, strict=True)), strict=True))
