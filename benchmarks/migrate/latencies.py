"""What the clients felt, by phase."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: begin and end of a phase, in seconds since the epoch
Span = tuple[float, float]


def by_phase(log: Path, phases: Mapping[str, Span]) -> dict[str, Any]:
    """Latencies in milliseconds of the searches and writes that were due in each phase."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {name: _phase(entries, span) for name, span in phases.items()}


def _phase(entries: list[dict[str, Any]], span: Span) -> dict[str, Any]:
    inside = [each for each in entries if span[0] <= each["due"] < span[1]]
    return {
        "seconds": span[1] - span[0],
        "searches": _summary([each for each in inside if each["kind"] == "search"]),
        "writes": _summary([each for each in inside if each["kind"] != "search"]),
    }


def _summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    if not entries:
        return {"count": 0}
    took = np.array([each["s"] for each in entries]) * 1000
    errors = Counter(each["error"].split("\n")[0] for each in entries if each["error"] is not None)
    return {
        "count": len(entries),
        "p50_ms": float(np.percentile(took, 50)),
        "p99_ms": float(np.percentile(took, 99)),
        "longest_ms": float(took.max()),
        "errors": sum(errors.values()),
        **({"first_errors": dict(errors.most_common(3))} if errors else {}),
    }
