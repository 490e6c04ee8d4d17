"""Every method, every peer and auto on the same splits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import Space, fit_space
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
    "kernel": ("kernel", {}),
}

#: what neither shuffles nor prunes, and so is quick enough for every seed
SLOW = ("irp", "irp-ridge")


#: one pair, split and number of anchors: what each method reached
Cell = dict[str, Measured]


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
    for pair in pairs:
        x, y = (task.encoders[encoder] for encoder in pair)
        if pair[1] not in indexes:
            indexes[pair[1]] = Index(y[held] - y[known].mean(dim=0))
        found[pair] = _cell(
            x,
            y,
            spaces[pair[0]],
            spaces[pair[1]],
            known,
            held,
            indexes[pair[1]],
            first=seed == 0,
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
) -> Cell:
    cell, mean = Cell(), y[known].mean(dim=0)

    def note(name: str, translated: Tensor) -> None:
        cell[name] = index.measure(translated.double() - mean)

    # The same objects for every peer, because one of them fits once for two rows.
    anchors, answers = x[known], y[known]
    for name, fit in others().items():
        with suppress(peers.NotApplicable):
            note(name, fit(anchors, answers)(x[held]))
    for name, (method, given) in FIXED.items():
        if first or name not in SLOW:
            note(name, _translated(method, given, source, target, x[held]))
    cell[AUTO] = cell[methods.usual_method(len(known))]
    return cell


def _translated(
    method: str, given: methods.Options, source: Space, target: Space, vectors: Tensor
) -> Tensor:
    return apply(
        methods.fit(method, source, target, methods.resolve(method, given, anchors=source.size)),
        vectors,
    ).vectors
