"""Does the similarity of a model's space to a good model's say how good the model is? Moschella et
al. 2023, section 4.2.

    python -m research.proxy              # about 2 minutes on one core
    python -m research.proxy --models 20  # fewer models; writes proxy-quick.json

Writes research/results/proxy.json and proxy.png.

Small graph networks on Cora, drawn from a grid like the paper's Table 10 (width, depth,
convolution, activation, dropout, optimiser, rate, epochs, seed), next to the reference of that
table, which is trained for longer. Similarity: the mean over all nodes of the cosine of the two
models' relative vectors, to 300 nodes drawn once; centred on the anchors' mean as in the service,
and not centred as in the paper. Next to it stands debiased linear CKA. Labels are used for the
accuracy only.

Data: $ANCHORAGE_DATA/planetoid/cora_plain.npz.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from app.demo.run import new_table
from benchmarks.common import DATA, parser, significant
from research.common import RESULTS
from research.proxy.correlations import FLOOR, SIMILARITIES, across, best, curves, groups, over_time
from research.proxy.networks import GRID, LOOKS, REFERENCE, Setting, settings, trained
from research.proxy.yardstick import Look, yardstick

MODELS = 160

LABELS = {
    "similarity": "similarity",
    "plain_similarity": "similarity, not centred",
    "cka": "debiased CKA",
}

PAPER = {
    "over time": 0.955,
    "source": "Moschella et al. 2023, section 4.2 and Figure 3: the mean over about 2,000 models "
    "of the Pearson correlation over "
    "epochs, models with best validation accuracy below .5 left out",
}
NOTE = (
    "Over time: for each model the Pearson correlation of similarity and validation accuracy over "
    "the epochs looked at, then mean and standard deviation over the models. Across models: one "
    "correlation over all models at the end of their training. A space whose anchors are all one "
    "vector has similarity 0. Planetoid's split: 140 training labels, 500 nodes for validation, "
    "1,000 for test."
)


def main() -> None:
    """Train, compare, print, write and draw."""
    arguments = parser(__doc__, RESULTS / "proxy.json")
    arguments.add_argument("--models", type=int, default=MODELS, help="how many models to train")
    options = arguments.parse_args()
    if not (DATA / "planetoid").is_dir():
        sys.exit(
            f"No folder `planetoid` in {DATA}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    torch.set_num_threads(1)
    began = time.monotonic()
    stick, reference = yardstick()
    models: dict[Setting, list[Look]] = {}
    for setting in track(settings(options.models), "models"):
        learner = trained(stick.graphs[setting.convolution], setting)
        models[setting] = [stick.look(epoch, network) for epoch, network in learner]
    histories = list(models.values())
    report = significant(
        {
            "note": NOTE,
            "paper": PAPER,
            "reference": {
                "setting": asdict(REFERENCE),
                "validation": reference.validation,
                "test": reference.test,
            },
            "over_time": {name: over_time(group) for name, group in groups(histories).items()},
            "across_models": {name: across(group) for name, group in groups(histories).items()},
            "curves": curves(groups(histories)[f"validation from {FLOOR}"]),
            "seconds": round(time.monotonic() - began),
            "models": [
                {**asdict(setting), "best": best(looks), **asdict(looks[-1])}
                for setting, looks in models.items()
            ],
        }
    )
    path = options.json if options.models == MODELS else Path("proxy-quick.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(report), encoding="utf-8")
    show(report)
    draw(histories, reference, path.with_suffix(".png"))
    print(f"Written to {path}")


def written(report: Mapping[str, Any]) -> str:
    """The report as JSON, one line for each model."""
    head = json.dumps({name: value for name, value in report.items() if name != "models"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in report["models"])
    return f'{head[:-2]},\n "models": [\n  {rows}\n ]\n}}\n'


def draw(histories: Sequence[Sequence[Look]], reference: Look, path: Path) -> None:
    """Similarity and CKA against accuracy, one point a model; and all three over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for panel, name in ((left, "similarity"), (middle, "cka")):
        for epochs, colour in zip(GRID["epochs"], ("#9ecae1", "#4292c6", "#08306b"), strict=True):
            ends = [looks[-1] for looks in histories if looks[-1].epoch == epochs]
            panel.scatter(
                [e.named(name) for e in ends],
                [e.test for e in ends],
                s=14,
                color=colour,
                label=f"{epochs} epochs",
            )
        panel.axhline(
            reference.test, color="0.6", linewidth=1, linestyle="--", label="the reference"
        )
        panel.set(
            xlabel=f"{LABELS[name]} to the reference",
            ylabel="test accuracy",
            title=f"{len(histories)} models",
        )
        panel.legend(frameon=False, fontsize="small")
    kept = groups(histories)[f"validation from {FLOOR}"]
    points = curves(kept)
    for name in ("similarity", "cka", "validation"):
        line = [row[name] for row in points.values()]
        right.plot(
            LOOKS, line, marker="o", markersize=3, label=LABELS.get(name, "validation accuracy")
        )
    right.set(
        xlabel="epochs", title=f"mean of {points['0']['models']} models over time", ylim=(0, 1)
    )
    right.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=max(110, Console().width))
    for what, columns in (
        ("over_time", ("mean", "std", "lowest")),
        ("across_models", ("validation", "test")),
    ):
        table = new_table(
            f"Pearson correlation, {what.replace('_', ' ')}", ("models", "measure"), columns
        )
        for group, numbers in report[what].items():
            for name in SIMILARITIES:
                cells = [f"{numbers[name][column]:.3f}" for column in columns]
                table.add_row(f"{group} ({numbers['models']})", LABELS[name], *cells)
        console.print(table)
    console.print(
        f"paper: {PAPER}\nreference: {report['reference']}\n"
        f"{report['note']}\n{report['seconds']} s",
        highlight=False,
    )


if __name__ == "__main__":
    main()
