"""Thresholds: which score of the new encoder corresponds to one of the old, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from app.errors import TooFewAnchors
from app.maths import calibration
from app.maths.calibration import Calibration, Expected
from app.maths.crossfit import FEWEST
from app.maths.decisions import Agreement, agreement
from app.maths.held_pairs import Given, Items, translate_held_out
from app.services import spaces
from app.services.context import Services
from app.services.translation import canonical, find
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
    given: Given
    level: float


@dataclass(frozen=True)
class Threshold:
    """The other score of a given one; `covered` are the given scores that the anchors can say something about."""

    given: float
    expected: Expected
    agreement: Agreement | None
    covered: tuple[float, float] | None
    same_item: tuple[float, float, float] | None


@dataclass(frozen=True)
class Table:
    """The whole map: given scores, evenly spaced over `covered`, and what to expect at each."""

    points: list[tuple[float, Expected]]
    covered: tuple[float, float] | None
    same_item: tuple[float, float, float] | None


def threshold(services: Services, project: str, question: Question, score: float) -> Threshold:
    """The other score of a given one in [-1, 1]. Raises TranslatorNotFound, TooFewAnchors, Overloaded."""
    fitted = _calibration(services, project, question)
    return Threshold(
        given=score,
        expected=calibration.expect(fitted, score, level=question.level),
        agreement=agreement(fitted, score),
        covered=calibration.covered(fitted),
        same_item=calibration.same_item_interval(fitted, question.level),
    )


def table(services: Services, project: str, question: Question) -> Table:
    """The map at POINTS scores, or none where the anchors cover nothing. Raises as `threshold`."""
    fitted = _calibration(services, project, question)
    covered = calibration.covered(fitted)
    scores = [] if covered is None else np.linspace(*covered, POINTS if covered[0] < covered[1] else 1).tolist()
    return Table(
        points=[(score, calibration.expect(fitted, score, level=question.level)) for score in scores],
        covered=covered,
        same_item=calibration.same_item_interval(fitted, question.level),
    )


def _calibration(services: Services, project: str, question: Question) -> Calibration:
    """The calibration of a translator, from the cache of this process or made now."""
    row = find(services, project, question.translator)
    key: Key = (row.source.blob, row.target.blob, row.method, canonical(row.options))
    items = services.cache.get_or_make(("held-out", *key), partial(_hold_out, services, row), lambda made: made.nbytes)

    def make() -> Calibration:
        with services.fitting():
            return calibration.calibrate(items, question.scores, given=question.given)

    return services.cache.get_or_make(("calibration", question.scores, question.given, *key), make, lambda made: made.nbytes)


def _hold_out(services: Services, row: tables.Translator) -> Items:
    source, target = spaces.anchors(services, row.source), spaces.anchors(services, row.target)
    with services.fitting():
        items = translate_held_out(row.method, source, target, row.options)
    if items is None:
        raise TooFewAnchors(
            f"a calibration needs at least {FEWEST} distinct anchors that are not almost all the same vector; "
            f"anchor set {row.source.anchor_set.name!r} has fewer",
            field="id",
        )
    return items
