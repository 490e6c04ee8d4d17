"""What the documents say is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

from app import __version__, errors
from app.settings import Settings

ROOT = Path(__file__).parent.parent


def subclasses(cls: type) -> set[type]:
    return {cls} | {deeper for direct in cls.__subclasses__() for deeper in subclasses(direct)}


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        row = next(
            line for line in text.splitlines() if line.startswith(f"| `ANCHORAGE_{name.upper()}`")
        )
        default = "" if field.default is None else str(field.default)
        assert f"| {default} |".replace("|  |", "| |") in row, row
        assert field.description is not None


def test_every_error_is_in_the_tree_and_has_a_code_of_its_own() -> None:
    found = subclasses(errors.AnchorageError)
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in found)
    assert len({cls.code for cls in found}) == len(found)


def test_every_error_code_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    leaves = [cls for cls in subclasses(errors.AnchorageError) if not cls.__subclasses__()]
    assert [cls.code for cls in leaves if f"`{cls.code}`" not in text] == []


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] in (__version__, "Unreleased")


def test_the_readme_quotes_the_demo() -> None:
    text = (ROOT / "README.md").read_text()
    demo = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text())
    for name, row in demo["mean"].items():
        assert (
            f"| {name} | "
            + " | ".join(f"{row[key]:.3f}" for key in ("cosine", "recall", "mrr"))
            + " |"
            in text
        )
    for name in ("recall", "cosine"):
        farthest = max(
            abs(row[f"promised_{name}"] - row[f"measured_{name}"]) for row in demo["promises"]
        )
        assert f"{name} within {farthest:.3f}" in text


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("app/demo/data/*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_operators_page_quotes_the_fault_table() -> None:
    text = (ROOT / "docs" / "results" / "faults.md").read_text()
    faults = json.loads((ROOT / "benchmarks" / "results" / "faults.json").read_text())["faults"]
    counts = ("requests", "ok", "busy", "broken", "dropped", "lost", "twice", "wrong")
    for name, row in faults.items():
        assert (
            f"| {name} | {row['done']} | " + " | ".join(str(row[key]) for key in counts) + " |"
            in text
        )


def test_the_page_on_evaluations_quotes_the_benchmark() -> None:
    text = (ROOT / "docs" / "how-to" / "evaluate.md").read_text()
    results = json.loads((ROOT / "benchmarks" / "results" / "hubness.json").read_text())["results"]
    for name, searches in results.items():
        for search, kinds in searches.items():
            for kind, row in kinds.items():
                figures = [
                    f"{row[key]:.3f}" for key in ("mrr", "mrr_csls", "recall", "recall_csls")
                ]
                figures += [f"{row[key]:.2f}" for key in ("skewness", "skewness_csls")]
                assert f"| {name} | {search} | {kind} | " + " | ".join(figures) + " |" in text


def test_the_page_on_thresholds_quotes_the_benchmark() -> None:
    text = (ROOT / "docs" / "how-to" / "thresholds.md").read_text()
    summary = json.loads((ROOT / "benchmarks" / "results" / "thresholds.json").read_text())[
        "summary"
    ]
    choices = ("unchanged", "mapped", "by_rate", "best")
    for data, kinds in summary.items():
        for scores, row in kinds.items():
            figures = [
                row[key] for key in ("coverage", "coverage_top", "error", "mae", "mae_unchanged")
            ]
            figures += [row["f1"][choice] for choice in choices]
            assert (
                f"| {data} | {scores} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |"
                in text
            )
        for threshold, row in kinds["translated-native"]["by_threshold"].items():
            figures = [f"{row[choice]:.3f}" for choice in choices]
            assert f"| {data} | {threshold} | {row['runs']} | " + " | ".join(figures) + " |" in text
