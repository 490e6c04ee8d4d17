"""docs/explanation/anchors.md quotes its benchmarks, to the digits shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.maths.geometry.quantise import error_bound, step_size

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "research" / "results"
STRATEGIES = ("uniform", "fps", "kmeans", "top1000", "top5000")


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docs" / "explanation" / "anchors.md").read_text()


@pytest.fixture(scope="module")
def found() -> Mapping[str, Any]:
    return json.loads((RESULTS / "anchor_strategies.json").read_text())


@pytest.fixture(scope="module")
def models() -> Mapping[str, Any]:
    return json.loads((RESULTS / "proxy.json").read_text())


def shown(row: Mapping[str, Any], *names: str) -> str:
    return " / ".join(f"{row[name]['mean']:.3f}" for name in names)


def expect(text: str, *cells: Any) -> None:
    line = f"| {' | '.join(map(str, cells))} |"
    assert line in text.splitlines(), line


def deviations(found: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[float]:
    """The standard deviations of a section's numbers of these names."""
    for name, value in found.items():
        if name in names and "std" in value:
            yield value["std"]
        elif isinstance(value, dict):
            yield from deviations(value, names)


def test_strategies_by_translation(text, found):
    for data, sizes in found["translation"]["tables"].items():
        for size, rows in sizes.items():
            cells = [
                shown(rows[name], "recall", "mrr") if name in rows else "-" for name in STRATEGIES
            ]
            expect(text, f"{data}, {size}", *cells)
    assert max(deviations(found["translation"]["tables"], ("recall", "mrr"))) <= 0.022


def test_the_papers_tables(text, found):
    forth, back = found["tables"]["tables"]["CIFAR-10"].values()
    measures = ("jaccard", "mrr", "cosine")
    for name, row in forth.items():
        paper = [
            " / ".join(f"{each[name]['paper'][m]:.2f}" for m in measures) if "paper" in row else "-"
            for each in (forth, back)
        ]
        expect(text, name, shown(row, *measures), shown(back[name], *measures), *paper)
    words = found["tables"]["tables"]
    there, back = words["fastText, word2vec"].values()
    assert f"an MRR of {shown(there['uniform'], 'mrr')} and {shown(back['uniform'], 'mrr')}" in text
    there, back = words["GoogleNews, word2vec"].values()
    assert f"ours with {shown(there['uniform'], 'mrr')} and {shown(back['uniform'], 'mrr')}" in text


def test_domains(text, found):
    for data, sizes in found["domains"]["tables"].items():
        for size, rows in sizes.items():
            cells = [shown(row, "translated recall", "translated mrr") for row in rows.values()]
            expect(text, f"{data}, {int(size):,}", *cells)
    assert (
        max(deviations(found["domains"]["tables"], ("translated recall", "translated mrr")))
        <= 0.045
    )


def test_the_grid(text, found):
    words, questions, clusters = found["quantised"]["tables"].values()
    for name, row in words.items():
        cells = [
            cell
            for each in (row, questions[name])
            for cell in (
                shown(each, "mrr"),
                shown(each, "kept"),
                shown(each, "translated recall", "translated mrr"),
            )
        ]
        expect(text, name, f"{row['bytes']['mean']:g}", *cells)
    for name, row in clusters.items():
        expect(text, name, shown(row, "cosine"), shown(row, "mrr"), shown(row, "left"))
    assert json.dumps({"bits": 8, "step": step_size(8), "bound": error_bound(8)}) in text


def test_the_guarantee_is_quoted_and_holds(text, found):
    for bits, row in found["quantised"]["guarantee"]["table"].items():
        cells = [
            f"allowed {c['allowed']}, largest {c['largest']:.0f}, changed {c['changed']:.3f}"
            for c in row.values()
        ]
        expect(text, bits.partition(" ")[0], *cells)
        assert all(cell["largest"] <= cell["allowed"] for cell in row.values())


def test_similarity_and_accuracy(text, models):
    for group, over_time in models["over_time"].items():
        measures = ("similarity", "cka")
        over = [
            f"{over_time[name]['mean']:.3f} ± {over_time[name]['std']:.3f}" for name in measures
        ]
        across = models["across_models"][group]
        ends = [
            f"{across[name]['validation']:.3f} / {across[name]['test']:.3f}" for name in measures
        ]
        expect(text, group.removeprefix("validation "), over_time["models"], *over, *ends)
    assert f"compared with the paper's {models['paper']['over time']}" in text
