"""Measures a translator on held-out anchors."""

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

#: a report of another version is measured again
REPORT_VERSION = 2

#: numbers of additional anchors whose gain the report estimates, as far as the curve reaches
MORE_ANCHORS = (50, 100, 200, 500, 1000)

#: most rows in a list
MOST_LISTED_ANCHORS = 20


def measure_report(services: Services, row: tables.TranslatorRow) -> dict[str, Any]:
    """Return the report of a translator as JSON. Raises Overloaded."""
    source, target = (
        spaces.raw_anchors(services, row.source).double(),
        spaces.raw_anchors(services, row.target).double(),
    )
    with services.fitting():
        held = crossfit.hold_out(row.method, source, target, row.options)
        split = crossfit.cut_into_folds(source, target, folds=None, seed=0)
        held_out = None if held is None else crossfit.held_out_quality(held, source, target)
        curve = learning_curve(row.method, source, target, row.options)
        return {
            "version": REPORT_VERSION,
            "anchors": len(source),
            "distinct": None if split is None else int(split[0].sum()),
            "promise": None
            if held_out is None
            else _promise_json(promise(len(source), held_out, curve)),
            "evidence": None
            if held is None
            else _evidence_json(evidence(held.translated, target, held.first, held.fold_of)),
            "held_out": None if held_out is None else asdict(held_out),
            "learning": None if curve is None else _learning_json(curve),
            "influence": None if held_out is None else _influence_json(source, target),
            "cka": metrics.cka(source, target) if len(source) >= 4 else None,
            "source": _space_json(row.source, source),
            "target": _space_json(row.target, target),
        }


def _promise_json(promised: Promise) -> dict[str, Any]:
    return {
        **vars(promised),
        "measures": {name: each._asdict() for name, each in promised.measures.items()},
    }


def _evidence_json(result: Evidence) -> dict[str, Any]:
    return {**vars(result), "cosine": result.cosine._asdict(), "mrr": result.mrr._asdict()}


def _learning_json(curve: LearningCurve) -> dict[str, Any]:
    reach = [more for more in MORE_ANCHORS if curve.anchors + more <= curve.farthest]
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


def _influence_json(source: Tensor, target: Tensor) -> dict[str, Any]:
    result = influence(source, target)
    return {
        "hurting": [
            {"row": i, "gain": float(result.gain[i]), "own": float(result.own[i])}
            for i in result.hurting[:MOST_LISTED_ANCHORS]
        ],
        "hurting_count": len(result.hurting),
    }


def _space_json(space: tables.SpaceRow, anchors: Tensor) -> dict[str, Any]:
    health = space.health
    return {
        "encoder": space.encoder.name,
        "dim": anchors.shape[1],
        "rank": health["rank"],
        "condition": health["condition"],
        "duplicates": health["duplicate_count"],
    }
