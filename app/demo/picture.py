"""Draws a map of native and translated vectors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from app.demo.pack import Pack
from app.maths.quality import metrics

#: most intents in the map, because more colours are hard to distinguish
MAX_INTENTS = 8


def draw_map(pack: Pack, translated: Tensor, path: Path, console: Console) -> None:
    """Draw two panels, before and after translation, if matplotlib is installed.

    The axes are the two directions in which the intents' native means differ most.

    translated  (n, d) the index in the new model's space
    """
    if find_spec("matplotlib") is None:
        console.print("No picture. For one, run: pip install 'anchorage-server\\[demo]'")
        return
    from matplotlib.figure import Figure

    mean, labels = pack.new[pack.anchors].mean(dim=0), pack.labels[pack.index]
    native = pack.new[pack.index] - mean
    untranslated = metrics.do_nothing(pack.old[pack.index], native.shape[1]) - mean
    intents = torch.unique(labels)
    intents = intents[:: max(1, len(intents) // MAX_INTENTS)][:MAX_INTENTS]
    means = torch.stack([native[labels == label].mean(dim=0) for label in intents])
    axes = torch.linalg.svd(means - means.mean(dim=0), full_matrices=False)[2][:2]
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    parts = (("as they are", untranslated), ("translated", translated - mean))
    for panel, (name, vectors) in zip(panels, parts, strict=True):
        for place, label in enumerate(intents):
            both = [each[labels == label] for each in (native, vectors)]
            start, end = (torch.nn.functional.normalize(each) @ axes.T for each in both)
            lines = torch.stack([start, end]).unbind(dim=2)
            panel.plot(*lines, color="0.85", linewidth=0.5, zorder=1)
            colour, first = f"C{place}", place == 0
            panel.scatter(
                *start.T,
                s=26,
                color=colour,
                alpha=0.75,
                zorder=2,
                label="native" if first else None,
            )
            panel.scatter(
                *end.T, s=30, color=colour, marker="x", zorder=3, label=name if first else None
            )
        panel.set_title(f"old vectors {name}")
        panel.legend(loc="lower left", frameon=False)
        panel.set_aspect("equal")
    title = "The old index in the space of the new model"
    figure.suptitle(f"{title}: colour is the intent, a line joins the two vectors of one sentence")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    console.print(f"{title}: {path}")
