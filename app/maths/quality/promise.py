"""The promise of a translator: the quality of held-out anchors, plus the gain from fitting to all
anchors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.maths.quality.crossfit import HeldOutQuality
from app.maths.quality.learning_curve import IntervalEstimate, LearningCurve

#: The gain of measures without a curve.
NO_GAIN = IntervalEstimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Promise:
    """Expected quality of a served translator.

    anchors     k of the served fit
    index       the number of items in the index, which the fit has not seen; in a larger index
                recall and MRR are lower
    neighbours  neighbours of recall and the Jaccards
    measures    by their names in `Quality`, each with a 95 % interval
    """

    anchors: int
    index: int
    neighbours: int
    measures: Mapping[str, IntervalEstimate]


def promise(anchors: int, held_out: HeldOutQuality, curve: LearningCurve | None) -> Promise:
    """Held-out numbers of a translator, raised by the gain that its learning curve predicts;
    unchanged without a curve.

    anchors  k of the served fit; a fit of `held_out` has 4/5 of them
    Recall, MRR and cosine have curves; the other measures do not, and remain slightly low.
    """
    quality = held_out.translated
    gains = {} if curve is None else curve.missing
    measures = {
        name: _raise_measure(getattr(quality, name), *ends, gains.get(name, NO_GAIN))  # type: ignore[call-overload]
        for name, ends in quality.intervals.items()
    }
    return Promise(anchors, round(quality.index), quality.k, measures)


def _raise_measure(
    value: float, low: float, high: float, gain: IntervalEstimate
) -> IntervalEstimate:
    """A measure plus its gain, and the interval of their sum, whose errors are independent.

    A curve ignores the ceiling at 1, so the gain is at most half of the distance to it.
    """
    gain = IntervalEstimate(*(min(each, (1.0 - value) / 2) for each in gain))
    below = ((value - low) ** 2 + (gain.value - gain.low) ** 2) ** 0.5
    above = ((high - value) ** 2 + (gain.high - gain.value) ** 2) ** 0.5
    total = value + gain.value
    return IntervalEstimate(total, max(-1.0, total - below), min(1.0, total + above))
