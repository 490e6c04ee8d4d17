"""Does the similarity of a model's space to a good model's say how good the model is? Moschella et
al. 2023, section 4.2.

    python -m research.proxy              # about 2 minutes on one core
    python -m research.proxy --models 20  # fewer models

Writes research/results/proxy.json.

Small graph networks on Cora, drawn from a grid like the paper's Table 10 (width, depth,
convolution, activation, dropout, optimiser, rate, epochs, seed), next to the reference of that
table, which is trained for longer. Similarity: the mean over all nodes of the cosine of the two
models' relative vectors, to 300 nodes drawn once; centred on the anchors' mean as in the service,
and not centred as in the paper. Next to it stands debiased linear CKA. Labels are used for the
accuracy only. Over time: for each model the Pearson correlation of similarity and validation
accuracy over the epochs looked at, then mean and standard deviation over the models. Across models:
one correlation over all models at the end of their training. A space whose anchors are all one
vector has similarity 0.

Data: $ANCHORAGE_DATA/planetoid/cora_plain.npz.
"""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.common import DATA, parser, show, write
from research.common import RESULTS
from research.proxy.correlations import SIMILARITIES, across, groups, over_time
from research.proxy.networks import Setting, settings, trained
from research.proxy.yardstick import Look, yardstick

MODELS = 160

#: Moschella et al. 2023, section 4.2 and Figure 3: the mean over about 2,000 models of the Pearson
#: correlation over epochs, models with best validation accuracy below .5 left out
PAPER = 0.955
COLUMNS = (
    "over time, similarity",
    "over time, CKA",
    "across, similarity",
    "across, CKA",
)


def main() -> None:
    """Train, compare, print and write."""
    arguments = parser(__doc__, RESULTS / "proxy.json")
    arguments.add_argument("--models", type=int, default=MODELS, help="how many models to train")
    options = arguments.parse_args()
    if not (DATA / "planetoid").is_dir():
        sys.exit(
            f"No folder `planetoid` in {DATA}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    torch.set_num_threads(1)
    stick, reference = yardstick()
    models: dict[Setting, list[Look]] = {}
    for setting in track(settings(options.models), "models"):
        learner = trained(stick.graphs[setting.convolution], setting)
        models[setting] = [stick.look(epoch, network) for epoch, network in learner]
    found = groups(list(models.values()))
    table = [["best validation accuracy", "models", *COLUMNS]]
    for name, group in found.items():
        over, ends = over_time(group), across(group)
        spreads = [f"{over[each]['mean']:.3f} ± {over[each]['std']:.3f}" for each in SIMILARITIES]
        pairs = [f"{ends[e]['validation']:.3f} / {ends[e]['test']:.3f}" for e in SIMILARITIES]
        table.append([name.removeprefix("validation "), str(over["models"]), *spreads, *pairs])
    tables = {"similarity": table}
    show(Console(width=160), tables)
    print(f"The paper: {PAPER}. The reference's test accuracy: {reference.test:.3f}.")
    write(options.json, tables)


if __name__ == "__main__":
    main()
