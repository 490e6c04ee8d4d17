"""Does a translation's confidence hold what it says, on real encoders?

    python benchmarks/confidence.py [task ...]     # all: 4 minutes of one core; writes results/confidence.json and .png

Banking77, TREC and STS-B by three text encoders, CIFAR-10 by six ImageNet encoders, Fashion-MNIST by five timm encoders; 100,
300 and 1,000 anchors; five splits; every ordered pair, twelve at most (at 1,000 anchors three). Every test item is translated by
the graded method, and asked about as `confidence: true` asks:

- coverage: how often the found cosine lies in the 80, 90 and 95 % interval, and the intervals' mean width;
- correlation of the expected with the found cosine, and whether a low expected cosine tells items that do not find themselves
  first;
- how well the p-value tells items of another task by the same encoder from test items (AUROC), how often either is flagged, and
  how often garbage is. That a domain is another one does not say that it is translated badly: the coverage there is told, too.

Data: see benchmarks/quality/data.py.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "quality"))

from data import SHARED_ENCODERS, TASKS, Missing, Task, other_domain, split

from app.demo.run import new_table
from app.maths.geometry.space import fit_space
from app.maths.quality.confidence import ExpectedCosines, expected_cosines, fit_confidence
from app.maths.quality.metrics import unit
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply
from research.definitions import ranks

RESULTS = Path(__file__).parent / "results" / "confidence.json"
NAMES = (*SHARED_ENCODERS, "cifar10", "fashion-mnist")
ANCHORS = (100, 300, 1000)
SEEDS = 5
MOST_PAIRS = {100: 12, 300: 12, 1000: 3}
METHOD = "graded"
LEVELS = (0.8, 0.9, 0.95)

#: items of another domain, and of each kind of garbage
OTHERS, GARBAGE = 500, 100

#: one pair's and split's numbers, by name
Cell = dict[str, float]


def main() -> None:
    torch.set_num_threads(1)
    console = Console(stderr=True)
    tasks: dict[str, dict[str, Cell]] = {}
    for name in sys.argv[1:] or NAMES:
        begun = time.process_time()
        try:
            task = TASKS[name]()
        except Missing as error:
            console.print(f"[red]{name} is left out.[/red] {error}", highlight=False)
            continue
        others = other_domain(task)
        tasks[name] = {str(anchors): _means(list(_cells(task, anchors, others))) for anchors in ANCHORS}
        console.print(f"{name}: {time.process_time() - begun:.0f} s")
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["tasks"] if RESULTS.exists() else {}
    tasks = {name: (before | tasks)[name] for name in NAMES if name in before | tasks}
    report = {"method": METHOD, "splits": SEEDS, "what": "means over pairs and splits", "tasks": tasks}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(_rounded(report), indent=1) + "\n", encoding="utf-8")
    _draw(tasks, RESULTS.with_suffix(".png"))
    _print(tasks)


def _cells(task: Task, anchors: int, others: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Cell]:
    most = MOST_PAIRS[anchors]
    pairs = task.pairs[:: -(-len(task.pairs) // most)]
    for seed in range(SEEDS):
        chosen, tested = split(task, anchors, seed)
        for source, target in pairs:
            x, y = task.encoders[source], task.encoders[target]
            elsewhere = {name: (their[source], their[target]) for name, their in others.items()}
            yield _cell(x[chosen], y[chosen], x[tested], y[tested], elsewhere, seed)


def _cell(x: Tensor, y: Tensor, asked: Tensor, native: Tensor, elsewhere: Mapping[str, tuple[Tensor, Tensor]], seed: int) -> Cell:
    """One pair's numbers: anchors (k, d_x) and (k, d_y), test items (n, d_x) and (n, d_y), and items of other tasks."""
    options = methods.resolve(METHOD, {}, anchors=len(x))
    begun = time.process_time()
    model = fit_confidence(METHOD, x, y, options)
    assert model is not None
    taken = time.process_time() - begun
    translator = methods.fit(METHOD, fit_space(x), fit_space(y), options)
    middle = y.mean(dim=0)
    found, translated = _cosines(translator, asked, native, middle)
    usual = expected_cosines(model, asked)
    cell = {
        "fit_seconds": taken,
        "cosine": float(found.mean()),
        "correlation": float(torch.corrcoef(torch.stack([usual.cosine, found]))[0, 1]),
        "bias": float((usual.cosine - found).mean()),
        "flagged": _share(usual.strange),
    }
    for level in LEVELS:
        cell |= {f"{name}_{level}": value for name, value in _covered(expected_cosines(model, asked, level=level), found).items()}
    lost = ranks(translated - middle, native - middle) > 1
    cell["lost"] = _share(lost)
    if 0 < int(lost.sum()) < len(lost):
        cell["auroc_lost"] = _auroc(-usual.cosine[lost], -usual.cosine[~lost])
    draw = torch.Generator().manual_seed(seed)
    for name, (theirs, their_native) in elsewhere.items():
        rows = torch.randperm(len(theirs), generator=draw)[:OTHERS]
        told = expected_cosines(model, theirs[rows])
        cell[f"auroc_{name}"] = _auroc(-told.p_value, -usual.p_value)
        cell[f"flagged_{name}"] = _share(told.strange)
        cell[f"covered_{name}"] = _covered(told, _cosines(translator, theirs[rows], their_native[rows], middle)[0])["coverage"]
    return cell | {f"flagged_{name}": _share(expected_cosines(model, each).strange) for name, each in _garbage(x, asked, draw).items()}


