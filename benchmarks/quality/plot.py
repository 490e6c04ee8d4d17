"""One picture: recall against the number of anchors, and the graded family over its powers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

#: what is drawn, and how: the product in colour, the paper's method and the peers in grey
LINES = {
    "auto": ("C3", "-", "o"),
    "graded": ("C0", "-", "s"),
    "ridge": ("C2", "-", "^"),
    "procrustes": ("C1", "-", "v"),
    "irp": ("0.35", "--", "x"),
    "isotrieve ridge, own lengths": ("0.55", ":", "d"),
    "latentis procrustes": ("0.55", "-.", "+"),
    "least squares": ("0.75", "--", "."),
}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of a report's sections."""
    sections = report["sections"]
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for section in sections.values():
        if "rows" in section and "task" in section:
            curves.setdefault(section["task"], []).append(section)
    maps = sections.get("powers", {"tasks": {}})
    columns = max(len(curves), len(maps["tasks"]), 1)
    figure, axes = plt.subplots(
        2, columns, figsize=(3.1 * columns, 6.8), squeeze=False, layout="constrained"
    )
    for axis, (task, parts) in zip(axes[0], curves.items(), strict=False):
        _curve(axis, task, sorted(parts, key=lambda part: part["anchors"]))
    for axis, (task, heat) in zip(axes[1], maps["tasks"].items(), strict=False):
        _heat(axis, task, heat, maps["encode"], maps["decode"])
    for axis in axes.flat:
        if not axis.has_data():
            axis.axis("off")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(LINES), fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(axis: Any, task: str, parts: list[Mapping[str, Any]]) -> None:
    for method, (colour, style, marker) in LINES.items():
        shown = [part for part in parts if method in part["rows"]]
        means = [part["rows"][method]["recall"]["mean"] for part in shown]
        errors = [part["rows"][method]["recall"]["std"] or 0.0 for part in shown]
        sizes = [part["anchors"] for part in shown]
        axis.errorbar(
            sizes,
            means,
            yerr=errors,
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=4,
            label=method,
        )
    axis.set(xscale="log", title=task, xlabel="anchors")
    axis.set_xticks([part["anchors"] for part in parts], [f"{part['anchors']:,}" for part in parts])
    axis.minorticks_off()
    axis.set_ylabel("recall@10 of unseen items")
    axis.grid(alpha=0.3)


def _heat(
    axis: Any, task: str, heat: Mapping[str, Any], encode: list[float], decode: list[float]
) -> None:
    axis.imshow(heat["recall"], origin="lower", aspect="auto", cmap="viridis")
    axis.set(
        title=f"{task}, {heat['anchors']} anchors", xlabel="decode power b", ylabel="encode power a"
    )
    axis.set_xticks(range(len(decode)), [f"{power:g}" for power in decode], fontsize=7)
    axis.set_yticks(range(len(encode)), [f"{power:g}" for power in encode])
    best = max(max(row) for row in heat["recall"])
    for row, values in enumerate(heat["recall"]):
        for column, value in enumerate(values):
            weight = "bold" if value == best else "normal"
            dark = value < (best + min(map(min, heat["recall"]))) / 2
            axis.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                weight=weight,
                color="w" if dark else "k",
            )
