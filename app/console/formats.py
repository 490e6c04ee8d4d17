"""How the templates write numbers, shares and times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from app.moves import price

#: what stands for a value that is not known
UNKNOWN = "–"  # noqa: RUF001
MINUS = "\u2212"


def signed(value: float | None, digits: int = 3) -> str:
    """Returns the number with its sign."""
    return UNKNOWN if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def whole(value: float | None) -> str:
    """Returns the number with separators of thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Returns the share of 1 as a percentage."""
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def money(value: float | None) -> str:
    """Returns a price in the client's unit."""
    return UNKNOWN if value is None else price.money(value)


def disk(value: float) -> str:
    """Returns bytes in the largest unit."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value / 1e3:,.0f} kB"


def moment(value: datetime | None) -> str:
    """Returns the time in UTC, to the minute."""
    return UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def duration(seconds: float | None) -> str:
    """Returns a duration in its largest unit."""
    if seconds is None:
        return UNKNOWN
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "1 s"


def with_code(text: str) -> Markup:
    """Returns the text with parts in backticks as code, and everything else escaped."""
    parts = text.split("`")
    marked = [
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    ]
    return Markup("").join(marked) if len(parts) % 2 else escape(text)


_WRITERS = (signed, whole, percent, money, disk, moment, duration, with_code, price.of_plan)
FILTERS: dict[str, Callable[..., Any]] = {each.__name__: each for each in _WRITERS}
