"""How much does the quality of two ways to search differ from query to query?

    python -m benchmarks.deviations

Writes benchmarks/results/deviations.json: for the pairs of encoders of Cranfield at 300 anchors,
the standard deviation over the queries of nDCG@10 less that of keep. From it, `POST /advice` says
how many judged queries decide, where a client has none.

Data: ANCHORAGE_DATA/cranfield; the README of that folder says where it comes from.
"""

from __future__ import annotations

import json
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from app.maths.geometry.space import fit_space
from app.maths.relevance.options import SEARCH_OPTIONS, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements, collect
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import DATA, RESULTS, parser, write

ANCHORS, SEED = 300, 0
ENCODERS = ("use", "e5", "minilm")
WEIGHT = 0.25
METHOD, OPTIONS = "graded", {"encode_power": 1.0, "decode_power": 0.25, "ridge": 1.0}


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, RESULTS / "deviations.json").parse_args()
    judged = judgements()
    cells = {
        f"{old} -> {new}": deviations(old, new, judged) for old, new in permutations(ENCODERS, 2)
    }
    fuse = [cell["fuse"] for cell in cells.values()]
    others = [value for cell in cells.values() for name, value in cell.items() if name != "fuse"]
    table = Table(title="Standard deviation over queries of nDCG@10 less that of keep")
    names = [option for option in SEARCH_OPTIONS if option != "keep"]
    for column in ("old -> new", *names):
        table.add_column(column)
    for name, cell in cells.items():
        table.add_row(name, *(f"{cell[option]:.3f}" for option in names))
    Console().print(table)
    report = {
        "anchors": ANCHORS,
        "queries": len(judged),
        "weight": WEIGHT,
        "median_of_fuse": round(median(fuse), 4),
        "median_of_others": round(median(others), 4),
        "cells": cells,
    }
    write(arguments.json, report)


def judgements() -> Judgements:
    """What people judged, by rows of the files."""
    texts = json.loads((DATA / "cranfield" / "cranfield.json").read_text(encoding="utf-8"))
    queries = {each["id"]: row for row, each in enumerate(texts["queries"])}
    documents = {each["id"]: row for row, each in enumerate(texts["docs"])}
    judged = {(queries[q], documents[d]): float(grade) for q, d, grade in texts["relevance"]}
    pairs = torch.tensor(list(judged), dtype=torch.int64)
    grades = torch.tensor(list(judged.values()), dtype=torch.float64)
    return collect(pairs[:, 0], pairs[:, 1], grades, size=len(documents))


def deviations(old: str, new: str, judged: Judgements) -> dict[str, float]:
    """The standard deviation of each option's difference from keep."""
    old_documents, old_queries = vectors(old)
    new_documents, new_queries = vectors(new)
    order = torch.randperm(len(old_documents), generator=torch.Generator().manual_seed(SEED))
    rows = order[:ANCHORS]
    x, y = fit_space(old_documents[rows]), fit_space(new_documents[rows])
    options: dict[str, Any] = methods.resolve(METHOD, OPTIONS, anchors=ANCHORS)
    there, back = methods.fit(METHOD, x, y, options), methods.fit(METHOD, y, x, options)
    found = measure_options(
        SearchVectors(
            old_queries,
            old_documents,
            new_queries,
            new_documents,
            apply(back, new_queries).vectors,
            apply(there, old_documents).vectors,
        ),
        judged,
        weights=(WEIGHT,),
    )
    values = {option: metrics.ndcg for option, metrics in found.options.items()}
    values["fuse"] = found.fused[0].ndcg
    keep = values.pop("keep")
    return {option: round(float((ndcg - keep).std()), 3) for option, ndcg in values.items()}


def vectors(encoder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Documents and queries by an encoder."""
    files = (DATA / "cranfield" / f"{encoder}-{what}.npy" for what in ("docs", "queries"))
    documents, queries = (np.load(file, allow_pickle=False).astype("float32") for file in files)
    return torch.from_numpy(documents), torch.from_numpy(queries)


if __name__ == "__main__":
    main()
