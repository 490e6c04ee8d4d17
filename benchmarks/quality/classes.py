"""A head trained in the target's space reads translated vectors: does auto's `prefer:
classification` improve its accuracy?
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from torch import Tensor

from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.quality import candidates, selection
from app.maths.quality.metrics import unit
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.quality import data, table
from app.maths.quality import candidates

TASKS = ("banking77", "trec", "cifar10", "fashion-mnist")
ANCHORS, SEEDS, PAIRS = 300, 2, 4
TRAIN = 3_000

#: the head's own ridge, on the scale of unit vectors
RIDGE = 1.0


def run(console: Console, path: Path, about: str, arguments: argparse.Namespace) -> None:
    """Accuracy of a linear head on translated test vectors, by what auto should prefer, and by
    single methods.
    """
    torch.set_num_threads(2)
    sections = {}
    for task in data.tasks([name for name in TASKS if name in arguments.tasks], console):
        rows = _of(task, 1 if arguments.quick else SEEDS)
        shown = new_table(
            f"{task.name}, {ANCHORS} anchors: accuracy of a head of the target's",
            ("",),
            ("accuracy",),
        )
        for row, accuracy in rows.items():
            shown.add_row(row, f"{accuracy:.4f}")
        console.print(shown)
        sections[task.name] = rows
    table.write(
        path, {"about": about}, "classes", {"anchors": ANCHORS, "seeds": SEEDS, "tasks": sections}
    )


def _of(task: data.Task, seeds: int) -> dict[str, float]:
    assert task.labels is not None
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        known, held = data.split(task, ANCHORS, seed)
        taken = torch.zeros(len(task.labels), dtype=torch.bool)
        taken[known] = taken[held] = True
        rest = (~taken).nonzero().flatten()
        train = rest[
            torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))[:TRAIN]
        ]
        for source, target in task.pairs[:: -(-len(task.pairs) // PAIRS)]:
            x, y = task.encoders[source], task.encoders[target]
            pair = fit_space(x[known]), fit_space(y[known])
            head = _head(y[train] - pair[1].mean, task.labels[train])
            ways: dict[str, tuple[str, methods.Options]] = {
                f"auto, prefer {use}": (choice.method, choice.options)
                for use in candidates.DEFAULT_CANDIDATE
                for choice in [selection.choose_method(x[known], y[known], prefer=use)]
            }
            for name in ("graded", "procrustes", "ridge", "irp"):
                ways[name] = name, methods.resolve(name, {}, anchors=ANCHORS)
            truth = task.labels[held]
            for row, (method, options) in ways.items():
                translated = apply(methods.fit(method, *pair, options), x[held]).vectors.double()
                found.setdefault(row, []).append(_accuracy(head, translated - pair[1].mean, truth))
            found.setdefault("native", []).append(_accuracy(head, y[held] - pair[1].mean, truth))
    return {row: mean(values) for row, values in found.items()}


def _head(vectors: Tensor, labels: Tensor) -> Tensor:
    """Ridge regression of one-hot classes on unit vectors and a constant: (d + 1, classes)."""
    features = _features(vectors)
    wanted = torch.nn.functional.one_hot(labels.long(), int(labels.max()) + 1).double()
    penalty = RIDGE * torch.eye(features.shape[1], dtype=torch.float64)
    solution: Tensor = torch.linalg.solve(features.T @ features + penalty, features.T @ wanted)
    return solution


def _accuracy(head: Tensor, vectors: Tensor, truth: Tensor) -> float:
    return float(((_features(vectors) @ head).argmax(dim=1) == truth).double().mean())


def _features(vectors: Tensor) -> Tensor:
    return torch.cat([unit(vectors), torch.ones(len(vectors), 1, dtype=torch.float64)], dim=1)