def _cosines(translator: Translator, asked: Tensor, native: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """Found cosines (n,), and the translations (n, d_y)."""
    translated = apply(translator, asked).vectors.double()
    return (unit(translated - middle) * unit(native - middle)).sum(dim=1), translated


def _garbage(x: Tensor, asked: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    """Vectors that are none of the encoder's."""
    some, middle = asked[:GARBAGE], x.mean(dim=0)
    distance = (x - middle).norm(dim=1).mean()
    random = unit(torch.randn(some.shape, generator=draw, dtype=torch.float64))
    return {
        "random": middle + distance * random,
        "another encoder": some[:, torch.randperm(some.shape[1], generator=draw)],
        "negated": -some,
        "mirrored": 2 * middle - some,
        "next to zero": 1e-4 * some,
        "constant": x.abs().mean() * torch.linspace(0.1, 3, 10, dtype=torch.float64)[:, None].expand(-1, x.shape[1]),
    }


def _covered(told: ExpectedCosines, found: Tensor) -> dict[str, float]:
    return {"coverage": _share((told.low <= found) & (found <= told.high)), "width": float((told.high - told.low).mean())}


def _share(rows: Tensor) -> float:
    return float(rows.double().mean())


def _auroc(higher: Tensor, lower: Tensor) -> float:
    """How often a number of the first exceeds one of the second; a tie counts half."""
    ordered = lower.sort().values
    below = torch.searchsorted(ordered, higher, right=False) + torch.searchsorted(ordered, higher, right=True)
    return float(below.double().mean()) / (2 * len(lower))


def _means(cells: list[Cell]) -> Cell:
    values: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        for name, value in cell.items():
            values[name].append(value)
    return {name: mean(each) for name, each in values.items()} | {"pairs": len(cells) // SEEDS}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _print(tasks: Mapping[str, Mapping[str, Cell]]) -> None:
    console = Console()
    columns = ("coverage 80/90/95 %", "width of 90 %", "correlation", "flagged", "AUROC of other domains", "AUROC of lost")
    table = new_table("confidence", ("task", "anchors"), columns)
    for name, sized in tasks.items():
        for anchors, found in sized.items():
            domains = [
                f"{key[6:]} {value:.3f}" for key, value in found.items() if key[6:] in SHARED_ENCODERS and key[:5] == "auroc"
            ]
            table.add_row(
                name,
                anchors,
                " ".join(f"{found[f'coverage_{level}']:.3f}" for level in LEVELS),
                f"{found['width_0.9']:.3f}",
                f"{found['correlation']:.3f}",
                f"{found['flagged']:.3f}",
                ", ".join(domains),
                f"{found.get('auroc_lost', float('nan')):.3f}",
            )
    console.print(table)


def _draw(tasks: Mapping[str, Mapping[str, Cell]], path: Path) -> None:
    """Wanted and found coverage, a line for each number of anchors, a panel for each task."""
    figure = Figure(figsize=(3 * len(tasks), 3.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for panel, (name, sized) in zip(panels, tasks.items(), strict=True):
        panel.plot([0.75, 1], [0.75, 1], color="0.7", linewidth=1)
        panel.fill_between([0.75, 1], [0.72, 0.97], [0.78, 1.03], color="0.93")
        for anchors, found in sized.items():
            panel.plot(LEVELS, [found[f"coverage_{level}"] for level in LEVELS], marker="o", label=f"{anchors} anchors")
        panel.set(title=name, xlabel="level of the interval", xlim=(0.75, 1), ylim=(0.75, 1))
    figure.axes[0].set_ylabel("share of test items within")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
