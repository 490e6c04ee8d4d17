"""The chart of a store's options: what each gains over keep, measured or expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.console.formats import signed
from app.console.wording import CERTAINTIES, OPTIONS
from app.maths.relevance.advice import AdvisedOption

#: the options that the chart draws
DRAWN: tuple[AdvisedOption, ...] = ("cascade", "native", "fuse", "re-embed")


@dataclass(frozen=True)
class Bar:
    """An option: its gain, and in percent of the width where its bar and its interval lie.

    gain         None: only the range is known
    note         what stands after the number
    is_expected  whether other collections lead to expect it, and nothing here was measured
    """

    label: str
    gain: float | None
    note: str
    is_expected: bool
    bar: tuple[float, float]
    interval: tuple[float, float]


def verdict_chart(advice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the bars of `bars.html`, and the end of their axis, which has 0 in the middle; None
    with fewer than two options to compare.
    """
    options = {each["name"]: each for each in advice["options"]}
    known = [options[each] for each in DRAWN if options[each]["possible"]]
    known = [each for each in known if each["over_keep"]]
    if len(known) < 2:
        return None
    numbers = [abs(each) for option in known for each in option["over_keep"].values() if each]
    end = math.ceil(max(numbers, default=0.1) * 20) / 20
    return {"end": end, "bars": [_bar(each, end) for each in known]}


def _bar(option: Mapping[str, Any], end: float) -> Bar:
    value, low, high = (option["over_keep"][name] for name in ("value", "low", "high"))
    start, stop = (low, high) if value is None else sorted((0.0, value))
    return Bar(
        OPTIONS[option["name"]].title,
        value,
        f"{signed(low)} to {signed(high)}, {CERTAINTIES[option['certainty']]}",
        option["certainty"] == "expected",
        (_place(start, end), _place(stop, end)),
        (_place(low, end), _place(high, end)),
    )


def _place(value: float, end: float) -> float:
    """Returns where the value lies on an axis of -end to end, in percent."""
    return round((value + end) / (2 * end) * 100.0, 1)
