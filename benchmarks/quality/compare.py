"""Every method, every peer and auto on the same splits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import Space, fit_space
from app.maths.quality import selection
from app.maths.quality.candidates import Candidate
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.quality import data, peers
from benchmarks.quality.measure import Index, Measured

AUTO = "auto"

#: methods that are fitted by name, as a client would
FIXED: dict[str, tuple[str, methods.Options]] = {
    "irp": ("irp", {}),
    "irp-ridge": ("irp-ridge", {}),
    "graded": ("graded", {}),
    "graded, lambda 1": ("graded", {"ridge": 1.0}),
    "graded, lambda .3": ("graded", {"ridge": 0.3}),
    "procrustes": ("procrustes", {}),
    "ridge": ("ridge", {}),
    "toward-procrustes, lambda 100": ("toward-procrustes", {"ridge": 100.0}),
    "canonical": ("canonical", {}),
}

#: the paper's method with a delta that is chosen on the anchors as auto chooses. Each fit prunes
#: anew, so only on the first draw, up to MOST_TUNED anchors, and in tasks of at most MOST_PAIRS
#: pairs
TUNED = "irp, tuned"
MOST_TUNED, MOST_PAIRS = 300, 30
DELTAS = tuple(Candidate("irp", {"delta": delta}) for delta in (0.6, 0.5, 0.7, 0.8))

#: what neither shuffles nor prunes, and so is quick enough for every seed
SLOW = ("irp", "irp-ridge")


@dataclass
class Cell:
    """One pair, split and number of anchors: what each method reached and how long it took, and
    what auto chose.
    """

    reached: dict[str, Measured] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    chosen: tuple[str, Mapping[str, object]] = ("", {})


@cache
def task_of(name: str) -> data.Task:
    """A task, loaded once in each process."""
    return next(data.tasks([name], Console(quiet=True)))


@cache
def others() -> Mapping[str, peers.Fit]:
    return peers.peers(Console(quiet=True))


def cells(
    name: str, anchors: int, seed: int, pairs: list[tuple[str, str]]
) -> dict[tuple[str, str], Cell]:
    """All pairs of one split, which one process measures at once."""
    torch.set_num_threads(1)
    task = task_of(name)
    known, held = data.split(task, anchors, seed)
    spaces = {
        encoder: fit_space(task.encoders[encoder][known]) for pair in pairs for encoder in pair
    }
    indexes: dict[str, Index] = {}
    found = {}
    tuned = seed == 0 and anchors <= MOST_TUNED and len(task.pairs) <= MOST_PAIRS
    for pair in pairs:
        x, y = (task.encoders[encoder] for encoder in pair)
        if pair[1] not in indexes:
            indexes[pair[1]] = Index(y[held] - y[known].mean(dim=0), (anchors,))
        found[pair] = _cell(
            x,
            y,
            spaces[pair[0]],
            spaces[pair[1]],
            known,
            held,
            indexes[pair[1]],
            first=seed == 0,
            tuned=tuned,
        )
    return found


def _cell(
    x: Tensor,
    y: Tensor,
    source: Space,
    target: Space,
    known: Tensor,
    held: Tensor,
    index: Index,
    *,
    first: bool,
    tuned: bool,
) -> Cell:
    cell, mean = Cell(), y[known].mean(dim=0)

    def note(name: str, started: float, translated: Tensor) -> None:
        cell.seconds[name] = time.perf_counter() - started
        cell.reached[name] = index.measure(translated.double() - mean)

    anchors, answers = (
        x[known],
        y[known],
    )  # the same objects for every peer, because one of them fits once for two rows
    for name, fit in others().items():
        started = time.perf_counter()
        try:
            note(name, started, fit(anchors, answers)(x[held]))
        except peers.NotApplicable:
            continue
    for name, (method, given) in FIXED.items():
        if first or name not in SLOW:
            started = time.perf_counter()
            note(name, started, _translated(method, given, source, target, x[held]))
    if tuned:
        started = time.perf_counter()
        chosen = selection.choose_method(x[known], y[known], candidates=DELTAS, usual=DELTAS[0])
        note(TUNED, started, _translated(chosen.method, chosen.options, source, target, x[held]))
    started = time.perf_counter()
    choice = selection.choose_method(x[known], y[known])
    note(AUTO, started, _translated(choice.method, choice.options, source, target, x[held]))
    cell.chosen = (
        choice.method,
        {
            name: value
            for name, value in choice.options.items()
            if name not in methods.OUTPUT_OPTIONS
        },
    )
    return cell


def _translated(
    method: str, given: methods.Options, source: Space, target: Space, vectors: Tensor
) -> Tensor:
    return apply(
        methods.fit(method, source, target, methods.resolve(method, given, anchors=source.size)),
        vectors,
    ).vectors
