"""The numbers of docs/results/no-pairs.md, from benchmarks/results/no_pairs.json.

python -m benchmarks.frontier.no_pairs_page
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/results/no-pairs.md"
NUMBERS = ROOT / "benchmarks/results/no_pairs.json"
BLOCK = re.compile(r"<!-- (?P<name>[a-z-]+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)

Report = dict[str, Any]

COLUMNS = (
    "pools",
    "top-1",
    "mean rank",
    "estimated",
    "verdict",
    "CPU seconds",
    "mini-vec2vec top-1",
    "mean rank",
    "CPU seconds",
)


def table(report: Report) -> str:
    """Every cell that was measured."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
    for name, cell in report["cells"].items():
        ours, paper = cell["ours"], cell["paper"]
        source, size, kind = name.rsplit(", ", 2)
        values = (
            f"{source}, {int(size):,}, {kind}",
            f"{ours['top_1']:.3f}",
            f"{ours['mean_rank']:.1f}",
            f"{ours['estimate']:.2f}",
            "good" if ours["called_good"] else "refused",
            f"{ours['seconds']:.0f}",
            f"{paper['top_1']:.3f}",
            f"{paper['mean_rank']:.1f}",
            f"{paper['seconds']:.0f}",
        )
        lines.append("| " + " | ".join(values) + " |")
    return "\n".join(lines)


def honesty(report: Report) -> str:
    """The count of bad alignments that were called good."""
    counts = report["honesty"]
    wrong = [cell["ours"] for cell in report.get("wrong", {}).values()]
    text = (
        f"Of {counts['runs']} runs, {counts['bad']} had a top-1 below .5; "
        f"{counts['bad_called_good']} of these were called good."
    )
    if wrong:
        most = max(run["estimate"] for run in wrong)
        text += f"\nThe largest estimate in the {len(wrong)} runs on wrong pools was {most:.3f}."
    return text


BLOCKS: dict[str, Callable[[Report], str]] = {"table": table, "honesty": honesty}


def filled(text: str, report: Report) -> str:
    """The page with its blocks filled."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n{BLOCKS[name](report)}\n<!-- /{name} -->"

    return BLOCK.sub(block, text)


def main() -> None:
    """Write the numbers of the report into the page."""
    path = parser(__doc__, NUMBERS).parse_args().json
    report = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")


if __name__ == "__main__":
    main()
