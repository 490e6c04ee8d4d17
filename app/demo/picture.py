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


def draw_map(
    path: Path,
    *,
    native: Tensor,
    translated: Tensor,
    untranslated: Tensor,
    labels: Tensor,
    title: str,
) -> None:
    """Draw two panels, before and after translation.

    The axes are the two directions in which the intents' native means differ most. `native`,
    `translated` and `untranslated` are (n, d), centred on the target's anchors; `labels` is (n,).
    Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    intents = torch.unique(labels)[:: max(1, len(torch.unique(labels)) // MAX_INTENTS)][
        :MAX_INTENTS
    ]
    means = torch.stack([native[labels == label].mean(dim=0) for label in intents])
    _, _, axes = torch.linalg.svd(means - means.mean(dim=0), full_matrices=False)
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, vectors, name in (
        (panels[0], untranslated, "as they are"),
        (panels[1], translated, "translated"),
    ):
        for colour, label in enumerate(intents):
            rows = labels == label
            start, end = (
                torch.nn.functional.normalize(v[rows]) @ axes[:2].T for v in (native, vectors)
            )
            panel.plot(
                *torch.stack([start, end]).unbind(dim=2), color="0.85", linewidth=0.5, zorder=1
            )
            panel.scatter(
                *start.T,
                s=26,
                color=f"C{colour}",
                alpha=0.75,
                zorder=2,
                label="native" if colour == 0 else None,
            )
            panel.scatter(
                *end.T,
                s=30,
                color=f"C{colour}",
                marker="x",
                zorder=3,
                label=name if colour == 0 else None,
            )
        panel.set_title(f"old vectors {name}")
        panel.legend(loc="lower left", frameon=False)
        panel.set_aspect("equal")
    figure.suptitle(f"{title}: colour is the intent, a line joins the two vectors of one sentence")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_translations(pack: Pack, translated: Tensor, path: Path, console: Console) -> None:
    """Draw the picture if matplotlib is installed.

    translated  (n, d) the index in the new model's space
    """
    if find_spec("matplotlib") is None:
        console.print("No picture. For one, run: pip install 'anchorage-server\\[demo]'")
        return
    mean = pack.new[pack.anchors].mean(dim=0)
    native = pack.new[pack.index] - mean
    draw_map(
        path,
        native=native,
        translated=translated - mean,
        untranslated=metrics.do_nothing(pack.old[pack.index], native.shape[1]) - mean,
        labels=pack.labels[pack.index],
        title="The old index in the space of the new model",
    )
    console.print(f"The old index in the space of the new model: {path}")
