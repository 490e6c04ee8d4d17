"""What the benchmarks share: where data and results lie, the command line, and how a report is
written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from scripts.servers import Missing as Missing

#: embeddings and texts that the repository does not contain; each script's help says which it reads
DATA = Path(os.environ.get("ANCHORAGE_DATA", "../shared/data"))
#: embeddings and anchors that benchmarks compute once
CACHE = Path(
    os.environ.get(
        "ANCHORAGE_BENCHMARK_CACHE", Path(tempfile.gettempdir()) / "anchorage-benchmarks"
    )
)
RESULTS = Path(__file__).parent / "results"
#: columns of a record in a report
WIDTH = 300

#: a table of a page: its columns, then its rows
Table = list[list[str]]
EMPTY: Mapping[str, Any] = {}


def parser(about: str | None, results: Path) -> argparse.ArgumentParser:
    """A command line that shows a script's docstring as its help, with an option `json` for the
    report's path.
    """
    # As a user starts it: argparse itself would say `__main__.py`.
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    made = argparse.ArgumentParser(
        prog=None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--json", type=Path, default=results, metavar="PATH", help="where to write the report"
    )
    return made


def read(path: Path) -> dict[str, Any]:
    """The report at `path`; empty if there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write(path: Path, tables: Mapping[str, Table], report: Mapping[str, Any] = EMPTY) -> None:
    """Write the tables that pages quote, and keep other tables of that file. A file beside the
    repository's own results also gets the report: every number measured.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read(path)
    whole: dict[str, Any] = {
        **({} if path.parent.name == "results" else {**known, **report}),
        "machine": machine(),
        "tables": {**known.get("tables", {}), **tables},
    }
    path.write_text(records(whole) + "\n", encoding="utf-8")


def show(console: Console, tables: Mapping[str, Table]) -> None:
    """Print tables, which are also those of the pages."""
    for name, (columns, *rows) in tables.items():
        shown = RichTable(title=name, title_justify="left")
        for place, column in enumerate(columns):
            shown.add_column(column, justify="right" if place else "left")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)


def records(value: Any, indent: int = 0) -> str:
    """`value` as JSON, with each mapping or list that fits into WIDTH columns in one line."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    start = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{start}{json.dumps(k)}: {records(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    items = [start + records(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"


def machine() -> dict[str, Any]:
    """What a reader needs to know about the machine to judge timings."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "torch": version("torch"),
    }


def rounded(value: Any, decimals: int) -> Any:
    """`value` with every float in it rounded to `decimals` decimals."""
    if isinstance(value, Mapping):
        return {key: rounded(item, decimals) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, decimals) for item in value]
    return round(value, decimals) if isinstance(value, float) else value
