"""Ten encoders, 90 ordered pairs: what does a translation lose that is not fitted to its pair?

    python -m benchmarks.frontier.chains

Compares, on items that no fit has seen:

direct        a translator fitted to each pair, its method chosen by `auto`
projectors    one projector and one decoder for each encoder, joined by their relative vectors
one encoder   source -> hub -> target, by two direct translators, with each other encoder as the hub
consensus     source -> hub -> target, where the hub is the mean space of all encoders: the leading
              directions of their anchors' whitened coordinates, side by side
chain of n    n direct translators, one after the other, through encoders drawn at random

Prints a table and writes benchmarks/results/chains.json.
Data: ANCHORAGE_DATA/cifar10-embeddings; its README says where it comes from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, permutations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from app.demo.run import new_table
from app.maths.geometry.space import Space, fit_space, normalise
from app.maths.quality import selection
from app.maths.translators import linear, methods
from app.maths.translators.translator import Translator, apply
from benchmarks.common import DATA, RESULTS, Missing, parser, rounded, write
from benchmarks.quality.measure import Index

ANCHORS = (300,)
TESTED, DRAWS = 1_000, 1
LENGTHS = (2, 3, 4, 6, 9)
#: the powers of auto's usual method
ENCODE, DECODE = 1.0, 0.25
HUB_DIMENSIONS, HUB_RIDGE = 256, 1.0
MEASURES = ("recall", "mrr", "cosine")

Vectors = Mapping[str, Tensor]
#: rows of the table -> a list of MEASURES, one for each pair
Found = dict[str, list[list[float]]]
Direct = Mapping[tuple[str, str], Translator]
Add = Callable[[str, str, Tensor], None]


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, RESULTS / "chains.json").parse_args()
    torch.set_num_threads(2)
    vectors = embeddings()
    cells = {}
    console = Console()
    for anchors in ANCHORS:
        draws = [measure(vectors, anchors, seed) for seed in range(DRAWS)]
        rows = {
            row: dict(
                zip(
                    MEASURES,
                    map(mean, zip(*(v for draw in draws for v in draw[row]), strict=True)),
                    strict=True,
                )
            )
            for row in draws[0]
        }
        cells[str(anchors)] = rows
        table = new_table(
            f"{len(vectors)} encoders, {len(vectors) * (len(vectors) - 1)} ordered pairs, "
            f"{anchors:,} anchors",
            ("",),
            ("recall@10", "MRR", "cosine"),
        )
        for row, figures in rows.items():
            table.add_row(row, *(f"{value:.3f}" for value in figures.values()))
        console.print(table)
    about = {"encoders": list(vectors), "tested": TESTED, "draws": DRAWS, "anchors": list(ANCHORS)}
    write(arguments.json, {**about, "cells": rounded(cells, 4)})


def page_rows(report: Mapping[str, Any]) -> list[str]:
    """The rows of docs/results/chains.md: the figures for each number of anchors."""
    cells = [report["cells"][str(anchors)] for anchors in report["anchors"]]
    return [
        f"| {row} | "
        + " | ".join(f"{cell[row][name]:.3f}" for cell in cells for name in MEASURES)
        + " |"
        for row in cells[0]
    ]


def embeddings() -> dict[str, Tensor]:
    """The vectors (n, d) of the same images by every encoder. Raises Missing."""
    folder = DATA / "cifar10-embeddings"
    paths = [path for path in sorted(folder.glob("*.npz")) if path.stem != "labels"]
    if not paths:
        raise Missing(f"{folder}: CIFAR-10 (Krizhevsky 2009) by ten public encoders.")
    return {path.stem: _pooled(path) for path in paths}


def _pooled(path: Path) -> Tensor:
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(np.concatenate([file["train"], file["test"]])).double()


def measure(vectors: Vectors, anchors: int, seed: int) -> Found:
    """Every row of the table for one draw of anchors."""
    count = len(next(iter(vectors.values())))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    known, held = order[:anchors], order[-TESTED:]
    names = list(vectors)
    spaces = {name: fit_space(vectors[name][known]) for name in names}
    indexes = {name: Index(vectors[name][held] - spaces[name].mean) for name in names}
    test = {name: vectors[name][held] for name in names}
    direct = {
        (source, target): _chosen(vectors[source][known], vectors[target][known])
        for source, target in permutations(names, 2)
    }
    found: Found = {}

    def add(row: str, target: str, translated: Tensor) -> None:
        measured = indexes[target].measure(translated.double() - spaces[target].mean)
        found.setdefault(row, []).append([getattr(measured, name) for name in MEASURES])

    once = {pair: apply(translator, test[pair[0]]).vectors for pair, translator in direct.items()}
    for (_, target), translated in once.items():
        add("direct", target, translated)
    for target, translated in _by_projectors(spaces, test):
        add("projectors", target, translated)
    hub = consensus(spaces)
    into = {name: _chosen(vectors[name][known], hub) for name in names}
    out_of = {name: _chosen(hub, vectors[name][known]) for name in names}
    for source, target in direct:
        in_hub = apply(into[source], test[source]).vectors
        add("consensus", target, apply(out_of[target], in_hub).vectors)
    _through_one(direct, once, add)
    _through_several(direct, test, random.Random(seed), add)  # noqa: S311 - no secret
    return found


def _chosen(source: Tensor, target: Tensor) -> Translator:
    """The translator that `auto` would serve."""
    choice = selection.choose_method(source, target)
    return methods.fit(choice.method, fit_space(source), fit_space(target), choice.options)


def _by_projectors(spaces: Mapping[str, Space], test: Vectors) -> Iterator[tuple[str, Tensor]]:
    projected = {}
    for name, space in spaces.items():
        unit, _ = normalise(test[name], space.mean)
        projected[name] = unit @ linear.projector(space.unit, power=ENCODE, ridge=None)
    decoders = {
        name: linear.graded_decoder(space.unit, power=DECODE, ridge=None)
        for name, space in spaces.items()
    }
    for source, target in permutations(spaces, 2):
        yield target, projected[source] @ decoders[target] + spaces[target].mean


def consensus(spaces: Mapping[str, Space]) -> Tensor:
    """The anchors (k, r) in the mean space: the leading left singular vectors of all encoders'
    whitened anchors, side by side, scaled by their singular values.

    It is generalised canonical correlation analysis (Carroll 1968) with ridges.
    """
    whitened = []
    for space in spaces.values():
        left, values, _ = torch.linalg.svd(space.unit, full_matrices=False)
        whitened.append(left * (values.square() / (values.square() + HUB_RIDGE)).sqrt())
    left, values, _ = torch.linalg.svd(torch.cat(whitened, dim=1), full_matrices=False)
    hub: Tensor = left[:, :HUB_DIMENSIONS] * values[:HUB_DIMENSIONS]
    return hub


def _through_one(direct: Direct, once: Mapping[tuple[str, str], Tensor], add: Add) -> None:
    """A row for all hubs together, and one for each."""
    names = list(dict.fromkeys(source for source, _ in direct))
    for source, target in direct:
        for hub in names:
            if hub not in (source, target):
                translated = apply(direct[hub, target], once[source, hub]).vectors
                add("one encoder", target, translated)
                add(f"one encoder: {hub}", target, translated)


def _through_several(direct: Direct, test: Vectors, generator: random.Random, add: Add) -> None:
    """A row for every length of chain; no encoder occurs twice in one."""
    names = list(dict.fromkeys(source for source, _ in direct))
    for source, target in direct:
        others = [name for name in names if name not in (source, target)]
        for length in LENGTHS:
            translated = test[source]
            stops = [source, *generator.sample(others, length - 1), target]
            for step in pairwise(stops):
                translated = apply(direct[step], translated).vectors
            add(f"chain of {length}", target, translated)


if __name__ == "__main__":
    main()
