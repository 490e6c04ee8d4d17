"""The tables of README.md and docs/bootstrap-measured.md are those of benchmarks/results/bootstrap.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bootstrap.json"
MEASURED = "docs/bootstrap-measured.md"
COUNTS = ("3", "5", "10", "15", "25", "50")
FIGURES = ("jaccard", "mrr", "cosine")


def report() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def sections() -> dict[str, Any]:
    return report()["sections"]  # type: ignore[no-any-return]


def line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def counted(row: dict[str, Any] | None) -> str:
    """The share that is right, and runs that are mostly right, of draws."""
    return "" if row is None else f"{row['share']['mean']:.2f} ({row['good']}/{row['draws']})"


def readme_rows() -> list[str]:
    """Self-learning by the number of seeds, and the other methods by fifteen."""
    return [
        line(
            case,
            *(counted(methods["self-learning"].get(count)) for count in ("0", *COUNTS)),
            *(counted(methods[other].get("15")) for other in ("vecmap", "paper")),
        )
        for case, methods in sections()["counts"]["cases"].items()
    ]


def count_rows(section: str = "counts") -> list[str]:
    return [
        line(case, method, *(counted(rows.get(count)) for count in ("0", *COUNTS)))
        for case, methods in sections()[section]["cases"].items()
        for method, rows in methods.items()
    ]


def honesty_rows() -> list[str]:
    return [
        line(
            section,
            method,
            told["runs"],
            told["good"],
            told["said_good"],
            f"{told['right']:.3f}",
            told["bad_called_good"],
            told["good_called_bad"],
            f"{told['share_error']:.3f}",
        )
        for section in ("counts", "strangers")
        for method, told in sections()[section]["honesty"].items()
    ]


def level_rows() -> list[str]:
    return [
        line(method, level, f"{told['pairs']:,}", f"{told['right']:.3f}", f"{told['expected']:.3f}")
        for method, levels in sections()["counts"]["levels"].items()
        for level, told in levels.items()
    ]


def more_rows() -> list[str]:
    return [line(count, told["refused"], told["good_with_more"]) for count, told in sections()["counts"]["more"].items()]


def stranger_rows() -> list[str]:
    return [
        line(kind, f"{told['pairs']:,.0f}", f"{told['share']:.2f}", f"{told['said_share']:.2f}", told["good"], told["said_good"])
        for kind, told in sections()["strangers"]["kinds"].items()
    ]


def swapped_rows() -> list[str]:
    return [
        line(
            place,
            *(told[name] for name in ("draws", "wrong", "named", "accused")),
            f"{told['pairs']:,.0f}",
            f"{told['share']:.2f}",
            f"{told['said_share']:.2f}",
        )
        for place, told in sections()["swapped"]["places"].items()
    ]


def asked_rows() -> list[str]:
    return [
        line(place, told["refused"], told["asked for"]["good"], told["at random"]["good"])
        for place, told in sections()["asked"]["places"].items()
    ]


def figure(value: dict[str, float | None] | None) -> str:
    if value is None:
        return ""
    return f"{value['mean']:.3f}" + ("" if value["std"] is None else f" ± {value['std']:.3f}")


def placed_rows(section: str, place: str, ways: tuple[str, ...], figures: tuple[str, ...]) -> list[str]:
    return [
        line(
            row["method"],
            row["seeds"] or "",
            row["read"],
            row["draws"],
            f"{row['right']:.2f}" if "right" in row else "",
            *(figure(row.get(way, {}).get(name)) for way in ways for name in figures),
        )
        for row in sections()[section]["places"][place].values()
    ]


def retrieval_rows() -> list[str]:
    places = sections()["retrieval"]["places"]
    return [row for place in places for row in placed_rows("retrieval", place, ("forth", "back"), FIGURES)]


def stitching_rows() -> list[str]:
    places = sections()["stitching"]["places"]
    return [row for place in places for row in placed_rows("stitching", place, ("forth", "back"), ("accuracy", "f1"))]


def scale_rows() -> list[str]:
    rows = []
    for name, run in sections()["scale"]["runs"].items():
        method, _, size = name.rpartition(", ")
        whole = f"{run['run_seconds']:.0f}" if run["finished"] else f"(about {run['step_seconds'] * run['of']:,.0f})"
        right = f"{run['right'] / max(1, run['pairs']):.3f} of {run['pairs']:,}" if run["finished"] else ""
        each = "" if run["step_seconds"] is None else f"{run['step_seconds']:.2f}"
        rows.append(line(method, f"{int(size):,}", each, whole, f"{run['above_bytes'] / 2**20:,.0f}", right))
    return rows


def kill_rows() -> list[str]:
    return [
        line(
            name,
            ", ".join(map(str, run["at_steps"])),
            "yes" if run["same_bits"] and run["same_result"] else "NO",
            f"{run['pairs']:,}",
            f"{run['right']:.3f}",
            f"{run['undisturbed_s']:.0f}",
            f"{run['killed_s']:.0f}",
        )
        for name, run in sections()["kill"]["runs"].items()
    ]


def ablation_rows() -> list[str]:
    """A row for each variation, a column for each place of self-learning's; and the paper's."""
    cases = sections()["ablation"]["cases"]
    rows = []
    for method in ("self-learning", "paper"):
        places = [case for case, rows_ in cases.items() if any(name.startswith(f"{method}, ") for name in rows_)]
        for name in dict.fromkeys(name for case in places for name in cases[case] if name.startswith(f"{method}, ")):
            rows.append(line(name, *(counted(next(iter(cases[case][name].values()))) for case in places)))
    return rows


TABLES: dict[str, Callable[[], list[str]]] = {
    "counts": count_rows,
    "honesty": honesty_rows,
    "levels": level_rows,
    "more": more_rows,
    "strangers": stranger_rows,
    "swapped": swapped_rows,
    "asked": asked_rows,
    "retrieval": retrieval_rows,
    "stitching": stitching_rows,
    "scale": scale_rows,
    "kill": kill_rows,
    "ablation": ablation_rows,
}


@pytest.mark.parametrize("name", TABLES)
def test_the_measured_tables_are_those_of_the_results(name):
    text = (ROOT / MEASURED).read_text(encoding="utf-8")
    rows = TABLES[name]()
    assert rows
    assert [row for row in rows if row not in text] == []


def test_the_readmes_table_is_that_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [row for row in readme_rows() if row not in text] == []
