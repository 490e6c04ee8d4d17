"""Converts a threshold on the scores of one encoder to the scores of another."""

from __future__ import annotations

from app.anchors import made_pairs, spaces
from app.context import Services
from app.db import tables
from app.db.cache import Key
from app.errors import TooFewAnchors
from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.maths.thresholds import NewThreshold, ScorePairs, find_threshold, score_pairs
from app.translate import fit_anchors
from app.translate.estimate import find_translator
from app.translate.maps import canonical_json
from app.types import Scores


def convert_threshold(
    services: Services, project: str, translator: str, score: float, *, scores: Scores
) -> NewThreshold:
    """Convert a threshold of the source, in [-1, 1].

    scores  what replaces the source's cosine

    Raises NotFound, TooFewAnchors, Overloaded.
    """
    row = find_translator(services, project, translator)
    fit: Key = (row.method, canonical_json(row.options), row.weights)
    pairs = services.cache.get_or_make(
        ("score-pairs", scores, row.source.blob, row.target.blob, *fit),
        lambda: _score_pairs(services, row, scores),
        lambda value: value.nbytes,
    )
    return find_threshold(pairs, score)


def _score_pairs(services: Services, row: tables.TranslatorRow, scores: Scores) -> ScorePairs:
    """Raises TooFewAnchors also for made pairs, whose scores are too good."""
    if made_pairs.estimate_of(row.source.anchor_set) is not None:
        raise TooFewAnchors(
            f"A threshold needs known pairs: {made_pairs.NOT_MEASURED}.", field="id"
        )
    anchors = fit_anchors.stored_anchors(services, row)
    source, target = (
        anchors.of(spaces.raw_anchors(services, space)) for space in (row.source, row.target)
    )
    with services.take(services.turns.fits, row.project):
        pairs = score_pairs(row.method, source, target, row.options, scores)
    if pairs is None:
        raise TooFewAnchors(
            f"A threshold needs at least {FEWEST_DISTINCT} distinct anchors that are not nearly "
            f"all equal; anchor set {row.source.anchor_set.name!r} has fewer. Use a larger set.",
            field="id",
        )
    return pairs
