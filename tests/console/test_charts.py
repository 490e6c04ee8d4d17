"""The chart: places, ticks, and what readers who do not see it get."""

from __future__ import annotations

from xml.etree import ElementTree

from app.console.charts import Bar, draw_bars, round_up


def test_a_chart_has_no_inline_style_and_no_script() -> None:
    markup = draw_bars("b", [Bar("x", 0.5, 0.4, 0.6, certain=False)])
    assert "style" not in markup
    assert "<script" not in markup


def bars(*drawn: Bar) -> ElementTree.Element:
    return ElementTree.fromstring(str(draw_bars("b", drawn)))  # noqa: S314


def widths(chart: ElementTree.Element, kind: str) -> list[float]:
    return [
        float(each.attrib["width"].rstrip("%"))
        for each in chart.iterfind(f"li/svg/rect[@class='{kind}']")
    ]


def test_a_label_is_escaped() -> None:
    chart = bars(Bar("Title <b>", 0.5))
    assert next(chart.itertext()) == "Title <b>"


def test_gains_start_at_0_in_the_middle_and_what_is_expected_is_striped_and_said() -> None:
    chart = bars(
        Bar("better", 0.1, 0.05, 0.15, "measured"),
        Bar("worse", -0.2, -0.3, -0.1, "expected", certain=False),
        Bar("range", None, -0.1, 0.2, "expected", certain=False),
        Bar("nothing", None, note="not measured"),
    )
    assert "".join(chart.find("li[@class='ticks']").itertext()) == "\u22120.400+0.40"
    assert widths(chart, "certain")[0] == 12.5
    assert widths(chart, "striped") == [25, 37.5]
    texts = [" ".join("".join(row.itertext()).split()) for row in chart][:4]
    assert texts == [
        "better+0.100 +0.050 to +0.150, measured",
        "worse\u22120.200 \u22120.300 to \u22120.100, expected",
        "range \u22120.100 to +0.200, expected",
        "nothing not measured",
    ]


def test_the_end_of_an_axis_is_round_and_encloses_the_values() -> None:
    assert [round_up(value) for value in (0.3, 0.97, 64)] == [0.4, 1.0, 100]
