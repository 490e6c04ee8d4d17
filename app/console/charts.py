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
DRAWN: tuple[AdvisedOption, ...] = ("keep", "cascade", "native", "fuse", "re-embed")


@dataclass(frozen=True)
class Bar:
    """An option: its gain, and in percent of the width where its bar and its interval lie.

    note       what stands after the number
    is_expected  whether other collections lead to expect it, and nothing here was measured
    """

    label: str
    gain: float | None
    note: str
    is_expected: bool = False
    bar: tuple[float, float] | None = None
    interval: tuple[float, float] | None = None


def verdict_chart(advice: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the bars of `bars.html`, and the end of their axis, which has 0 in the middle."""
    options = {each["name"]: each for each in advice["options"]}
    gains = {
        name: (options[name]["over_keep"] if options[name]["possible"] else None) or {}
        for name in DRAWN
    }
    numbers = [abs(each) for gain in gains.values() for each in gain.values() if each]
    end = round_up(max(numbers, default=0.1))
    return {"end": end, "bars": [_bar(options[name], gains[name], end) for name in DRAWN]}


def _bar(option: Mapping[str, Any], gain: Mapping[str, float | None], end: float) -> Bar:
    title, quality = OPTIONS[option["name"]].title, option["ndcg_10"]
    if not option["possible"]:
        return Bar(title, None, "impossible")
    if option["name"] == "keep":
        measured = "" if quality is None else f", nDCG@10 {quality:.3f}"
        return Bar(title, None, f"the baseline{measured}")
    note, value = CERTAINTIES[option["certainty"]], gain.get("value")
    low, high = gain.get("low"), gain.get("high")
    interval = None
    if low is not None and high is not None:
        note = f"{signed(low)} to {signed(high)}, {note}"
        interval = _place(low, end), _place(high, end)
    drawn = interval
    if value is not None:
        start, stop = sorted((0.0, value))
        drawn = _place(start, end), _place(stop, end)
    return Bar(title, value, note, option["certainty"] == "expected", drawn, interval)


def _place(value: float, end: float) -> float:
    """Returns where the value lies on an axis of -end to end, in percent."""
    return round((value + end) / (2 * end) * 100.0, 1)


def round_up(largest: float) -> float:
    """Returns a round number that is at least `largest`, as the end of an axis."""
    rough = largest / 2
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough * 0.999)
    return round(math.ceil(largest / step - 1e-9) * step, 10)
