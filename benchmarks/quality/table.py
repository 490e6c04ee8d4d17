"""From single measurements to the rows and tables of the pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from app.maths.quality.metrics import bootstrap_interval
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
PEERS, OTHERS = ("isotrieve", "latentis", "least"), ("auto", "isotrieve", "latentis")


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


def choice(found: Found, auto: str, fixed: Sequence[str]) -> dict[str, float]:
    """`auto` compared with the fixed method of the best recall@10 on the same test items, of
    hindsight, cell by cell.

    own   share where the best one's recall@10 is not above the 95 % interval of auto's
    lost  mean over pairs and seeds of the best one's recall@10 minus auto's
    """
    own, lost = [], []
    for cell in found.values():
        best = max((cell[m] for m in fixed if m in cell), key=lambda measured: measured.recall)
        _, high = bootstrap_interval(cell[auto].recalls[:, None])
        own.append(float(best.recall <= float(high[0])))
        lost.append(best.recall - cell[auto].recall)
    return {"own": mean(own), "lost": mean(lost)}


def tables(sections: Iterable[Mapping[str, Any]]) -> dict[str, Table]:
    """Recall and MRR of the largest two numbers of anchors of each task, and how auto compares."""
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
    columns = ["data", "anchors", "auto: recall@10", "MRR", "cosine", "best fixed", "best peer"]
    found["auto"] = [[*columns, "within", "lost"], *map(_auto, sections)]
    return found


def _auto(section: Mapping[str, Any]) -> list[str]:
    rows, auto = section["rows"], section["rows"]["auto"]

    def best(names: Iterable[str]) -> str:
        name = max(names, key=lambda name: float(rows[name]["recall"]["mean"]))
        return f"{rows[name]['recall']['mean']:.3f} ({name})"

    std = auto["recall"]["std"]
    spread = "" if std is None else f" ± {std:.3f}"
    return [
        section["task"],
        f"{section['anchors']:,}",
        f"{auto['recall']['mean']:.3f}{spread}",
        f"{auto['mrr']['mean']:.3f}",
        f"{auto['cosine']['mean']:.3f}",
        best(name for name in rows if not name.startswith(OTHERS)),
        best(n for n in rows if n.startswith(PEERS) and rows[n]["pairs"] == auto["pairs"]),
        f"{section['choice']['own']:.0%}",
        f"{section['choice']['lost']:.3f}",
    ]
