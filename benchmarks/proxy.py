"""Does the similarity of a model's space to a good model's say how good the model is? Moschella et al. 2023, section 4.2.

    python benchmarks/proxy.py                  # about 2 minutes on one core; writes benchmarks/results/proxy.json and proxy.png
    python benchmarks/proxy.py --models 20      # fewer, to try it out; writes below the temporary folder

Small graph networks on Cora, drawn from a grid like the paper's Table 10 (width, depth, convolution, activation, dropout,
optimiser, rate, epochs, seed), beside the reference of that table, which is trained for longer. Similarity: the mean over all
nodes of the cosine of the two models' relative vectors, to 300 nodes drawn once; centred on the anchors' mean as the service's
are, and not, as the paper's. Beside it debiased linear CKA. Labels are looked at for the accuracy only. Data:
$ANCHORAGE_DATA/planetoid/cora_plain.npz.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import correlation, mean, stdev
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, embedding_bag

# The graph is read as the stitching benchmark reads it.
sys.path.insert(0, str(Path(__file__).parent / "stitching"))

from cora import CLASSES, DECAY, Graph, read
from task import DATA, archive

from app.demo.run import new_table
from app.errors import DegenerateAnchors
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space
from app.maths.quality import metrics
from research.definitions import relative

RESULTS = Path(__file__).parent / "results"
MODELS, ANCHORS = 160, 300

GRID: dict[str, tuple[Any, ...]] = {
    "seed": (0, 1, 2, 3, 4),
    "epochs": (10, 30, 50),
    "width": (32, 64),
    "depth": (1, 2, 3),
    "dropout": (0.1, 0.5),
    "activation": ("relu", "tanh"),
    "convolution": ("gcn", "gin"),
    "optimiser": ("adam", "sgd"),
    "rate": (0.01, 0.02),
}

#: epochs after which a model is looked at
LOOKS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50)

#: the paper leaves models out whose best validation accuracy is below this; and what is good, of ours
FLOOR, GOOD = 0.5, 0.7

SIMILARITIES = ("similarity", "plain_similarity", "cka")
LABELS = {"similarity": "similarity", "plain_similarity": "similarity, not centred", "cka": "debiased CKA"}

PAPER = {
    "over time": 0.955,
    "source": "Moschella et al. 2023, section 4.2 and Figure 3: the mean over about 2,000 models of the Pearson correlation over "
    "epochs, models with best validation accuracy below .5 left out",
}
NOTE = (
    "Over time: for each model the Pearson correlation of similarity and validation accuracy over the epochs looked at, then "
    "mean and standard deviation over the models. Across models: one correlation over all models at the end of their "
    "training. A space whose anchors are all one vector has similarity 0. Planetoid's split: 140 training labels, 500 nodes "
    "for validation, 1,000 for test."
)


@dataclass(frozen=True)
class Setting:
    """What a model is made with; `epochs` are whole passes over the graph."""

    seed: int
    epochs: int
    width: int
    depth: int
    dropout: float
    activation: str
    convolution: str
    optimiser: str
    rate: float


#: the paper's
REFERENCE = Setting(1, 500, 32, 2, 0.5, "relu", "gcn", "adam", 0.02)


@dataclass(frozen=True)
class Look:
    """A model at one time of its training."""

    epoch: int
    validation: float
    test: float
    similarity: float
    plain_similarity: float
    cka: float

    def named(self, name: str) -> float:
        """One of its numbers."""
        value: float = getattr(self, name)
        return value


class Network(nn.Module):
    """Convolutions to `width` dimensions, then a linear classifier. gcn: mean of neighbours; gin: their sum, and a layer more."""

    def __init__(self, vocabulary: int, setting: Setting) -> None:
        super().__init__()
        width, gin = setting.width, setting.convolution == "gin"
        self.setting = setting
        self.act = torch.relu if setting.activation == "relu" else torch.tanh
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(vocabulary, width)))
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(setting.depth - 1))
        self.after = nn.ModuleList(nn.Linear(width, width) for _ in range(setting.depth if gin else 0))
        self.classifier = nn.Linear(width, CLASSES)

    def encode(self, graph: Graph) -> Tensor:
        """The nodes' vectors (n, width)."""
        shares = self._drop(graph.shares)
        vectors = embedding_bag(graph.words, self.first, graph.starts, mode="sum", per_sample_weights=shares)
        for layer in range(self.setting.depth):
            if layer:
                vectors = self.inner[layer - 1](self._drop(self.act(vectors)))
            vectors = graph.propagate(vectors)
            if self.after:
                vectors = self.after[layer](self.act(vectors))
        return vectors

    def forward(self, graph: Graph) -> Tensor:
        """The nodes' logits (n, CLASSES)."""
        logits: Tensor = self.classifier(self._drop(self.encode(graph)))
        return logits

    def _drop(self, vectors: Tensor) -> Tensor:
        return dropout(vectors, self.setting.dropout, training=self.training)


