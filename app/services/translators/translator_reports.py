"""The report of a translator: what to expect of it, measured on anchors that its fits have not seen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from app.maths.quality import crossfit, metrics
from app.maths.quality.evidence import Evidence, evidence
from app.maths.quality.influence import influence
from app.maths.quality.learning_curve import LearningCurve, learning_curve
from app.maths.quality.promise import Promise, promise
from app.services.anchors import spaces
from app.services.context import Services
from app.storage import tables

#: of what is in a report: one of another version is measured anew
VERSION = 2

#: how many more anchors the report says something of, where the curve reaches so far
MORE = (50, 100, 200, 500, 1000)

#: how many rows a list names
LISTED = 20


def measure(services: Services, row: tables.TranslatorRow) -> dict[str, Any]:
    """Everything a report says of a translator's row, as JSON has it."""
    source, target = (
        spaces.raw_anchors(services, row.source).double(),
        spaces.raw_anchors(services, row.target).double(),
    )
    with services.fitting():
        held = crossfit.hold_out(row.method, source, target, row.options)
        parted = crossfit.cut_into_folds(source, target, folds=None, seed=0)
        held_out = None if held is None else crossfit.held_out_quality(held, source, target)
        curve = learning_curve(row.method, source, target, row.options)
        return {
            "version": VERSION,
            "anchors": len(source),
            "distinct": None if parted is None else int(parted[0].sum()),
            "promise": None
            if held_out is None
            else _promise(promise(len(source), held_out, curve)),
            "evidence": None
            if held is None
            else _evidence(evidence(held.translated, target, held.first, held.fold_of)),
            "held_out": None if held_out is None else asdict(held_out),
            "learning": None if curve is None else _learning(curve),
            "influence": None if held_out is None else _influence(source, target),
            "cka": metrics.cka(source, target) if len(source) >= 4 else None,
            "source": _spectrum(row.source, source),
            "target": _spectrum(row.target, target),
        }


def _promise(made: Promise) -> dict[str, Any]:
    return {
        **vars(made),
        "measures": {name: each._asdict() for name, each in made.measures.items()},
    }


def _evidence(found: Evidence) -> dict[str, Any]:
    return {**vars(found), "cosine": found.cosine._asdict(), "mrr": found.mrr._asdict()}


def _learning(curve: LearningCurve) -> dict[str, Any]:
    reach = [more for more in MORE if curve.anchors + more <= curve.farthest]
    return {
        "anchors": curve.sizes,
        "index": round(curve.index),
        "neighbours": curve.neighbours,
        "measures": {name: line.points for name, line in curve.lines.items()},
        "more": [
            {
                "anchors": more,
                "gain": {
                    name: curve.gain(name, curve.anchors, curve.anchors + more)._asdict()
                    for name in curve.lines
                },
            }
            for more in reach
        ],
    }


def _influence(source: Tensor, target: Tensor) -> dict[str, Any]:
    found = influence(source, target)
    return {
        "hurting": [
            {"row": i, "gain": float(found.gain[i]), "own": float(found.own[i])}
            for i in found.hurting[:LISTED]
        ],
        "hurting_count": len(found.hurting),
    }


def _spectrum(space: tables.SpaceRow, anchors: Tensor) -> dict[str, Any]:
    health = space.health
    return {
        "encoder": space.encoder.name,
        "dim": anchors.shape[1],
        "rank": health["rank"],
        "condition": health["condition"],
        "duplicates": health["duplicate_count"],
    }
