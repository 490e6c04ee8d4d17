"""Maps a score of one encoder to the corresponding score of another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.errors import TooFewAnchors
from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.maths.thresholds import calibration
from app.maths.thresholds.calibration import (
    Agreement,
    Calibration,
    ExpectedScore,
    threshold_agreement,
)
from app.maths.thresholds.score_pairs import CalibrationItems, GivenSide, translate_held_out
from app.services.anchors import made_pairs, spaces
from app.services.context import Services
from app.services.translators import fit_anchors
from app.services.translators.translators import canonical_json, find_translator
from app.storage import tables
from app.storage.cache import Key
from app.types import Scores

#: scores of a whole map
MAP_POINTS = 100


@dataclass(frozen=True)
class ScoreMap:
    """The expected score at each given score.

    covered    the range of given scores that the anchors cover
    same_item  the score of an item with itself, and its interval
    """

    points: list[tuple[float, ExpectedScore]]
    covered: tuple[float, float] | None
    same_item: tuple[float, float, float] | None
    agreement: Agreement | None = None


def map_score(
    services: Services,
    project: str,
    translator: str,
    score: float,
    *,
    scores: Scores,
    given: GivenSide,
    level: float,
) -> ScoreMap:
    """Map one score in [-1, 1].

    scores  what replaces the source's cosine
    given   whose score is mapped
    level   of the intervals

    Raises TranslatorNotFound, TooFewAnchors, Overloaded.
    """
    fitted = _find_calibration(services, project, translator, scores, given)
    return replace(
        _map_scores(fitted, [score], level), agreement=threshold_agreement(fitted, score)
    )


def map_all_scores(
    services: Services,
    project: str,
    translator: str,
    *,
    scores: Scores,
    given: GivenSide,
    level: float,
) -> ScoreMap:
    """Map MAP_POINTS scores of the covered range. As `map_score`."""
    fitted = _find_calibration(services, project, translator, scores, given)
    covered = calibration.covered_range(fitted)
    points = (
        []
        if covered is None
        else np.linspace(*covered, MAP_POINTS if covered[0] < covered[1] else 1).tolist()
    )
    return _map_scores(fitted, points, level)


def _map_scores(fitted: Calibration, scores: list[float], level: float) -> ScoreMap:
    points = [(score, calibration.expected_score(fitted, score, level=level)) for score in scores]
    return ScoreMap(
        points, calibration.covered_range(fitted), calibration.same_item_interval(fitted, level)
    )


def _find_calibration(
    services: Services, project: str, translator: str, scores: Scores, given: GivenSide
) -> Calibration:
    """The calibration of a translator, from the cache or computed now."""
    row = find_translator(services, project, translator)
    fit: Key = (row.method, canonical_json(row.options), row.weights)
    key: Key = (row.source.blob, row.target.blob, *fit)
    items = services.cache.get_or_make(
        ("held-out", *key), partial(_hold_out, services, row), lambda value: value.nbytes
    )

    def make() -> Calibration:
        with services.fitting(row.project):
            return calibration.calibrate(items, scores, given=given)

    return services.cache.get_or_make(
        ("calibration", scores, given, *key), make, lambda value: value.nbytes
    )


def _hold_out(services: Services, row: tables.TranslatorRow) -> CalibrationItems:
    """Raises TooFewAnchors also for made pairs, whose scores are too good."""
    if made_pairs.estimate_of(row.source.anchor_set) is not None:
        raise TooFewAnchors(
            f"A threshold needs known pairs: {made_pairs.NOT_MEASURED}.", field="id"
        )
    anchors = fit_anchors.stored_anchors(services, row)
    source, target = (
        anchors.of(spaces.raw_anchors(services, space)) for space in (row.source, row.target)
    )
    with services.fitting(row.project):
        items = translate_held_out(row.method, source, target, row.options)
    if items is None:
        raise TooFewAnchors(
            f"A threshold needs at least {FEWEST_DISTINCT} distinct anchors that are not nearly "
            f"all equal; anchor set {row.source.anchor_set.name!r} has fewer. Use a larger set.",
            field="id",
        )
    return items
