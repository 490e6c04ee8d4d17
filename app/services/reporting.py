"""The report of a translator: what to expect of it, measured on anchors that its fits have not seen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from app.maths import crossfit, quality
from app.services import spaces
from app.services.context import Services
from app.storage import tables


def measure(services: Services, row: tables.Translator) -> dict[str, Any]:
    """Everything a report says of a translator's row, as JSON has it."""
    source, target = spaces.anchors(services, row.source).double(), spaces.anchors(services, row.target).double()
    with services.fitting():
        held_out = crossfit.cross_fit(row.method, source, target, row.options)
    return {
        "anchors": source.shape[0],
        "held_out": None if held_out is None else asdict(held_out),
        "promise": None if held_out is None else _promise(source, held_out),
        "cka": quality.cka(source, target) if source.shape[0] >= 4 else None,
        "source": _spectrum(row.source, source),
        "target": _spectrum(row.target, target),
    }


def _spectrum(space: tables.Space, anchors: Tensor) -> dict[str, Any]:
    health = space.health
    return {"encoder": space.encoder.name, "dim": anchors.shape[1], "rank": health["rank"], "condition": health["condition"]}


def _promise(source: Tensor, held_out: crossfit.HeldOut) -> dict[str, Any]:
    translated = held_out.translated
    measures = {
        name: {"value": getattr(translated, name), "low": low, "high": high} for name, (low, high) in translated.intervals.items()
    }
    return {"anchors": len(source), "index": translated.n, "neighbours": translated.k, "measures": measures}
