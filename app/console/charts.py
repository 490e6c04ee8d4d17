"""The chart of a store's options: what each gains over keep, measured or expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.console.formats import signed
from app.console.wording import CERTAINTIES
from app.maths.relevance.advice import AdvisedOption

#: the options that the chart draws
DRAWN: tuple[AdvisedOption, ...] = ("cascade", "native", "fuse", "re-embed")


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


def _bar(option: Mapping[str, Any], end: float) -> dict[str, Any]:
    """Returns a bar and its interval, in percent of the width; without a gain, it is the range."""
    value, low, high = (option["over_keep"][name] for name in ("value", "low", "high"))
    start, stop = (low, high) if value is None else sorted((0.0, value))
    return {
        "label": option["name"].capitalize(),
        "gain": value,
        "note": f"{signed(low)} to {signed(high)}, {CERTAINTIES[option['certainty']]}",
        "is_expected": option["certainty"] == "expected",
        "bar": (_place(start, end), _place(stop, end)),
        "interval": (_place(low, end), _place(high, end)),
    }


def _place(value: float, end: float) -> float:
    """Returns where the value lies on an axis of -end to end, in percent."""
    return round((value + end) / (2 * end) * 100.0, 1)
