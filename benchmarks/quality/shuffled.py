"""Anchors whose rows do not match: does every method report that its translator is useless, and
never that a good one is?
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console

from app.demo.run import new_table
from app.maths.quality import selection
from app.maths.quality.crossfit import hold_out
from app.maths.quality.evidence import evidence
from app.maths.translators import methods
from benchmarks.quality import data, table

ANCHORS, SEEDS, PAIRS = 100, 2, 4


def run(console: Console, path: Path, about: str, arguments: argparse.Namespace) -> None:
    """Shares over tasks, pairs and seeds: of shuffled sets reported as useless, and of true ones as
    related.
    """
    torch.set_num_threads(2)
    said: dict[str, dict[str, list[float]]] = {}
    for task in data.tasks(arguments.tasks, console):
        for seed in range(1 if arguments.quick else SEEDS):
            known, _ = data.split(task, ANCHORS, seed)
            mixed = known[torch.randperm(ANCHORS, generator=torch.Generator().manual_seed(seed))]
            for source, target in task.pairs[:: -(-len(task.pairs) // PAIRS)]:
                x = task.encoders[source][known]
                for kind, chosen in (("shuffled", mixed), ("true", known)):
                    y = task.encoders[target][chosen]
                    for name in ("auto", *methods.METHODS):
                        found = said.setdefault(name, {"shuffled": [], "true": []})
                        found[kind].append(float(_useless(name, x, y) == (kind == "shuffled")))
    rows = {
        name: {kind: mean(values) for kind, values in found.items()} for name, found in said.items()
    }
    cases = len(next(iter(said.values()))["shuffled"])
    shown = new_table(
        f"{ANCHORS} anchors, {cases} cases each",
        ("method",),
        ("shuffled: useless", "true: related"),
    )
    for name, shares in rows.items():
        shown.add_row(name, *(f"{share:.1%}" for share in shares.values()))
    console.print(shown)
    table.write(
        path, {"about": about}, "shuffled", {"anchors": ANCHORS, "cases": cases, "rows": rows}
    )


def _useless(name: str, x: torch.Tensor, y: torch.Tensor) -> bool:
    if name == "auto":
        choice = selection.choose_method(x, y)
        name, options = choice.method, choice.options
    else:
        options = methods.resolve(name, {}, anchors=len(x))
    held = hold_out(name, x, y, options)
    assert held is not None
    return evidence(held.translated, y, held.first, held.fold_of).verdict == "useless"
