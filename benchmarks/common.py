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
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: embeddings and texts that the repository does not contain; each script's help says which it reads
DATA = Path(os.environ.get("ANCHORAGE_DATA", "../shared/data"))
#: embeddings and anchors that benchmarks compute once
CACHE = Path(
    os.environ.get(
        "ANCHORAGE_BENCHMARK_CACHE", Path(tempfile.gettempdir()) / "anchorage-benchmarks"
    )
)
RESULTS = Path(__file__).parent / "results"


class Missing(Exception):
    """Data, a library or a program is not on this machine; the message says where to get it."""


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


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(
    sections: Mapping[str, Any], name: str, section: object, order: Sequence[str]
) -> dict[str, Any]:
    """`sections` with one of them replaced: those in `order` first, then any others."""
    new = {**sections, name: section}
    return {key: new[key] for key in (*order, *new) if key in new}


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


def significant(value: Any, digits: int = 4) -> Any:
    """`value` with every float in it rounded to `digits` significant digits."""
    if isinstance(value, Mapping):
        return {key: significant(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [significant(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
