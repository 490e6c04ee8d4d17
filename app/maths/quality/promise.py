"""What a translator promises: the quality of held-out anchors, and what it gains over them by having all anchors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.maths.quality.crossfit import HeldOutQuality
from app.maths.quality.learning_curve import LearningCurve, IntervalEstimate

NO_GAIN = IntervalEstimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Promise:
    """anchors     k that the translator is fitted to
    index       how many items are searched, none of which its fit has seen; in a larger index recall and MRR are lower
    neighbours  how many of them recall and the Jaccards look at
    measures    by their names in `Quality`, each with a 95 % interval
    """

    anchors: int
    index: int
    neighbours: int
    measures: Mapping[str, IntervalEstimate]


def promise(anchors: int, held_out: HeldOutQuality, curve: LearningCurve | None) -> Promise:
    """Held-out numbers of a translator, raised by what its learning curve says that they miss; as they are without a curve.

    anchors  k of the served fit. A fit of `held_out` has 4/5 of them. Recall, MRR and cosine have curves, the others have not,
    and stay a little low.
    """
    found = held_out.translated
    missing = {} if curve is None else curve.missing
    measures = {
        name: _raise_measure(getattr(found, name), *ends, missing.get(name, NO_GAIN))  # type: ignore[call-overload]
        for name, ends in found.intervals.items()
    }
    return Promise(anchors, round(found.index), found.k, measures)


def _raise_measure(value: float, low: float, high: float, gain: IntervalEstimate) -> IntervalEstimate:
    """A measure with what is gained, and the interval of both together, their errors being independent.

    A curve knows nothing of the ceiling at 1: near it, at most half of what is missing is promised.
    """
    gain = IntervalEstimate(*(min(each, (1.0 - value) / 2) for each in gain))
    below = ((value - low) ** 2 + (gain.value - gain.low) ** 2) ** 0.5
    above = ((high - value) ** 2 + (gain.high - gain.value) ** 2) ** 0.5
    total = value + gain.value
    return IntervalEstimate(total, max(-1.0, total - below), min(1.0, total + above))
