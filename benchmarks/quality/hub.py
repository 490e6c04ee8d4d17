"""N encoders, N projectors and N decoders, and no pair ever fitted: what does that lose against
fitting all N (N - 1) pairs?
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console

from app.demo.run import new_table
from app.maths.geometry.space import fit_space, normalise
from app.maths.quality import selection
from app.maths.translators import linear, methods
from app.maths.translators.translator import apply
from benchmarks.quality import data, table
from benchmarks.quality.measure import Index

ANCHORS, SEEDS = 180, 2

#: the powers of auto's usual method; each space has its own ridge
ENCODE, DECODE = 1.0, 0.25

FACTORS = "hub: N projectors, N decoders"
FITTED = "the same, fitted to each pair"
RIDGE = "ridge, fitted to each pair"
PROCRUSTES = "procrustes, fitted to each pair"
AUTO = "auto, chosen for each pair"
MEASURES = ("cosine", "recall", "mrr")


def run(console: Console, path: Path, about: str) -> None:
    """The 13 text encoders, 156 ordered pairs."""
    torch.set_num_threads(2)
    (task,) = data.tasks(["text-embeddings"], console)
    found: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS):
        known, held = data.split(task, ANCHORS, seed)
        spaces = {name: fit_space(vectors[known]) for name, vectors in task.encoders.items()}
        projected = {}
        # N projectors: each encoder's test vectors in relative coordinates, once.
        for name, space in spaces.items():
            unit, _ = normalise(task.encoders[name][held], space.mean)
            projected[name] = unit @ linear.projector(space.unit, power=ENCODE, ridge=None)
        decoders = {
            name: linear.graded_decoder(space.unit, power=DECODE, ridge=None)
            for name, space in spaces.items()
        }
        indexes = {
            name: Index(task.encoders[name][held] - space.mean) for name, space in spaces.items()
        }
        for source, target in permutations(spaces, 2):
            pair = spaces[source], spaces[target]
            x, y = task.encoders[source], task.encoders[target]
            translated = {FACTORS: projected[source] @ decoders[target]}
            for row, method in ((FITTED, "graded"), (RIDGE, "ridge"), (PROCRUSTES, "procrustes")):
                options = methods.resolve(method, {}, anchors=ANCHORS)
                translated[row] = (
                    apply(methods.fit(method, *pair, options), x[held]).vectors.double()
                    - pair[1].mean
                )
            choice = selection.choose_method(x[known], y[known])
            chosen = apply(methods.fit(choice.method, *pair, choice.options), x[held])
            translated[AUTO] = chosen.vectors.double() - pair[1].mean
            for row, vectors in translated.items():
                measured = indexes[target].measure(vectors)
                found.setdefault(row, []).append([getattr(measured, name) for name in MEASURES])
    means = {
        row: dict(zip(MEASURES, map(mean, zip(*values, strict=True)), strict=True))
        for row, values in found.items()
    }
    shown = new_table(
        f"13 encoders, 156 ordered pairs, {ANCHORS} anchors, {SEEDS} seeds",
        ("",),
        ("cosine", "recall@10", "MRR"),
    )
    for row, figures in means.items():
        shown.add_row(row, *(f"{value:.4f}" for value in figures.values()))
    console.print(shown)
    table.write(
        path,
        {"about": about},
        "hub",
        {"encoders": len(task.encoders), "pairs": 156, "seeds": SEEDS, "rows": means},
    )
