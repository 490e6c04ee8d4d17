"""The chart: places, ticks, and what readers who do not see it get."""

from __future__ import annotations

from xml.etree import ElementTree

from app.console.charts import Bar, draw_bars


def test_a_chart_has_no_inline_style_and_no_script() -> None:
    markup = draw_bars("b", [Bar("x", 0.5, 0.4, 0.6, certain=False)])
    assert "style" not in markup
    assert "<script" not in markup


def bars(*drawn: Bar) -> ElementTree.Element:
    return ElementTree.fromstring(str(draw_bars("b", drawn)))  # noqa: S314


def test_a_label_is_escaped() -> None:
    chart = bars(Bar("Title <b>", 0.5))
    assert next(chart.itertext()) == "Title <b>"
