"""Charts: places, ticks, and what readers who do not see them get."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from app.console.charts import Axis, Bar, Series, bar_chart, line_chart, nice_ticks

SVG = "{http://www.w3.org/2000/svg}"


def parse(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(str(markup).replace("<svg ", f'<svg xmlns="{SVG[1:-1]}" ', 1))  # noqa: S314


def line(**more: object) -> str:
    return line_chart(
        "learning",
        "Learning <curve>",
        "Quality & anchors.",
        [Series("recall", [(50, 0.5), (100, 0.75), (200, 0.8)]), Series("mrr", [(50, 0.9)])],
        x_label="anchors",
        **more,
    )


def test_a_line_goes_through_its_points_and_higher_values_lie_higher() -> None:
    drawn = parse(line()).findall(f"{SVG}polyline")
    spots = [tuple(map(float, spot.split(","))) for spot in drawn[0].attrib["points"].split()]
    assert len(spots) == 3
    assert spots[0][0] < spots[1][0] < spots[2][0]
    assert spots[0][1] > spots[1][1] > spots[2][1]  # y grows downwards


def test_lines_differ_by_their_marks_too() -> None:
    drawn = parse(line())
    assert len(drawn.findall(f"{SVG}circle")) == 3
    assert len(drawn.findall(f"{SVG}rect")) == 1


def test_values_beyond_an_axis_lie_at_its_ends() -> None:
    axis = Axis("", 10, 20, 0, 100)
    assert [axis.place(value) for value in (0, 10, 15, 1e9)] == [0, 0, 50, 100]


def test_a_chart_has_a_title_and_a_description_and_escapes_them() -> None:
    drawn = parse(line())
    assert drawn.attrib["role"] == "img"
    assert drawn.attrib["aria-labelledby"] == "learning-title learning-about"
    assert drawn.find(f"{SVG}title").text == "Learning <curve>"
    assert drawn.find(f"{SVG}desc").text == "Quality & anchors."


def test_a_chart_has_no_inline_style_and_no_script() -> None:
    for markup in (line(), bar_chart("b", "t", [Bar("x", 0.5, 0.4, 0.6, certain=False)])):
        assert "style" not in markup
        assert "<script" not in markup


def test_a_band_encloses_its_line() -> None:
    drawn = parse(
        line_chart(
            "c",
            "t",
            "d",
            [Series("s", [(0, 0.5), (1, 0.6)], [(0.4, 0.6), (0.5, 0.7)])],
            x_label="x",
        )
    )
    ring = drawn.find(f"{SVG}polygon").attrib["points"].split()
    assert len(ring) == 4
    ys = [float(spot.split(",")[1]) for spot in ring]
    assert ys[0] < ys[3]  # the upper edge comes first


def bars(*drawn: Bar, **more: bool) -> ElementTree.Element:
    return ElementTree.fromstring(str(bar_chart("b", "Title <b>", drawn, **more)))  # noqa: S314


def widths(chart: ElementTree.Element, kind: str) -> list[float]:
    return [
        float(each.attrib["width"].rstrip("%"))
        for each in chart.iterfind(f"li/svg/rect[@class='{kind}']")
    ]


def test_bars_are_as_long_as_their_values() -> None:
    chart = bars(Bar("half", 0.5), Bar("all", 1.0), Bar("less", -0.2))
    assert widths(chart, "certain") == [50, 100, 0]
    assert chart.attrib["aria-label"] == "Title <b>"


def test_gains_start_at_0_in_the_middle_and_what_is_expected_is_striped_and_said() -> None:
    chart = bars(
        Bar("better", 0.1, 0.05, 0.15, "measured"),
        Bar("worse", -0.2, -0.3, -0.1, "expected", certain=False),
        Bar("range", None, -0.1, 0.2, "expected", certain=False),
        Bar("nothing", None, note="not measured"),
        is_gain=True,
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


def test_ticks_are_round_and_enclose_the_values() -> None:
    assert nice_ticks(0.82, 0.97) == [0.8, 0.85, 0.9, 0.95, 1.0]
    assert nice_ticks(64, 256) == [50, 100, 150, 200, 250, 300]
    alike = nice_ticks(0.5, 0.5)
    assert alike[0] <= 0.5 <= alike[-1]


@pytest.mark.parametrize("series", [[], [Series("s", [])], [Series("s", [(0, 0)])] * 4])
def test_a_chart_without_points_or_with_too_many_lines_is_an_error(series: list[Series]) -> None:
    with pytest.raises(ValueError, match="1 to 3 lines"):
        line_chart("c", "t", "d", series, x_label="x")


def test_numbers_are_the_only_text_beside_labels() -> None:
    texts = [each.text for each in parse(line()).findall(f"{SVG}text")]
    assert "anchors" in texts
    assert all(re.fullmatch(r"[0-9.]+k?", text) for text in texts if text != "anchors")
