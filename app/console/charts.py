"""The chart of a store's options: what each gains over keep, measured or expected.

It is SVG that needs no script and no inline style: classes of the style sheet colour it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.console.formats import signed
from app.console.wording import CERTAINTIES, OPTIONS
from app.maths.relevance.advice import AdvisedOption

#: the fill of bars that are not measured
STRIPES = Markup(
    '<defs><pattern id="{}-stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="certain" width="2.5" height="6"/></pattern></defs>'
)

#: the options that the chart draws
DRAWN: tuple[AdvisedOption, ...] = ("keep", "cascade", "native", "fuse", "re-embed")


@dataclass(frozen=True)
class Bar:
    """A value with its interval, if known; without a value, its interval or `note` alone.

    note     what stands after the number
    certain  False: drawn with stripes, as what other collections lead to expect
    """

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    certain: bool = True


def verdict_chart(slug: str, advice: Mapping[str, Any]) -> Markup:
    """Returns a list of the options, each with a bar from 0 and its interval as a line over it.

    slug  makes the ids of a page unique
    """
    options = {each["name"]: each for each in advice["options"]}
    bars = []
    for name in DRAWN:
        option, gain = options[name], options[name]["over_keep"]
        title, quality = OPTIONS[name].title, option["ndcg_10"]
        if not option["possible"]:
            bars.append(Bar(title, None, note="impossible"))
        elif name == "keep":
            note = "the baseline" + ("" if quality is None else f", nDCG@10 {quality:.3f}")
            bars.append(Bar(title, None, note=note))
        else:
            known = gain or {}
            value, low, high = (known.get(each) for each in ("value", "low", "high"))
            note, certain = CERTAINTIES[option["certainty"]], option["certainty"] != "expected"
            bars.append(Bar(title, value, low, high, note, certain))
    return draw_bars(slug, bars)


def draw_bars(slug: str, bars: Sequence[Bar]) -> Markup:
    """Returns the bars over one axis with 0 in the middle; `slug` makes their ids unique."""
    numbers = [abs(each) for bar in bars for each in (bar.value, bar.low, bar.high) if each]
    end = round_up(max(numbers, default=0.1))
    ticks = [signed(-end, 2), "0", signed(end, 2)]
    return Markup(
        '<ul class="bars" role="list" aria-label="Gain over keep in nDCG@10">{}'
        '<li class="ticks" aria-hidden="true">{}</li></ul>'
    ).format(
        Markup("").join(_bar(slug, bar, end) for bar in bars),
        Markup("").join(Markup("<span>{}</span>").format(tick) for tick in ticks),
    )


def _bar(slug: str, bar: Bar, end: float) -> Markup:
    zero, drawn = _place(0.0, end), Markup("")
    if bar.value is not None:
        drawn += _rect(slug, bar, *sorted((zero, _place(bar.value, end))))
    elif bar.low is not None and bar.high is not None:
        drawn += _rect(slug, bar, _place(bar.low, end), _place(bar.high, end))
    if bar.low is not None and bar.high is not None and bar.low < bar.high:
        low, high = _place(bar.low, end), _place(bar.high, end)
        for x, stop, top, bottom in ((low, high, 8, 8), (low, low, 4, 12), (high, high, 4, 12)):
            drawn += Markup('<line class="interval" x1="{}%" x2="{}%" y1="{}" y2="{}"/>').format(
                x, stop, top, bottom
            )
    number = "" if bar.value is None else signed(bar.value)
    between = "" if bar.low is None else f"{signed(bar.low)} to {signed(bar.high)}"
    return Markup(
        '<li><span>{}</span><span><strong>{}</strong> <span class="small muted">{}</span></span>'
        '<svg aria-hidden="true" height="16">{}<rect class="track" x="0" y="3" width="100%" '
        'height="10"/>{}<line class="zero" x1="{}%" x2="{}%" y1="0" y2="16"/></svg></li>'
    ).format(
        bar.label,
        number,
        ", ".join(filter(None, (between, bar.note))),
        "" if bar.certain else STRIPES.format(slug),
        drawn,
        zero,
        zero,
    )


def _rect(slug: str, bar: Bar, start: float, end: float) -> Markup:
    fill = "" if bar.certain else Markup(' fill="url(#{}-stripes)"').format(slug)
    return Markup('<rect class="{}" x="{}%" y="3" width="{}%" height="10"{}/>').format(
        "certain" if bar.certain else "striped", start, round(end - start, 1), fill
    )


def _place(value: float, end: float) -> float:
    """Returns where the value lies on an axis of -end to end, in percent."""
    return round((value + end) / (2 * end) * 100.0, 1)


def round_up(largest: float) -> float:
    """Returns a round number that is at least `largest`, as the end of an axis."""
    rough = largest / 2
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough * 0.999)
    return round(math.ceil(largest / step - 1e-9) * step, 10)
