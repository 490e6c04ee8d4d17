"""How can one choose among fifty candidates by the anchors alone? Ways to choose, and what they
reach on unseen items.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console

from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.quality import candidates, selection
from app.maths.quality.candidates import DEFAULT_CANDIDATE, Candidate
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.quality import data, table
from benchmarks.quality.compare import task_of
from benchmarks.quality.measure import Index

ANCHORS = (50, 100, 300)
PAIRS, SEEDS = 4, 2

BY_RECALL = "the best recall of held-out anchors"
BY_SCORE = "the best score: recall and some MRR"
ALWAYS = "always the usual one"
AUTO = "auto: the usual one, unless another is told apart"
TASK = "the best of the task, known afterwards"
PAIR = "the best of each pair, known afterwards"


def run(console: Console, path: Path, about: str, arguments: argparse.Namespace) -> None:
    """Mean recall@10 of unseen items for each way to choose, over tasks, pairs and seeds."""
    sections: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for task in data.tasks(arguments.tasks, console):
            for anchors in ANCHORS:
                if anchors not in task.sizes or (arguments.quick and anchors > 50):
                    continue
                pairs = task.pairs[:: -(-len(task.pairs) // PAIRS)]
                work = [
                    (seed, pair)
                    for seed in range(1 if arguments.quick else SEEDS)
                    for pair in pairs
                ]
                found = [
                    answer.result()
                    for answer in [pool.submit(_of, task.name, anchors, *each) for each in work]
                ]
                sections[f"{task.name}, {anchors}"] = _means(
                    [ways for ways, _ in found], [every for _, every in found]
                )
    ways = list(next(iter(sections.values())))
    means = {way: mean(section[way] for section in sections.values()) for way in ways}
    shown = new_table("recall@10 of unseen items", ("chosen",), ("mean", *sections))
    for way in ways:
        shown.add_row(
            way,
            *(
                f"{value:.4f}"
                for value in (means[way], *(section[way] for section in sections.values()))
            ),
        )
    console.print(shown)
    table.write(
        path,
        {"about": about},
        "choosing",
        {"pairs": PAIRS, "seeds": SEEDS, "mean": means, "cells": sections},
    )


def _means(ways: list[dict[str, float]], every: list[list[float]]) -> dict[str, float]:
    """Means over the cells of one task and number of anchors. The task's best candidate is the best
    on their average.
    """
    found = {way: mean(each[way] for each in ways) for way in ways[0]}
    return {**found, TASK: max(map(mean, zip(*every, strict=True))), PAIR: mean(map(max, every))}


def _of(
    name: str, anchors: int, seed: int, pair: tuple[str, str]
) -> tuple[dict[str, float], list[float]]:
    """recall@10 by each way to choose, and of every candidate, in their order."""
    torch.set_num_threads(1)
    task = task_of(name)
    known, held = data.split(task, anchors, seed)
    x, y = (task.encoders[encoder] for encoder in pair)
    spaces, centre = (fit_space(x[known]), fit_space(y[known])), y[known].mean(dim=0)
    index = Index(y[held] - centre)
    choice = selection.choose_method(x[known], y[known])
    reached = {}
    for method, given in candidates.candidates_for("retrieval"):
        options = methods.resolve(method, given, anchors=anchors)
        translated = apply(methods.fit(method, *spaces, options), x[held]).vectors.double()
        reached[_key(method, given)] = index.measure(translated - centre).recall
    by_recall = max(choice.candidates, key=lambda each: each.recall)
    by_score = choice.candidates[0]
    chosen = {
        name: choice.options[name]
        for method, given in candidates.candidates_for("retrieval")
        if method == choice.method
        for name in given
    }
    ways = {
        BY_RECALL: reached[_key(by_recall.method, by_recall.options)],
        BY_SCORE: reached[_key(by_score.method, by_score.options)],
        ALWAYS: reached[_key(*DEFAULT_CANDIDATE["retrieval"])],
        AUTO: reached[_key(choice.method, chosen)],
    }
    return ways, list(reached.values())


def _key(method: str, given: methods.Options) -> Candidate:
    return Candidate(method, tuple(sorted(given.items())))  # type: ignore[arg-type]
