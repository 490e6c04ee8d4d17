"""Which items should be added to an anchor set?

    python -m benchmarks.suggestions  # about a minute of one core

Writes benchmarks/results/suggestions.json.

Banking77 by three text encoders. 100 random sentences of the training split are the anchors; 100
more are taken from a pool of 3,000 others: at random, one for each of 100 k-means clusters, by the
largest determinant (D-optimal), or as `suggest` takes them (app/maths/anchors/coverage.py) from the
vectors of the source encoder or of the target. The graded method with its defaults translates 1,500
sentences of the test split, which are then searched for among themselves; all 6 ordered pairs, 5
draws.

Data: Banking77's sentences embedded by three encoders, as
$ANCHORAGE_DATA/encoders/emb/banking77.*.npz.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from app.demo.run import new_table
from app.maths.anchors.coverage import COVERAGE_RIDGE, suggest
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space, normalise
from app.maths.quality.metrics import Quality, item_metrics, mean_quality
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import DATA, RESULTS, parser, write
from research.anchors import medoids

FOLDER = DATA / "encoders" / "emb"
ENCODERS = ("minilm6-384", "minilm3-512", "static-256")
ANCHORS, ADDED, POOL, TEST = 100, 100, 3_000, 1_500
SEEDS = range(5)

NOTHING, RANDOM, TARGET = "none added", "random", "suggested, by the target"
FIGURES = ("cosine", "recall", "mrr")

#: chooses rows of the pool: from raw anchors, the raw pool and a seed
Choice = Callable[[Tensor, Tensor, int], list[int]]


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, RESULTS / "suggestions.json").parse_args()
    files = {name: FOLDER / f"banking77.{name}.npz" for name in ENCODERS}
    if not all(file.exists() for file in files.values()):
        sys.exit(
            f"No banking77.*.npz in {FOLDER}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    train, test = (
        {name: load(file, split) for name, file in files.items()} for split in ("train", "test")
    )
    cells = [cell for seed in track(SEEDS, "draws") for cell in measure(train, test, seed)]
    summary = {
        row: summarise([cell[row] for cell in cells], [cell[RANDOM] for cell in cells])
        for row in cells[0]
    }
    show(summary)
    write(
        options.json, {"about": __doc__.split("\n\n")[2], "cells": len(cells), "summary": summary}
    )


def load(file: Path, split: str) -> Tensor:
    return torch.from_numpy(np.load(file, allow_pickle=False)[split].astype("float32"))


def measure(
    train: dict[str, Tensor], test: dict[str, Tensor], seed: int
) -> list[dict[str, Quality]]:
    """The figures of every choice for each ordered pair, in one draw."""
    order = torch.randperm(len(train[ENCODERS[0]]), generator=torch.Generator().manual_seed(seed))
    known, pool = order[:ANCHORS], order[ANCHORS : ANCHORS + POOL]
    held = torch.randperm(len(test[ENCODERS[0]]), generator=torch.Generator().manual_seed(seed))[
        :TEST
    ]
    chosen = {
        name: {
            row: pool[torch.tensor(choose(train[name][known], train[name][pool], seed))]
            for row, choose in CHOICES.items()
        }
        for name in ENCODERS
    }
    cells = []
    for source, target in permutations(ENCODERS, 2):
        added = {NOTHING: known[:0], **chosen[source], TARGET: chosen[target][SUGGESTED]}
        cells.append(
            {
                row: translate(train, test, source, target, torch.cat([known, rows]), held)
                for row, rows in added.items()
            }
        )
    return cells


def translate(
    train: dict[str, Tensor],
    test: dict[str, Tensor],
    source: str,
    target: str,
    anchors: Tensor,
    held: Tensor,
) -> Quality:
    """Held-out quality with these anchors, centred on the target's."""
    x, y = fit_space(train[source][anchors]), fit_space(train[target][anchors])
    translator = methods.fit("graded", x, y, methods.resolve("graded", {}, anchors=len(anchors)))
    translated = apply(translator, test[source][held]).vectors
    return mean_quality(item_metrics(translated - y.mean, test[target][held] - y.mean))


def suggested(anchors: Tensor, pool: Tensor, seed: int) -> list[int]:
    space = fit_space(anchors)
    return suggest(space.unit, normalise(pool.double(), space.mean)[0], count=ADDED).rows


def determinant(anchors: Tensor, pool: Tensor, seed: int) -> list[int]:
    """Greedy by log det(C + ridge I): the largest v^T B v first, with B updated each time."""
    space = fit_space(anchors)
    items = normalise(pool.double(), space.mean)[0]
    inverse = torch.linalg.inv(
        space.unit.T @ space.unit + COVERAGE_RIDGE * torch.eye(space.dim, dtype=items.dtype)
    )
    rows: list[int] = []
    for _ in range(ADDED):
        leverage = ((items @ inverse) * items).sum(dim=1)
        leverage[rows] = -1.0
        rows.append(int(leverage.argmax()))
        reached = inverse @ items[rows[-1]]
        inverse -= torch.outer(reached, reached) / (1.0 + items[rows[-1]] @ reached)
    return rows


SUGGESTED = "suggested, by the source"
CHOICES: dict[str, Choice] = {
    RANDOM: lambda anchors, pool, seed: draw_uniformly(len(pool), size=ADDED, seed=seed),
    "k-means medoids": lambda anchors, pool, seed: medoids(pool, size=ADDED, seed=seed),
    "D-optimal": determinant,
    SUGGESTED: suggested,
}


def summarise(rows: list[Quality], random: list[Quality]) -> dict[str, float]:
    """Means; and compared with random in the same cell: the mean difference, its deviation, and the
    share of cells that are better.
    """
    found: dict[str, float] = {}
    for figure in FIGURES:
        values = [getattr(row, figure) for row in rows]
        apart = [
            value - getattr(other, figure) for value, other in zip(values, random, strict=True)
        ]
        found |= {
            figure: mean(values),
            f"{figure}_gain": mean(apart),
            f"{figure}_gain_std": stdev(apart),
        }
        found[f"{figure}_wins"] = mean(float(each > 0) for each in apart)
    return found


def show(summary: dict[str, dict[str, float]]) -> None:
    """Print one table."""
    title = (
        f"{ADDED} anchors added to {ANCHORS}; in brackets: the difference from random, "
        "and the share of better cells"
    )
    table = new_table(title, ("added",), ("cosine", "recall@10", "MRR"))
    for row, numbers in summary.items():
        cells = [
            f"{numbers[f]:.3f} ({numbers[f + '_gain']:+.3f}, {numbers[f + '_wins']:.0%})"
            for f in FIGURES
        ]
        table.add_row(row, *cells)
    Console(width=max(110, Console().width)).print(table)


if __name__ == "__main__":
    main()
