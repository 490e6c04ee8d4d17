"""The tables of docs/results/gpu.md, from benchmarks/results/gpu.json.

python -m benchmarks.gpu.page
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, parser, read
from benchmarks.gpu.__main__ import ROWS
from benchmarks.gpu.report import Table

PAGE = Path(__file__).resolve().parents[2] / "docs/results/gpu.md"
BLOCK = re.compile(r"<!-- (?P<name>cpu|cuda) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
DEVICES = {"cpu": "the CPU", "cuda": "a GPU"}


def section(report: dict[str, Any], device: str) -> str:
    """Every table of one device, or a sentence where nothing was measured."""
    if device not in report:
        return f"`python -m benchmarks.gpu` has not run on {DEVICES[device]} yet."
    found = report[device]
    parts = [machine(found["machine"])]
    for name, row in ROWS.items():
        if name not in found["rows"]:
            parts.append(f"Not measured: {name}.")
            continue
        for table in row.tables(found["rows"][name]):
            parts.append(shown(table))
        parts += [found["rows"][name]["note"]] if "note" in found["rows"][name] else []
        for what, why in found["rows"][name].get("left_out", {}).items():
            parts.append(f"Left out: {what} ({why}).")
    return "\n\n".join(filter(None, parts))


def machine(about: dict[str, Any]) -> str:
    """The machine in one sentence."""
    gpu = f" and one {about['gpu']} (CUDA {about['cuda']})" if "gpu" in about else ""
    return (
        f"Measured on {about['cores']} cores ({about['processor']}){gpu}, with torch "
        f"{about['torch']} and {about['threads']} torch threads in the measuring process."
    )


def shown(table: Table) -> str:
    """A table below its title; none without rows."""
    return f"**{table.title}**\n\n{table.markdown()}" if table.rows else ""


def filled(text: str, report: dict[str, Any]) -> str:
    """The page with the tables of each device."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n{section(report, name)}\n<!-- /{name} -->"

    return BLOCK.sub(block, text)


def main() -> None:
    """Write the tables of the report into the page."""
    report = read(parser(__doc__, RESULTS / "gpu.json").parse_args().json)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")


if __name__ == "__main__":
    main()
