"""From single measurements to the rows and tables of the pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean, stdev
from typing import Any

from benchmarks.common import Table
from benchmarks.quality.measure import Measured

#: of one task and number of anchors: (seed, (source, target)) -> what each method reached; methods
#: that refuse the pair are missing
Found = Mapping[tuple[int, tuple[str, str]], Mapping[str, Measured]]

FIGURES = ("cosine", "recall", "mrr")
#: the columns of docs/results/quality.md
SHOWN = {
    "do nothing": "do nothing",
    "least squares": "least squares",
    "isotrieve ridge, own lengths": "isotrieve 0.4.0, ridge",
    "latentis procrustes": "latentis 0.0.8, procrustes",
    "irp": "irp",
    "procrustes": "procrustes",
    "ridge": "ridge",
    "graded": "graded",
    "auto": "auto",
}


def summarise(found: Found) -> dict[str, dict[str, Any]]:
    """By method: over how many pairs, and for each of FIGURES the mean over seeds of the mean over
    pairs, and the standard deviation between seeds.
    """
    rows: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(method for cell in found.values() for method in cell):
        own = {key: cell[method] for key, cell in found.items() if method in cell}
        rows[method] = {"pairs": len({pair for _, pair in own})}
        for name in FIGURES:
            by_seed = [
                mean(getattr(each, name) for (s, _), each in own.items() if s == seed)
                for seed in dict.fromkeys(seed for seed, _ in own)
            ]
            std = stdev(by_seed) if len(by_seed) > 1 else None
            rows[method][name] = {"mean": mean(by_seed), "std": std}
    return rows


def tables(sections: Iterable[Mapping[str, Any]]) -> dict[str, Table]:
    """Recall and MRR of the largest two numbers of anchors of each task."""
    sections = list(sections)
    found: dict[str, Table] = {}
    for measure in ("recall", "mrr"):
        found[measure] = [["data, anchors", *SHOWN.values()]]
        for section in sections:
            sizes = sorted(e["anchors"] for e in sections if e["task"] == section["task"])
            if section["anchors"] in sizes[-2:]:
                rows = (section["rows"].get(method) for method in SHOWN)
                figures = ["" if row is None else f"{row[measure]['mean']:.3f}" for row in rows]
                found[measure].append([f"{section['task']}, {section['anchors']:,}", *figures])
    return found
