"""Writes the tables and sentences of docs/results/bootstrap.md from the results.

A part stands between "<!-- seeds -->" and "<!-- /seeds -->", by its name in BLOCKS.
This module needs nothing but the JSON, so that a test can compare the page with it.
The JSON holds more than the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PAGES = (ROOT / "docs/results/bootstrap.md",)
RESULTS = (ROOT / "benchmarks/results/bootstrap.json", ROOT / "research/results/bootstrap.json")
BLOCK = re.compile(r"<!-- (?P<name>[a-z-]+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)

Report = dict[str, Any]

#: numbers of seeds, as counts.py has them
COUNTS = ("0", "3", "5", "10", "15", "25", "50")
#: shares of items that the pools have in common, as strangers.py names them
COMMON = ("75%", "50%", "25%", "10%", "0%")
#: the tables of the paper with rows like a place's, and what follows the name of a row
WORDS = (
    "about 20,000 words of other models",
    {"1 and 4": "", "5": ", FastText's anchors optimised"},
)
IMAGES = ("CIFAR-10 by two ViTs, forth from ViT-base to ViT-small", {"7": ""})
PRINTED = {
    "all words, w2v -> fasttext": WORDS,
    "all words, googlenews -> fasttext": WORDS,
    "CIFAR-10, V1 1.0 -> SqueezeNet": IMAGES,
    "CIFAR-10, V2 -> SqueezeNet": IMAGES,
}


def results() -> Report:
    """The results of the benchmark and, where they exist, of the paper's tables, as one report."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS if path.exists()]
    sections = {name: section for report in reports for name, section in report["sections"].items()}
    return {
        **{key: value for report in reports for key, value in report.items()},
        "sections": sections,
    }


def write(report: Report) -> None:
    """Fill the blocks of the page anew."""
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8"), report), encoding="utf-8")


def filled(text: str, report: Report) -> str:
    """A page with its blocks filled. Blocks with unknown names stay as they are."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return (
            f"<!-- {name} -->\n{BLOCKS[name](report).strip()}\n<!-- /{name} -->"
            if name in BLOCKS
            else match[0]
        )

    return BLOCK.sub(block, text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _counted(row: dict[str, Any] | None) -> str:
    """The share of right pairs, and the runs with mostly right pairs, of all draws."""
    return "" if row is None else f"{row['share']['mean']:.2f} ({row['good']}/{row['draws']})"


def _seeds(report: Report) -> str:
    """Self-learning by the number of seeds, and two other methods with fifteen."""
    columns = ("pools", "no seeds", *COUNTS[1:], "vecmap, 15", "paper, 15")
    cases = report["sections"]["counts"]["cases"].items()
    return table(
        columns,
        (
            (
                case,
                *(_counted(methods["self-learning"].get(count)) for count in COUNTS),
                *(_counted(methods[other].get("15")) for other in ("vecmap", "paper")),
            )
            for case, methods in cases
        ),
    )


def _estimates(report: Report) -> str:
    """How often the estimate of each method is right about a run."""
    columns = (
        "pools",
        "method",
        "runs",
        "good",
        "called good",
        "bad, called good",
        "good, called bad",
        "error",
    )
    names = {"counts": "the same items", "strangers": "partly or not the same"}
    return table(
        columns,
        (
            (
                title,
                method,
                *(
                    row[name]
                    for name in ("runs", "good", "said_good", "bad_called_good", "good_called_bad")
                ),
                f"{row['share_error']:.3f}",
            )
            for section, title in names.items()
            for method, row in report["sections"][section]["honesty"].items()
        ),
    )


def _common(report: Report) -> str:
    """The true and the estimated share of right pairs, by the share of items in common."""
    kinds = report["sections"]["strangers"]["kinds"]
    places = dict.fromkeys(kind.partition(": ")[0] for kind in kinds if kind.endswith("in common"))
    return table(
        ("pools", *(f"{share} in common" for share in COMMON)),
        (
            (
                place,
                *(
                    f"{row['share']:.2f} / {row['said_share']:.2f}"
                    for row in (kinds[f"{place}: {share} in common"] for share in COMMON)
                ),
            )
            for place in places
        ),
    )


def _wrong_seeds(report: Report) -> str:
    """How many wrong seeds are named, in a sentence."""
    rows = report["sections"]["swapped"]["places"].values()
    wrong, named, accused = (
        sum(row[name] for row in rows) for name in ("wrong", "named", "accused")
    )
    least, most = (limit(row["share"] for row in rows) for limit in (min, max))
    return (
        f"The job names {named} of {wrong} wrong seeds, and {accused} right ones.\n"
        f"The pairs of these runs are right by {least:.2f} to {most:.2f}."
    )


def _cost(report: Report) -> str:
    """Time and memory of large pools."""

    def rows() -> Iterator[Sequence[object]]:
        for name, run in report["sections"]["scale"]["runs"].items():
            method, _, size = name.rpartition(", ")
            whole = run["run_seconds"] if run["finished"] else run["step_seconds"] * run["of"]
            right = f"{run['right']:,} of {run['pairs']:,}" if run["finished"] else ""
            about = "" if run["finished"] else "about "
            memory = f"{run['above_bytes'] / 2**20:,.0f}"
            yield method, f"{int(size):,}", f"{about}{whole / 60:,.1f}", memory, right

    return table(("method", "items", "minutes", "MiB", "right pairs"), rows())


def _kill(report: Report) -> str:
    """What five SIGKILLs change, in a sentence."""
    (run,) = report["sections"]["kill"]["runs"].values()
    same = run["same_bits"] and run["same_result"]
    return (
        f"A worker killed {run['kills']} times during a run of {run['items']:,} items gave "
        f"{'the same bits as' if same else 'ANOTHER RESULT than'} an undisturbed run, "
        f"in {run['killed_s']:.0f} s instead of {run['undisturbed_s']:.0f} s."
    )


def printed(tables: dict[str, Any], place: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, forth and back of the paper's rows that belong to a place."""
    _, numbers = PRINTED.get(place, ("", {}))
    for number, more in numbers.items():
        for name, ways in tables[number]["rows"].items():
            (first, forth), (_, back) = ways.items()
            # The paper's first way is our way back where it begins with what ours ends with.
            turned = first.split(" -> ")[0] == place.rsplit(" -> ", maxsplit=1)[-1]
            yield name + more, *((back, forth) if turned else (forth, back))


BLOCKS: dict[str, Callable[[Report], str]] = {
    "seeds": _seeds,
    "estimates": _estimates,
    "common": _common,
    "wrong-seeds": _wrong_seeds,
    "cost": _cost,
    "kill": _kill,
}