def trained(graph: Graph, setting: Setting) -> Iterator[tuple[int, Network]]:
    """A network as it learns: at each of LOOKS, and at the end of its epochs, in evaluation mode."""
    torch.manual_seed(setting.seed)
    network = Network(graph.vocabulary, setting)
    kind = torch.optim.Adam if setting.optimiser == "adam" else torch.optim.SGD
    optimiser = kind(network.parameters(), lr=setting.rate, weight_decay=DECAY)
    for epoch in range(setting.epochs + 1):
        if epoch in LOOKS or epoch == setting.epochs:
            yield epoch, network.eval()
        if epoch == setting.epochs:
            return  # as it was seen last, and in evaluation mode
        network.train()
        optimiser.zero_grad()
        loss = cross_entropy(network(graph)[graph.train], graph.y[graph.train])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@dataclass(frozen=True, eq=False)
class Yardstick:
    """The reference's relative vectors, and what models are compared with it by."""

    graphs: Mapping[str, Graph]
    validation: Tensor
    anchors: list[int]
    vectors: Tensor

    def look(self, epoch: int, network: Network) -> Look:
        """How good a model is, and how similar to the reference."""
        graph = self.graphs[network.setting.convolution]
        with torch.no_grad():
            vectors = network.encode(graph)
            right = (network.classifier(vectors).argmax(dim=1) == graph.y).float()
        validation, test = float(right[self.validation].mean()), float(right[graph.test].mean())
        return Look(epoch, validation, test, *compared(self.vectors, vectors, self.anchors))


def compared(reference: Tensor, vectors: Tensor, anchors: list[int]) -> tuple[float, float, float]:
    """Similarity, plain similarity and CKA of two models' vectors of the same nodes."""
    try:
        centred = metrics.cosine(*(relative(each, fit_space(each[anchors])) for each in (reference, vectors)))
    except DegenerateAnchors:
        return 0.0, 0.0, 0.0
    units = [metrics.unit(each) for each in (reference, vectors)]
    return centred, metrics.cosine(*(each @ each[anchors].T for each in units)), metrics.cka(reference, vectors)


def settings(count: int) -> list[Setting]:
    """Different ones out of the whole grid, the same draw whenever it runs."""
    sizes = [len(values) for values in GRID.values()]
    draw = torch.randperm(int(np.prod(sizes)), generator=torch.Generator().manual_seed(0))[:count]
    places = zip(*np.unravel_index(draw.numpy(), sizes), strict=True)
    return [Setting(**{name: GRID[name][place] for name, place in zip(GRID, each, strict=True)}) for each in places]


def yardstick() -> tuple[Yardstick, Look]:
    """Cora, with the reference trained on it, and how good that is."""
    graph = read()
    graphs = {"gcn": graph, "gin": replace(graph, weights=torch.ones_like(graph.weights))}
    *_, (epoch, network) = trained(graph, REFERENCE)
    with torch.no_grad():
        vectors = network.encode(graph)
    validation = torch.from_numpy(archive("planetoid/cora_plain.npz")["val_index"])
    stick = Yardstick(graphs, validation, draw_uniformly(len(graph.y), size=ANCHORS, seed=0), vectors)
    return stick, stick.look(epoch, network)


def over_time(histories: Sequence[Sequence[Look]]) -> dict[str, Any]:
    """The paper's number: each model's own correlation over its epochs, of models that are not too bad."""
    found: dict[str, Any] = {"models": len(histories)}
    for name in SIMILARITIES:
        each = [
            correlation([look.named(name) for look in looks], [look.validation for look in looks])
            for looks in histories
            if len({look.named(name) for look in looks}) > 1 and len({look.validation for look in looks}) > 1
        ]
        found[name] = {"mean": mean(each), "std": stdev(each), "lowest": min(each)}
    return found


def across(histories: Sequence[Sequence[Look]]) -> dict[str, Any]:
    """One correlation over all models, at their ends."""
    ends = [looks[-1] for looks in histories]
    found: dict[str, Any] = {"models": len(ends)}
    for name in SIMILARITIES:
        values = [look.named(name) for look in ends]
        found[name] = {
            "validation": correlation(values, [look.validation for look in ends]),
            "test": correlation(values, [look.test for look in ends]),
        }
    return found


