"""The charts of a translator's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from app.api.schemas.quality import (
    EstimateOut,
    LearningCurveOut,
    TranslatorReportOut,
)
from app.console.charts import Bar, Series, bar_chart, line_chart
from app.console.wording import CERTAINTIES, MEASURES_SHOWN, OPTIONS, SEARCHES
from app.maths.relevance.advice import AdvisedOption

#: the options that the verdict draws
DRAWN: tuple[AdvisedOption, ...] = ("keep", "cascade", "native", "fuse", "re-embed")

#: the lines of the learning curve, and of the quality by size of the index
LINES = ("recall", "mrr", "cosine")


def charts_of(report: TranslatorReportOut) -> dict[str, Markup | None]:
    """Returns the charts by name; None for those that the report has no numbers for."""
    learning = report.learning
    return {
        "learning": None
        if learning is None or len(learning.anchors) < 2
        else learning_chart(learning),
        "estimate": None if report.estimate is None else estimate_chart(report.estimate),
    }


def verdict_chart(slug: str, advice: Mapping[str, Any]) -> Markup:
    """Returns what each option gains over keep, measured or expected."""
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
    return bar_chart(slug, "Gain over keep in nDCG@10", bars, is_gain=True)


def evaluation_chart(result: Mapping[str, Any]) -> Markup | None:
    """Returns the chart of an evaluation or a comparison; None for another result."""
    if "results" in result:
        bars = [
            Bar(SEARCHES[name], each["ndcg_10"], *each["intervals"]["ndcg_10"])
            for name, each in result["results"].items()
        ]
        return bar_chart("result", "nDCG@10 of each option, with 95 % intervals", bars)
    if "translated" in result:
        sides = {"Translated": result["translated"], "Do nothing": result["do_nothing"]}
        bars = [
            Bar(name, each["recall"], *each["intervals"]["recall"]) for name, each in sides.items()
        ]
        title = f"Recall@{result['k']} among {result['index']} items, with 95 % intervals"
        return bar_chart("result", title, bars)
    if "encoders" in result and "pairs" in result:
        bars = [Bar(each["encoder"], each["mrr"], *each["interval"]) for each in result["encoders"]]
        return bar_chart("result", "Mean reciprocal rank, with 95 % intervals", bars)
    return None


def estimate_chart(estimate: EstimateOut) -> Markup:
    """Returns a bar with its interval for each measure."""
    bars = [
        Bar(MEASURES_SHOWN[name][0], each.value, each.low, each.high)
        for name in MEASURES_SHOWN
        if (each := estimate.measures.get(name)) is not None
    ]
    return bar_chart("estimate", "Estimated quality, with 95 % intervals", bars)


def learning_chart(curve: LearningCurveOut) -> Markup:
    """Returns held-out quality by the number of anchors of the fit."""
    lines = [
        Series(
            MEASURES_SHOWN[name][0],
            list(zip(curve.anchors, curve.measures[name], strict=True)),
        )
        for name in LINES
        if name in curve.measures
    ]
    return line_chart(
        "learning",
        "Learning curve",
        "Held-out quality by the number of anchors of the fit. "
        + " ".join(_ends(line) for line in lines),
        lines,
        x_label="anchors",
    )


def _ends(line: Series) -> str:
    """Returns the first and the last point of a line in words."""
    (x, y), (last_x, last_y) = line.points[0], line.points[-1]
    return f"{line.name}: {y:.2f} at {x:,.4g}, {last_y:.2f} at {last_x:,.4g}."
