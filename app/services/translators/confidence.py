"""What to expect of each translation of a request: learnt from the anchors on first use, and kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from app.errors import AnchorageError
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
from app.services.context import Services, answer_bytes
from app.services.serving.plans import Answer, Served
from app.services.translators.translators import canonical
from app.services.upkeep.cache_codecs import CONFIDENCE

#: numbers that are told of each row
COLUMNS = 4

#: what a cached None weighs
NOTHING_BYTES = 1024


@dataclass(frozen=True, eq=False)
class RowConfidence:
    """What is expected of the rows of an answer; all NaN where nothing can be.

    level      of the intervals
    held_out   how many anchors taught and calibrated; 0: none
    threshold  the p-value at or below which a row is flagged; None without held-out anchors
    reason     why there are no intervals, or nothing at all; None where there are
    """

    expected: ExpectedCosines
    level: float
    held_out: int
    threshold: float | None
    reason: str | None


def confidence_of(services: Services, answer: Answer, level: float, *, field: str) -> RowConfidence:
    """What to expect of each row of a translator's answer; a row that became the target's mean has no cosine, and one that
    equals the source's mean, whose own flag says so, no p-value.

    Raises Overloaded while too many others fit, and TooMuchAtOnce.
    """
    count = len(answer.given)
    answer_bytes.get()(count * COLUMNS * incoming.ANSWER_NUMBER_BYTES)
    model = _confidence(services, answer.served)
    if model is None:
        nothing = torch.full((count,), torch.nan, dtype=torch.float64)
        none = torch.zeros(count, dtype=torch.bool)
        reason = f"needs at least {FEWEST_FOR_CONFIDENCE} distinct anchors that are not almost all the same vector"
        return RowConfidence(
            ExpectedCosines(nothing, nothing, nothing, nothing, none), level, 0, None, reason
        )
    try:
        expected = expected_cosines(model, answer.given, level=level)
    except AnchorageError as error:
        raise error.at(field) from None
    known = ~(answer.made.at_mean | answer.made.outside)
    cosine, low, high = (
        torch.where(known, each, torch.nan)
        for each in (expected.cosine, expected.low, expected.high)
    )
    at_mean = answer.made.at_mean
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
        _reason(model, level),
    )


def _reason(model: Confidence, level: float) -> str | None:
    if len(model.errors) >= anchors_needed(level):
        return None
    return f"an interval of level {level:g} needs {anchors_needed(level)} anchors to calibrate with, and there are {len(model.errors)}"


def _confidence(services: Services, served: Served) -> Confidence | None:
    """The translator's, from the cache, or learnt now."""
    assert served.pair is not None
    source, target = served.pair
    method, options = str(served.method), dict(served.options or {})

    def learn() -> Confidence | None:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            return fit_confidence(method, x, y, options)

    return services.cache.get_or_make(
        ("confidence", source.blob, target.blob, method, canonical(options)),
        learn,
        lambda made: NOTHING_BYTES if made is None else made.nbytes,
        shared=CONFIDENCE,
    )