def curves(histories: Sequence[Sequence[Look]]) -> dict[str, dict[str, float]]:
    """Means over the models that were trained longest, at each epoch looked at."""
    longest = [looks for looks in histories if looks[-1].epoch == max(LOOKS)]
    return {
        str(epoch): {"models": len(longest)}
        | {name: mean(looks[place].named(name) for looks in longest) for name in (*SIMILARITIES, "validation", "test")}
        for place, epoch in enumerate(LOOKS)
    }


def best(looks: Sequence[Look]) -> float:
    """A model's best validation accuracy."""
    return max(look.validation for look in looks)


def groups(histories: Sequence[Sequence[Look]]) -> dict[str, list[Sequence[Look]]]:
    """All models, the paper's choice of them, and the good ones only."""
    return {
        "all": list(histories),
        f"validation from {FLOOR}": [looks for looks in histories if best(looks) >= FLOOR],
        f"validation from {GOOD}": [looks for looks in histories if best(looks) >= GOOD],
    }


def draw(histories: Sequence[Sequence[Look]], reference: Look, path: Path) -> None:
    """Similarity and CKA against accuracy, a point a model; and both, and accuracy, over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for panel, name in ((left, "similarity"), (middle, "cka")):
        for epochs, colour in zip(GRID["epochs"], ("#9ecae1", "#4292c6", "#08306b"), strict=True):
            ends = [looks[-1] for looks in histories if looks[-1].epoch == epochs]
            panel.scatter([e.named(name) for e in ends], [e.test for e in ends], s=14, color=colour, label=f"{epochs} epochs")
        panel.axhline(reference.test, color="0.6", linewidth=1, linestyle="--", label="the reference")
        panel.set(xlabel=f"{LABELS[name]} to the reference", ylabel="test accuracy", title=f"{len(histories)} models")
        panel.legend(frameon=False, fontsize="small")
    kept = groups(histories)[f"validation from {FLOOR}"]
    points = curves(kept)
    for name in ("similarity", "cka", "validation"):
        line = [row[name] for row in points.values()]
        right.plot(LOOKS, line, marker="o", markersize=3, label=LABELS.get(name, "validation accuracy"))
    right.set(xlabel="epochs", title=f"mean of {points['0']['models']} models over time", ylim=(0, 1))
    right.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=max(110, Console().width))
    for what, columns in (("over_time", ("mean", "std", "lowest")), ("across_models", ("validation", "test"))):
        table = new_table(f"Pearson correlation, {what.replace('_', ' ')}", ("models", "measure"), columns)
        for group, numbers in report[what].items():
            for name in SIMILARITIES:
                cells = [f"{numbers[name][column]:.3f}" for column in columns]
                table.add_row(f"{group} ({numbers['models']})", LABELS[name], *cells)
        console.print(table)
    console.print(f"paper: {PAPER}\nreference: {report['reference']}\n{report['note']}\n{report['seconds']} s", highlight=False)


def _rounded(value: Any) -> Any:
    """Four digits that matter, all the way down."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Train, compare, print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=MODELS, help="how many")
    options = parser.parse_args()
    if not (DATA / "planetoid").is_dir():
        sys.exit(f"no planetoid in {DATA}: see the head of this script for the data, or set ANCHORAGE_DATA")
    torch.set_num_threads(1)
    began = time.monotonic()
    stick, reference = yardstick()
    models: dict[Setting, list[Look]] = {}
    for setting in track(settings(options.models), "models"):
        learner = trained(stick.graphs[setting.convolution], setting)
        models[setting] = [stick.look(epoch, network) for epoch, network in learner]
    histories = list(models.values())
    report = _rounded(
        {
            "note": NOTE,
            "paper": PAPER,
            "reference": {"setting": asdict(REFERENCE), "validation": reference.validation, "test": reference.test},
            "over_time": {name: over_time(group) for name, group in groups(histories).items()},
            "across_models": {name: across(group) for name, group in groups(histories).items()},
            "curves": curves(groups(histories)[f"validation from {FLOOR}"]),
            "seconds": round(time.monotonic() - began),
            "models": [{**asdict(setting), "best": best(looks), **asdict(looks[-1])} for setting, looks in models.items()],
        }
    )
    folder = RESULTS if options.models == MODELS else Path(tempfile.mkdtemp(prefix="anchorage-proxy-"))
    (folder / "proxy.json").write_text(written(report))
    show(report)
    draw(histories, reference, folder / "proxy.png")
    print(f"written to {folder}")


def written(report: Mapping[str, Any]) -> str:
    """JSON, a line for each model."""
    head = json.dumps({name: value for name, value in report.items() if name != "models"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in report["models"])
    return f'{head[:-2]},\n "models": [\n  {rows}\n ]\n}}\n'


if __name__ == "__main__":
    main()
