"""The expected quality of each translated row, by a model that is fitted to the anchors once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from app.errors import blaming
from app.maths.quality.confidence import (
    FEWEST_FOR_CONFIDENCE,
    Confidence,
    ExpectedCosines,
    anchors_needed,
    expected_cosines,
    fit_confidence,
)
from app.services import incoming
from app.services.anchors import made_pairs, spaces
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving.apply import MappedVectors, ServedMap
from app.services.translators import fit_anchors
from app.services.translators.translators import canonical_json
from app.services.upkeep.cache_codecs import CONFIDENCE
from app.storage.cache import Key

#: the column in Arrow and Parquet for each number of a row
ARROW_COLUMNS = {
    "cosine": "anchorage_cosine",
    "low": "anchorage_cosine_low",
    "high": "anchorage_cosine_high",
    "p_value": "anchorage_p_value",
}

#: numbers of each row in the answer
NUMBERS_PER_ROW = 4

#: cache size of a None
CACHED_NONE_BYTES = 1024


@dataclass(frozen=True, eq=False)
class RowConfidence:
    """The expected cosines, intervals and p-values of the rows of an answer; NaN without a model.

    level      of the intervals
    held_out   anchors that the model was fitted and calibrated with; 0 without a model
    threshold  rows with a p-value up to this are flagged; None without a model
    reason     why intervals, or all numbers, are missing; None if none are
    """

    expected: ExpectedCosines
    level: float
    held_out: int
    threshold: float | None
    reason: str | None


def confidence_of(
    services: Services, context: RequestContext, answer: MappedVectors, level: float, *, field: str
) -> RowConfidence:
    """Return the confidence of each row of a translator's output.

    A row that became the target's mean has no cosine. A row that equals the source's mean has no
    p-value. Raises Overloaded and TooMuchAtOnce.
    """
    count, served, output = len(answer.vectors), answer.served, answer.output
    context.reserve_bytes(count * NUMBERS_PER_ROW * incoming.ANSWER_NUMBER_BYTES)
    model = find_confidence(services, served)
    if model is None:
        nans = torch.full((count,), torch.nan, dtype=torch.float64)
        nothing = ExpectedCosines(nans, nans, nans, nans, torch.zeros(count, dtype=torch.bool))
        return RowConfidence(nothing, level, 0, None, _why_none(served))
    with blaming(field):
        expected = expected_cosines(model, answer.vectors, level=level)
    has_cosine = ~(output.at_mean | output.outside)
    cosine, low, high = (
        torch.where(has_cosine, each, torch.nan)
        for each in (expected.cosine, expected.low, expected.high)
    )
    at_mean = output.at_mean
    found = ExpectedCosines(
        cosine,
        low,
        high,
        torch.where(at_mean, torch.nan, expected.p_value),
        expected.strange & ~at_mean,
    )
    needed, available = anchors_needed(level), len(model.errors)
    reason = (
        None
        if available >= needed
        else f"intervals of level {level:g} need {needed} anchors for calibration; there are "
        f"{available}"
    )
    return RowConfidence(found, level, model.held_out, model.threshold, reason)


def _why_none(served: ServedMap) -> str:
    """Why there is no model of the map's confidence."""
    if served.translator is None:
        return "the encoder is source and target: the vectors are returned unchanged"
    if _is_made(served):
        return made_pairs.NOT_MEASURED
    return f"needs at least {FEWEST_FOR_CONFIDENCE} distinct anchors that are not nearly all equal"


def find_confidence(services: Services, served: ServedMap) -> Confidence | None:
    """The translator's model, from the cache or fitted now.

    None with too few anchors or made pairs, and where vectors are returned unchanged.
    """
    assert served.pair is not None
    if served.translator is None or _is_made(served):
        return None
    source, target = served.pair
    method, options = str(served.method), dict(served.options or {})
    anchors = fit_anchors.find_anchors(services, source, target)

    def learn() -> Confidence | None:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting(source.project):
            return fit_confidence(method, anchors.of(x), anchors.of(y), options)

    fit: Key = (method, canonical_json(options), *anchors.key)
    return services.cache.get_or_make(
        ("confidence", source.blob, target.blob, *fit),
        learn,
        lambda fitted: CACHED_NONE_BYTES if fitted is None else fitted.nbytes,
        shared=CONFIDENCE,
    )


def _is_made(served: ServedMap) -> bool:
    """Whether an alignment made the pairs that the translator was fitted to."""
    return served.pair is not None and made_pairs.estimate_of(served.pair[0].anchor_set) is not None
