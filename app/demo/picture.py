"""One map of native and translated vectors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

#: intents shown: more colours than this cannot be told apart
MOST_INTENTS = 8


def draw(
    path: Path,
    *,
    native: Tensor,
    translated: Tensor,
    untranslated: Tensor,
    labels: Tensor,
    title: str,
) -> None:
    """Two panels on the two axes along which the shown intents' native means differ most: before translation, and after.

    native, translated, untranslated  (n, d), centred on the target's anchors; labels (n,). Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    shown = torch.unique(labels)[:: max(1, len(torch.unique(labels)) // MOST_INTENTS)][:MOST_INTENTS]
    means = torch.stack([native[labels == label].mean(dim=0) for label in shown])
    _, _, axes = torch.linalg.svd(means - means.mean(dim=0), full_matrices=False)
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, moved, name in (
        (panels[0], untranslated, "as they are"),
        (panels[1], translated, "translated"),
    ):
        for colour, label in enumerate(shown):
            rows = labels == label
            here, there = (
                torch.nn.functional.normalize(v[rows]) @ axes[:2].T for v in (native, moved)
            )
            panel.plot(
                *torch.stack([here, there]).unbind(dim=2), color="0.85", linewidth=0.5, zorder=1
            )
            panel.scatter(
                *here.T,
                s=26,
                color=f"C{colour}",
                alpha=0.75,
                zorder=2,
                label="native" if colour == 0 else None,
            )
            panel.scatter(
                *there.T,
                s=30,
                color=f"C{colour}",
                marker="x",
                zorder=3,
                label=name if colour == 0 else None,
            )
        panel.set_title(f"source vectors {name}")
        panel.legend(loc="lower left", frameon=False)
        panel.set_aspect("equal")
    figure.suptitle(f"{title}: colour is the intent, a line joins the two vectors of one sentence")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
