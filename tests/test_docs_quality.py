"""The tables of the pages on quality and methods are those of benchmarks/results/quality.json."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "quality.json"
PROMISES = RESULTS.with_name("promises.json")

#: the columns of the tables in docs/results/quality.md, by their names in the results
SHOWN = (
    "do nothing",
    "least squares",
    "isotrieve ridge, own lengths",
    "latentis procrustes",
    "irp",
    "procrustes",
    "ridge",
    "graded",
    "auto",
)
OURS = ("graded", "graded, lambda 1", "graded, lambda .3", "procrustes", "ridge", "canonical")


def sections() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())["sections"]  # type: ignore[no-any-return]


def compared() -> list[dict[str, Any]]:
    return [section for section in sections().values() if "task" in section]


def results_rows(measure: str) -> list[str]:
    """The largest two numbers of anchors of each task."""
    rows = []
    for section in compared():
        sizes = sorted({each["anchors"] for each in compared() if each["task"] == section["task"]})
        if section["anchors"] in sizes[-2:]:
            figures = [f"{section['rows'][method][measure]['mean']:.3f}" for method in SHOWN]
            rows.append(
                f"| {section['task']}, {section['anchors']:,} | " + " | ".join(figures) + " |"
            )
    return rows


def spread(std: float | None) -> str:
    """Between draws; nothing of a single one."""
    return "" if std is None else f" ± {std:.3f}"


def compare_rows() -> list[str]:
    rows = []
    for section in compared():
        auto, choice = section["rows"]["auto"], section["choice"]
        fixed = {
            name: row
            for name, row in section["rows"].items()
            if not name.startswith(("auto", "isotrieve", "latentis"))
        }
        best = max(fixed, key=lambda name: fixed[name]["recall"]["mean"])
        peers = {
            name: row
            for name, row in section["rows"].items()
            if name.startswith(("isotrieve", "latentis", "least"))
        }
        peer = max(
            (name for name in peers if peers[name]["pairs"] == auto["pairs"]),
            key=lambda n: peers[n]["recall"]["mean"],
        )
        rows.append(
            f"| {section['task']} | {section['anchors']:,} "
            f"| {auto['recall']['mean']:.3f}{spread(auto['recall']['std'])} "
            f"| {auto['mrr']['mean']:.3f} | {auto['cosine']['mean']:.3f} "
            f"| {fixed[best]['recall']['mean']:.3f} ({best}) "
            f"| {peers[peer]['recall']['mean']:.3f} ({peer}) "
            f"| {choice['own']:.0%} | {choice['lost']:.3f} |"
        )
    return rows


def powers_rows() -> list[str]:
    powers = sections()["powers"]
    rows = []
    for task, heat in powers["tasks"].items():
        peaks = []
        for measure in ("cosine", "recall", "mrr"):
            value, a, b = max(
                (heat[measure][row][column], a, b)
                for row, a in enumerate(powers["encode"])
                for column, b in enumerate(powers["decode"])
            )
            peaks.append(f"({a:g}, {b:g}) {value:.3f}")
        plain = heat["recall"][len(powers["encode"]) - 1]
        steps = " ".join(
            f"{plain[powers['decode'].index(b)]:.3f}" for b in (0.0, 0.125, 0.25, 0.375, 0.5)
        )
        rows.append(f"| {task} | {heat['anchors']} | " + " | ".join(peaks) + f" | {steps} |")
    return rows


def ridge_rows() -> list[str]:
    powers = sections()["powers"]
    own = powers["decode"].index(0.25)
    rows = []
    for task, heat in powers["tasks"].items():
        figures = [f"{value:.3f}" for value in heat["ridge"]["recall"]]
        rows.append(
            f"| {task} | {heat['anchors']} | "
            + " | ".join(figures)
            + f" | {heat['recall'][-1][own]:.3f} |"
        )
    return rows


def hub_rows() -> list[str]:
    return [
        f"| {name} | {row['cosine']:.4f} | {row['recall']:.4f} | {row['mrr']:.4f} |"
        for name, row in sections()["hub"]["rows"].items()
    ]


def choosing_rows() -> list[str]:
    return [f"| {way} | {value:.4f} |" for way, value in sections()["choosing"]["mean"].items()]


def classes_rows() -> list[str]:
    tasks = sections()["classes"]["tasks"]
    return [
        f"| {way} | " + " | ".join(f"{rows[way]:.3f}" for rows in tasks.values()) + " |"
        for way in next(iter(tasks.values()))
    ]


def promise_results() -> dict[str, Any]:
    return json.loads(PROMISES.read_text())  # type: ignore[no-any-return]


def promise_rows() -> list[str]:
    """Recall and MRR of each data set, index and number of anchors, without and with a sample."""
    rows = []
    for row in promise_results()["rows"]:
        cells = []
        for kind in ("none", "sample"):
            for name in ("recall", "mrr"):
                each = row[kind][name]
                cells.append(
                    f"{each['promised']:.3f} / {each['found']:.3f} ({each['absolute']:.3f})"
                )
        rows.append(
            f"| {row['data']} | {row['index']:,} | {row['anchors']:,} | " + " | ".join(cells) + " |"
        )
    return rows


def promise_summary_rows() -> list[str]:
    """Differences of recall and MRR in all cases of an index, and how many intervals hold."""
    rows = []
    for index in (1_000, 10_000, 100_000):
        cells = []
        for sampled in (False, True):
            cases = [
                each
                for each in promise_results()["cases"]
                if abs(each["index"] / index - 1) < 0.5 and bool(each["sample"]) == sampled
            ]
            for name in ("recall", "mrr"):
                numbers = [each["measures"][name] for each in cases]
                apart = mean(abs(value - found) for value, _, _, found in numbers)
                held = sum(low <= found <= high for _, low, high, found in numbers)
                cells.append(f"{apart:.3f}, {held} of {len(numbers)}")
        rows.append(f"| {index:,} | " + " | ".join(cells) + " |")
    return rows


def shuffled_rows() -> list[str]:
    return [
        f"| {name} | {row['shuffled']:.1%} | {row['true']:.1%} |"
        for name, row in sections()["shuffled"]["rows"].items()
    ]


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ("docs/results/quality.md", lambda: [*results_rows("recall"), *results_rows("mrr")]),
        ("docs/explanation/methods.md", compare_rows),
        ("docs/explanation/methods.md", powers_rows),
        ("docs/explanation/methods.md", ridge_rows),
        ("docs/explanation/methods.md", hub_rows),
        ("docs/explanation/methods.md", choosing_rows),
        ("docs/explanation/methods.md", classes_rows),
        ("docs/results/promises.md", promise_rows),
        ("docs/results/promises.md", promise_summary_rows),
        ("docs/how-to/quality.md", shuffled_rows),
    ],
)
def test_the_tables_are_those_of_the_results(document, rows):
    text = (ROOT / document).read_text()
    assert [row for row in rows() if row not in text] == []
