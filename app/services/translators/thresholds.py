"""Thresholds: which score of the new encoder corresponds to one of the old, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.errors import TooFewAnchors
from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.maths.thresholds import calibration
from app.maths.thresholds.calibration import Calibration, ExpectedScore
from app.maths.thresholds.decisions import Agreement, threshold_agreement
from app.maths.thresholds.score_pairs import CalibrationItems, GivenSide, translate_held_out
from app.services.anchors import spaces
from app.services.context import Services
from app.services.translators.translators import canonical, find
from app.storage import tables
from app.storage.cache import Key
from app.types import Scores

#: points of a whole map
POINTS = 100


@dataclass(frozen=True)
class Question:
    """A translator's id, which cosine is the new one, which of the two scores is given, and the level of the intervals."""

    translator: str
    scores: Scores
    given: GivenSide
    level: float


@dataclass(frozen=True)
class Found:
    """At each given score, what to expect of the other one; `covered`: given scores that the anchors can say something about."""

    points: list[tuple[float, ExpectedScore]]
    covered: tuple[float, float] | None
    same_item: tuple[float, float, float] | None
    agreement: Agreement | None = None


def threshold(services: Services, project: str, question: Question, score: float) -> Found:
    """The other score of a given one in [-1, 1]. Raises TranslatorNotFound, TooFewAnchors, Overloaded."""
    fitted = _calibration(services, project, question)
    return replace(
        _expected(fitted, [score], question.level), agreement=threshold_agreement(fitted, score)
    )


def table(services: Services, project: str, question: Question) -> Found:
    """The map at POINTS scores, or none where the anchors cover nothing. Raises as `threshold`."""
    fitted = _calibration(services, project, question)
    covered = calibration.covered_range(fitted)
    scores = (
        []
        if covered is None
        else np.linspace(*covered, POINTS if covered[0] < covered[1] else 1).tolist()
    )
    return _expected(fitted, scores, question.level)


def _expected(fitted: Calibration, scores: list[float], level: float) -> Found:
    points = [(score, calibration.expected_score(fitted, score, level=level)) for score in scores]
    return Found(
        points, calibration.covered_range(fitted), calibration.same_item_interval(fitted, level)
    )


def _calibration(services: Services, project: str, question: Question) -> Calibration:
    """The calibration of a translator, from the cache of this process or made now."""
    row = find(services, project, question.translator)
    key: Key = (row.source.blob, row.target.blob, row.method, canonical(row.options))
    items = services.cache.get_or_make(
        ("held-out", *key), partial(_hold_out, services, row), lambda made: made.nbytes
    )

    def make() -> Calibration:
        with services.fitting():
            return calibration.calibrate(items, question.scores, given=question.given)

    return services.cache.get_or_make(
        ("calibration", question.scores, question.given, *key), make, lambda made: made.nbytes
    )


def _hold_out(services: Services, row: tables.TranslatorRow) -> CalibrationItems:
    source, target = (
        spaces.raw_anchors(services, row.source),
        spaces.raw_anchors(services, row.target),
    )
    with services.fitting():
        items = translate_held_out(row.method, source, target, row.options)
    if items is None:
        raise TooFewAnchors(
            f"a calibration needs at least {FEWEST_DISTINCT} distinct anchors that are not almost all the same vector; "
            f"anchor set {row.source.anchor_set.name!r} has fewer",
            field="id",
        )
    return items
