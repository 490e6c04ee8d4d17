"""What this version of the code has measured and grown, on disk, so that an interrupted run can
continue.

One folder for each version of the code, below $ANCHORAGE_BENCHMARK_CACHE; one file for each cell
and for the anchors that each method grew. Several sections use the same anchors, and these stay
valid while only the code that measures them changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from app.maths.bootstrap.pools import GrownPairs
from app.services.anchors import bootstrap as service
from benchmarks.common import CACHE

ROOT = Path(__file__).parents[2]
#: modules that growths depend on
GROWING = [
    ROOT / "benchmarks/bootstrap/draws.py",
    ROOT / "benchmarks/bootstrap/growers.py",
    ROOT / "benchmarks/quality/data.py",
]
#: modules of these folders that change no cell: they choose, show and store
OTHERS = {
    "__init__.py",
    "__main__.py",
    "cells.py",
    "paper_tables.py",
    "sections.py",
    "store.py",
    "tables.py",
}

#: names a cell or grown anchors: the section or method, then everything except the code that they
#: depend on
Key = tuple[str | int, ...]


@cache
def version(kind: str = "cells") -> str:
    """A hash of the maths and of the code that measures with it; of kind "grown", only of the code
    that grows anchors.
    """
    code = sorted(ROOT.glob("app/maths/**/*.py")) + GROWING
    if kind != "grown":
        folders = (ROOT / "benchmarks/bootstrap", ROOT / "research/bootstrap")
        code += [
            path
            for folder in folders
            for path in sorted(folder.glob("*.py"))
            if path.name not in OTHERS
        ]
        code += [Path(service.__file__), ROOT / "research/stitching/head.py"]
    digest = hashlib.sha256()
    for path in code:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def forget(sections: Collection[str], *, every: bool) -> None:
    """Delete the cells of these sections, as if this code had not measured them; with `every`, the
    grown anchors, too.
    """
    for path in _folder("cells").glob("*.json"):
        if json.loads(path.read_text(encoding="utf-8"))["key"][0] in sections:
            path.unlink()
    if every:
        shutil.rmtree(_folder("grown"), ignore_errors=True)


def cell(key: Key) -> dict[str, Any] | None:
    """What was measured, or None."""
    path = _path("cells", key, "json")
    return json.loads(path.read_text(encoding="utf-8"))["cell"] if path.exists() else None


def seconds() -> dict[Key, float]:
    """What cells took, by the version that measured them last."""
    found = {}
    for path in sorted(
        (CACHE / "bootstrap" / "cells").glob("*/*.json"), key=lambda path: path.stat().st_mtime
    ):
        entry = json.loads(path.read_text(encoding="utf-8"))
        found[tuple(entry["key"])] = float(entry["cell"]["seconds"])
    return found


def keep(key: Key, measured: Mapping[str, Any]) -> None:
    """Store a cell."""
    path = _path("cells", key, "json")
    partly = path.with_suffix(f".{os.getpid()}")
    partly.write_text(json.dumps({"key": key, "cell": measured}) + "\n", encoding="utf-8")
    partly.replace(path)


def grown(key: Key, grow: Callable[[], tuple[GrownPairs, float]]) -> tuple[GrownPairs, float]:
    """What a method grows, and its seconds; from disk if it grew it before."""
    path = _path("grown", key, "safetensors")
    if not path.exists():
        made, seconds = grow()
        partly = path.with_suffix(f".{os.getpid()}")
        about = json.dumps({"key": key, "seconds": seconds, "facts": made.facts})
        save_file(
            {"pairs": made.pairs.contiguous(), "confidence": made.confidence.contiguous()},
            partly,
            {"about": about},
        )
        partly.replace(path)
        return made, seconds
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
        return GrownPairs(
            file.get_tensor("pairs"), file.get_tensor("confidence"), about["facts"]
        ), about["seconds"]


def _folder(kind: str) -> Path:
    return CACHE / "bootstrap" / kind / version(kind)


def _path(kind: str, key: Key, suffix: str) -> Path:
    path = _folder(kind) / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
