"""Charts as SVG that needs no script and no inline style: classes of the style sheet colour it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.console.formats import decimals, signed

#: the size in units of the drawing; the page scales it
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 42, 12, 10, 38

#: the fill of bars that are not measured
STRIPES = Markup(
    '<defs><pattern id="{}-stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="certain" width="2.5" height="6"/></pattern></defs>'
)

#: series that have a mark and a colour each
MAX_SERIES = 3


@dataclass(frozen=True)
class Series:
    """A line: its points in the order of x, and intervals [low, high] around them, if known."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()


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


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to the drawing."""

    label: str
    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Returns where the value lies in the drawing; values beyond an end lie at that end."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


def line_chart(
    slug: str,
    title: str,
    description: str,
    series: Sequence[Series],
    *,
    x_label: str,
) -> Markup:
    """Returns lines over common axes, with a separate shape of mark for each line.

    slug         makes the ids of the title and the description unique in a page
    description  says what the lines show, for readers who do not see them
    Raises ValueError without points, or with more than MAX_SERIES lines.
    """
    if len(series) > MAX_SERIES or not any(line.points for line in series):
        raise ValueError(f"a chart has 1 to {MAX_SERIES} lines with points")
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    ys += [end for line in series for pair in line.band for end in pair]
    y_ticks = nice_ticks(min(0.0, *ys), max(ys))
    x_ticks = nice_ticks(min(xs), max(xs))
    x_axis = Axis(x_label, x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y_axis = Axis("", y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x_axis, x_ticks, y_axis, y_ticks)]
    for place, line in enumerate(series):
        parts += _line(place, line, x_axis, y_axis)
    return _figure(slug, title, description, HEIGHT, parts)


def bar_chart(slug: str, title: str, bars: Sequence[Bar], *, is_gain: bool = False) -> Markup:
    """Returns a list of values, each with a bar from 0 and its interval as a line over it.

    slug     makes the ids of a page unique
    is_gain  the values have a sign, and the axis has 0 in the middle; else it is 0 to 1
    Raises ValueError without bars.
    """
    if not bars:
        raise ValueError("a chart has at least one bar")
    numbers = [abs(each) for bar in bars for each in (bar.value, bar.low, bar.high) if each]
    end = max(nice_ticks(0.0, max(numbers, default=0.1), 2)) if is_gain else 1.0
    axis = Axis("", -end if is_gain else 0.0, end, 0.0, 100.0)
    rows = [_bar(slug, bar, axis, signed if is_gain else decimals) for bar in bars]
    ticks = [signed(-end, 2), "0", signed(end, 2)] if is_gain else ["0", "0.5", "1"]
    return Markup(
        '<ul class="bars" role="list" aria-label="{}">{}<li class="ticks" aria-hidden="true">{}'
        "</li></ul>"
    ).format(
        title,
        Markup("").join(rows),
        Markup("").join(Markup("<span>{}</span>").format(tick) for tick in ticks),
    )


def _bar(slug: str, bar: Bar, axis: Axis, write: Callable[[float | None], str]) -> Markup:
    zero, drawn = axis.place(0.0), Markup("")
    if bar.value is not None:
        drawn += _rect(slug, bar, *sorted((zero, axis.place(bar.value))))
    elif bar.low is not None and bar.high is not None:
        drawn += _rect(slug, bar, axis.place(bar.low), axis.place(bar.high))
    if bar.low is not None and bar.high is not None and bar.low < bar.high:
        low, high = axis.place(bar.low), axis.place(bar.high)
        for x, end, top, bottom in ((low, high, 8, 8), (low, low, 4, 12), (high, high, 4, 12)):
            drawn += Markup('<line class="interval" x1="{}%" x2="{}%" y1="{}" y2="{}"/>').format(
                x, end, top, bottom
            )
    number = "" if bar.value is None else write(bar.value)
    between = "" if bar.low is None else f"{write(bar.low)} to {write(bar.high)}"
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


def mark(place: int) -> Markup:
    """Returns the mark of a line, for a legend."""
    return Markup('<svg viewBox="0 0 24 12" aria-hidden="true">{}{}</svg>').format(
        Markup('<path class="line s{}" d="M0 6H24"/>').format(place), _mark(place, 12, 6)
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns round numbers with equal steps that enclose both values."""
    if high <= low:
        low, high = low - 0.05, low + 0.05
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Returns the number in a few characters: 0.25, 400, 10k, 1M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _grid(
    x_axis: Axis, x_ticks: Sequence[float], y_axis: Axis, y_ticks: Sequence[float]
) -> Iterator[Markup]:
    for value in y_ticks:
        place = y_axis.place(value)
        yield Markup('<path class="axis" d="M{} {}H{}"/>').format(LEFT, place, WIDTH - RIGHT)
        yield Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
            LEFT - 6, place + 4, tick_text(value)
        )
    for value in x_ticks:
        yield Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            x_axis.place(value), HEIGHT - BOTTOM + 14, tick_text(value)
        )
    yield Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_axis.label
    )


def _line(place: int, line: Series, x_axis: Axis, y_axis: Axis) -> Iterator[Markup]:
    spots = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
    if line.band:
        edges = [x for x, _ in spots]
        lows = [y_axis.place(low) for low, _ in line.band]
        highs = [y_axis.place(high) for _, high in line.band]
        ring = [*zip(edges, highs, strict=True), *reversed([*zip(edges, lows, strict=True)])]
        yield Markup('<polygon class="band p{}" points="{}"/>').format(place, _points(ring))
    yield Markup('<polyline class="line s{}" points="{}"/>').format(place, _points(spots))
    if len(spots) <= 12:
        yield from (_mark(place, x, y) for x, y in spots)


def _mark(place: int, x: float, y: float) -> Markup:
    """Returns a circle, a square or a diamond, so that colour is not the only difference."""
    if place == 0:
        return Markup('<circle class="p0" cx="{}" cy="{}" r="3.5"/>').format(x, y)
    if place == 1:
        return Markup('<rect class="p1" x="{}" y="{}" width="6.4" height="6.4"/>').format(
            round(x - 3.2, 1), round(y - 3.2, 1)
        )
    ring = [(x, y - 4.5), (x + 4.5, y), (x, y + 4.5), (x - 4.5, y)]
    return Markup('<polygon class="p2" points="{}"/>').format(_points(ring))


def _points(spots: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in spots)


def _figure(
    slug: str, title: str, description: str, height: float, parts: Sequence[Markup]
) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="{slug}-title {slug}-about"><title id="{slug}-title">{title}</title>'
        '<desc id="{slug}-about">{about}</desc>{parts}</svg>'
    ).format(
        width=WIDTH,
        height=height,
        slug=slug,
        title=title,
        about=description,
        parts=Markup("").join(parts),
    )
