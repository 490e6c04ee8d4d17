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
from app.services.anchors import spaces
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving.maps import ServedMap
from app.services.serving.plans import MappedVectors
from app.services.translators.translators import canonical_json
from app.services.upkeep.cache_codecs import CONFIDENCE

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
    count = len(answer.vectors)
    context.reserve_bytes(count * NUMBERS_PER_ROW * incoming.ANSWER_NUMBER_BYTES)
    model = _find_confidence(services, answer.served)
    if model is None:
        nans = torch.full((count,), torch.nan, dtype=torch.float64)
        no_rows = torch.zeros(count, dtype=torch.bool)
        reason = (
            f"needs at least {FEWEST_FOR_CONFIDENCE} distinct anchors that are not nearly all equal"
        )
        return RowConfidence(
            ExpectedCosines(nans, nans, nans, nans, no_rows), level, 0, None, reason
        )
    with blaming(field):
        expected = expected_cosines(model, answer.vectors, level=level)
    has_cosine = ~(answer.output.at_mean | answer.output.outside)
    cosine, low, high = (
        torch.where(has_cosine, each, torch.nan)
        for each in (expected.cosine, expected.low, expected.high)
    )
    at_mean = answer.output.at_mean
    return RowConfidence(
        ExpectedCosines(
            cosine,
            low,
            high,
            torch.where(at_mean, torch.nan, expected.p_value),
            expected.strange & ~at_mean,
        ),
        level,
        model.held_out,
        model.threshold,
        _explain_missing(model, level),
    )


def _explain_missing(model: Confidence, level: float) -> str | None:
    if len(model.errors) >= anchors_needed(level):
        return None
    return (
        f"intervals of level {level:g} need {anchors_needed(level)} anchors for calibration; "
        f"there are {len(model.errors)}"
    )


def _find_confidence(services: Services, served: ServedMap) -> Confidence | None:
    """The translator's model, from the cache or fitted now; None with too few anchors."""
    assert served.pair is not None
    source, target = served.pair
    method, options = str(served.method), dict(served.options or {})

    def learn() -> Confidence | None:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            return fit_confidence(method, x, y, options)

    return services.cache.get_or_make(
        ("confidence", source.blob, target.blob, method, canonical_json(options)),
        learn,
        lambda fitted: CACHED_NONE_BYTES if fitted is None else fitted.nbytes,
        shared=CONFIDENCE,
    )
