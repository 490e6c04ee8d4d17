"""Thresholds: which score of the new encoder corresponds to one of the old, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.errors import TooFewAnchors
from app.maths.quality.crossfit import FEWEST
from app.maths.thresholds import calibration
from app.maths.thresholds.calibration import Calibration, Expected
from app.maths.thresholds.decisions import Agreement, agreement
from app.maths.thresholds.score_pairs import Given, Items, translate_held_out
from app.services.anchors import spaces
from app.services.context import Services
from app.services.translators.translators import canonical_json, find_translator
from app.storage import tables
from app.storage.cache import Key
from app.types import Scores

#: points of a whole map
MAP_POINTS = 100


@dataclass(frozen=True)
class ThresholdQuestion:
    """A translator's id, which cosine is the new one, which of the two scores is given, and the level of the intervals."""

    translator: str
    scores: Scores
    given: Given
    level: float


@dataclass(frozen=True)
class ScoreMap:
    """At each given score, what to expect of the other one; `covered`: given scores that the anchors can say something about."""

    points: list[tuple[float, Expected]]
    covered: tuple[float, float] | None
    same_item: tuple[float, float, float] | None
    agreement: Agreement | None = None


def map_score(
    services: Services, project: str, question: ThresholdQuestion, score: float
) -> ScoreMap:
    """The other score of a given one in [-1, 1]. Raises TranslatorNotFound, TooFewAnchors, Overloaded."""
    fitted = _find_calibration(services, project, question)
    return replace(_map_scores(fitted, [score], question.level), agreement=agreement(fitted, score))


def map_all_scores(services: Services, project: str, question: ThresholdQuestion) -> ScoreMap:
    """The map at POINTS scores, or none where the anchors cover nothing. Raises as `threshold`."""
    fitted = _find_calibration(services, project, question)
    covered = calibration.covered(fitted)
    scores = (
        []
        if covered is None
        else np.linspace(*covered, MAP_POINTS if covered[0] < covered[1] else 1).tolist()
    )
    return _map_scores(fitted, scores, question.level)


def _map_scores(fitted: Calibration, scores: list[float], level: float) -> ScoreMap:
    points = [(score, calibration.expect(fitted, score, level=level)) for score in scores]
    return ScoreMap(
        points, calibration.covered(fitted), calibration.same_item_interval(fitted, level)
    )


def _find_calibration(services: Services, project: str, question: ThresholdQuestion) -> Calibration:
    """The calibration of a translator, from the cache of this process or made now."""
    row = find_translator(services, project, question.translator)
    key: Key = (row.source.blob, row.target.blob, row.method, canonical_json(row.options))
    items = services.cache.get_or_make(
        ("held-out", *key), partial(_hold_out, services, row), lambda made: made.nbytes
    )

    def make() -> Calibration:
        with services.fitting():
            return calibration.calibrate(items, question.scores, given=question.given)

    return services.cache.get_or_make(
        ("calibration", question.scores, question.given, *key), make, lambda made: made.nbytes
    )


def _hold_out(services: Services, row: tables.TranslatorRow) -> Items:
    source, target = (
        spaces.raw_anchors(services, row.source),
        spaces.raw_anchors(services, row.target),
    )
    with services.fitting():
        items = translate_held_out(row.method, source, target, row.options)
    if items is None:
        raise TooFewAnchors(
            f"a calibration needs at least {FEWEST} distinct anchors that are not almost all the same vector; "
            f"anchor set {row.source.anchor_set.name!r} has fewer",
            field="id",
        )
    return items
