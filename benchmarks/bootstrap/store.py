"""What was measured and grown already by this code, on disk: an interrupted run goes on where it stopped.

A folder for each version of the code, below $ANCHORAGE_BENCHMARK_CACHE; a file for each cell, and for what each method grew:
several sections ask different things of that, and it stays when only what measures it has changed.
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

from data import CACHE
from safetensors import safe_open
from safetensors.torch import save_file

from app.maths.bootstrap.pools import GrownPairs

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
#: modules here that growths depend on
GROWING = {"draws.py", "growers.py"}
#: and those that change no cell: how results are chosen, told and kept
TELLING = {"cells.py", "page.py", "picture.py", "published.py", "run.py", "store.py", "summaries.py", "tables.py"}

#: what names a cell or a growth: its section or method, then everything that it depends on beside the code
Key = tuple[str | int, ...]


@cache
def version(kind: str = "cells") -> str:
    """A hash of the maths and of what measures it here; of kind "grown" only of what grows."""
    here = [path for path in HERE.glob("*.py") if (path.name in GROWING if kind == "grown" else path.name not in TELLING)]
    digest = hashlib.sha256()
    judging = [] if kind == "grown" else [ROOT / "app/services/anchors/bootstrap.py", ROOT / "benchmarks/stitching/head.py"]
    for path in [*sorted(ROOT.glob("app/maths/**/*.py")), *sorted(here), ROOT / "benchmarks/quality/data.py", *judging]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def forget(sections: Collection[str], *, every: bool) -> None:
    """Start anew: as if this code had not measured these sections; of `every` one, as if it had grown nothing either."""
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
    """What cells took, by whatever version measured them last."""
    found = {}
    for path in sorted((CACHE / "bootstrap" / "cells").glob("*/*.json"), key=lambda path: path.stat().st_mtime):
        entry = json.loads(path.read_text(encoding="utf-8"))
        found[tuple(entry["key"])] = float(entry["cell"]["seconds"])
    return found


def keep(key: Key, measured: Mapping[str, Any]) -> None:
    """A cell."""
    path = _path("cells", key, "json")
    partly = path.with_suffix(f".{os.getpid()}")
    partly.write_text(json.dumps({"key": key, "cell": measured}) + "\n", encoding="utf-8")
    partly.replace(path)


def grown(key: Key, grow: Callable[[], tuple[GrownPairs, float]]) -> tuple[GrownPairs, float]:
    """What a method grows, and its seconds: from disk where it did before."""
    path = _path("grown", key, "safetensors")
    if not path.exists():
        made, seconds = grow()
        partly = path.with_suffix(f".{os.getpid()}")
        told = json.dumps({"key": key, "seconds": seconds, "facts": made.facts})
        save_file({"pairs": made.pairs.contiguous(), "confidence": made.confidence.contiguous()}, partly, {"told": told})
        partly.replace(path)
        return made, seconds
    with safe_open(path, "pt") as file:
        told = json.loads(file.metadata()["told"])
        return GrownPairs(file.get_tensor("pairs"), file.get_tensor("confidence"), told["facts"]), told["seconds"]


def _folder(kind: str) -> Path:
    return CACHE / "bootstrap" / kind / version(kind)


def _path(kind: str, key: Key, suffix: str) -> Path:
    path = _folder(kind) / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
