"""One picture: the share of right pairs against the number of seeds, for every pair of encoders and
method.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

#: our methods in colour, what they are measured against in grey
LINES = {
    "self-learning": ("C3", "-", "o"),
    "soft-plan": ("C0", "-", "s"),
    "paper": ("0.25", "--", "x"),
    "vecmap": ("0.5", "-.", "d"),
    "procrustes": ("0.7", ":", "+"),
}
COLUMNS = 4


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of the report's section `counts`, if it has one."""
    if "counts" not in report["sections"]:
        return
    cases = report["sections"]["counts"]["cases"]
    lines = -(-len(cases) // COLUMNS)
    figure = Figure(figsize=(3.1 * COLUMNS, 2.6 * lines), layout="constrained")
    axes = figure.subplots(lines, COLUMNS, squeeze=False).flat
    handles: dict[str, Any] = {}
    for axis, (case, methods) in zip(axes, cases.items(), strict=False):
        for method, (colour, style, marker) in LINES.items():
            if method in methods:
                points = sorted(
                    (int(count), row["share"]["mean"])
                    for count, row in methods[method].items()
                    if int(count)
                )
                (handles[method],) = axis.plot(
                    *zip(*points, strict=True), color=colour, linestyle=style, marker=marker, ms=4
                )
        axis.set(
            xscale="log",
            title=case,
            xlabel="seeds",
            ylabel="share of right pairs",
            ylim=(-0.03, 1.03),
        )
        axis.title.set_fontsize(9)
        axis.set_xticks([3, 5, 10, 15, 25, 50], ["3", "5", "10", "15", "25", "50"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    for axis in list(figure.axes)[len(cases) :]:
        axis.axis("off")
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=len(LINES), fontsize=8
    )
    figure.savefig(path, dpi=110)
