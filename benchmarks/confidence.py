"""Are the intervals and p-values of `confidence: true` right on real encoders?

    python -m benchmarks.confidence              # 4 minutes of one core
    python -m benchmarks.confidence --only trec  # some tasks

Writes benchmarks/results/confidence.json.

Banking77, TREC and STS-B by three text encoders, CIFAR-10 by six ImageNet encoders, Fashion-MNIST
by five timm encoders; 100, 300 and 1,000 anchors; five splits; every ordered pair, twelve at most
(at 1,000 anchors three). The graded method translates every test item, and the service's confidence
is compared with what is measured:

- coverage: how often the measured cosine lies in the 80, 90 and 95 % interval, and the mean width
  of the intervals;
- the correlation of the expected with the measured cosine, and whether a low expected cosine picks
  out the items that do not find themselves first;
- how well the p-value separates items of another task by the same encoder from test items (AUROC),
  and how often each kind and garbage are flagged. Items of another domain may still translate well,
  so the coverage on them is reported, too.

Data: see benchmarks/quality/data.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import mean

import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality.confidence import ExpectedCosines, expected_cosines, fit_confidence
from app.maths.quality.metrics import unit
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.quality.data import SHARED_ENCODERS, TASKS, Task, other_domain, split
from research.definitions import ranks

NAMES = (*SHARED_ENCODERS, "cifar10", "fashion-mnist")
ANCHORS = (100, 300, 1000)
SEEDS = 5
MOST_PAIRS = {100: 12, 300: 12, 1000: 3}
METHOD = "graded"
LEVELS = (0.8, 0.9, 0.95)

#: how many items of another domain, and of each kind of garbage
OTHERS, GARBAGE = 500, 100
GARBAGE_KINDS = (
    "random",
    "another encoder",
    "negated",
    "mirrored",
    "next to zero",
    "constant",
)

#: numbers of one pair and split, by name
Cell = dict[str, float]


def main() -> None:
    arguments = parser(__doc__, RESULTS / "confidence.json")
    arguments.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, help="measure only these tasks"
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console(stderr=True)
    tasks: dict[str, dict[str, Cell]] = {}
    for name in options.only:
        began = time.process_time()
        try:
            task = TASKS[name]()
        except Missing as error:
            console.print(f"[red]{name} is left out.[/red] {error}", highlight=False)
            continue
        others = other_domain(task)
        measured = {
            str(anchors): _means(list(_cells(task, anchors, others))) for anchors in ANCHORS
        }
        tasks[name] = measured
        console.print(f"{name}: {time.process_time() - began:.0f} s")
    tables = {"numbers": _numbers(tasks), "flagged": _flagged(tasks)}
    show(Console(), tables)
    write(options.json, tables, {"tasks": tasks})


def _cells(task: Task, anchors: int, others: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Cell]:
    most = MOST_PAIRS[anchors]
    pairs = task.pairs[:: -(-len(task.pairs) // most)]
    for seed in range(SEEDS):
        chosen, tested = split(task, anchors, seed)
        for source, target in pairs:
            x, y = task.encoders[source], task.encoders[target]
            elsewhere = {name: (their[source], their[target]) for name, their in others.items()}
            yield _cell(x[chosen], y[chosen], x[tested], y[tested], elsewhere, seed)


def _cell(
    x: Tensor,
    y: Tensor,
    asked: Tensor,
    native: Tensor,
    elsewhere: Mapping[str, tuple[Tensor, Tensor]],
    seed: int,
) -> Cell:
    """Numbers of one pair: anchors (k, d_x) and (k, d_y), test items (n, d_x) and (n, d_y), and
    items of other tasks.
    """
    options = methods.resolve(METHOD, {}, anchors=len(x))
    model = fit_confidence(METHOD, x, y, options)
    assert model is not None
    translator = methods.fit(METHOD, fit_space(x), fit_space(y), options)
    middle = y.mean(dim=0)
    found, translated = _cosines(translator, asked, native, middle)
    usual = expected_cosines(model, asked)
    cell = {
        "correlation": float(torch.corrcoef(torch.stack([usual.cosine, found]))[0, 1]),
        "flagged": _share(usual.strange),
    }
    for level in LEVELS:
        cell |= {
            f"{name}_{level}": value
            for name, value in _covered(expected_cosines(model, asked, level=level), found).items()
        }
    lost = ranks(translated - middle, native - middle) > 1
    if 0 < int(lost.sum()) < len(lost):
        cell["auroc_lost"] = _auroc(-usual.cosine[lost], -usual.cosine[~lost])
    draw = torch.Generator().manual_seed(seed)
    for name, (theirs, their_native) in elsewhere.items():
        rows = torch.randperm(len(theirs), generator=draw)[:OTHERS]
        told = expected_cosines(model, theirs[rows])
        cell[f"auroc_{name}"] = _auroc(-told.p_value, -usual.p_value)
        cell[f"flagged_{name}"] = _share(told.strange)
        cell[f"covered_{name}"] = _covered(
            told, _cosines(translator, theirs[rows], their_native[rows], middle)[0]
        )["coverage"]
    return cell | {
        f"flagged_{name}": _share(expected_cosines(model, each).strange)
        for name, each in _garbage(x, asked, draw).items()
    }


def _cosines(
    translator: Translator, asked: Tensor, native: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    """Measured cosines (n,), and the translations (n, d_y)."""
    translated = apply(translator, asked).vectors.double()
    return (unit(translated - middle) * unit(native - middle)).sum(dim=1), translated


def _garbage(x: Tensor, asked: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    """Vectors that the encoder would not produce."""
    some, middle = asked[:GARBAGE], x.mean(dim=0)
    distance = (x - middle).norm(dim=1).mean()
    random = unit(torch.randn(some.shape, generator=draw, dtype=torch.float64))
    return {
        "random": middle + distance * random,
        "another encoder": some[:, torch.randperm(some.shape[1], generator=draw)],
        "negated": -some,
        "mirrored": 2 * middle - some,
        "next to zero": 1e-4 * some,
        "constant": x.abs().mean()
        * torch.linspace(0.1, 3, 10, dtype=torch.float64)[:, None].expand(-1, x.shape[1]),
    }


def _covered(told: ExpectedCosines, found: Tensor) -> dict[str, float]:
    return {
        "coverage": _share((told.low <= found) & (found <= told.high)),
        "width": float((told.high - told.low).mean()),
    }


def _share(rows: Tensor) -> float:
    return float(rows.double().mean())


def _auroc(higher: Tensor, lower: Tensor) -> float:
    """How often a number of the first exceeds one of the second; a tie counts half."""
    ordered = lower.sort().values
    below = torch.searchsorted(ordered, higher, right=False) + torch.searchsorted(
        ordered, higher, right=True
    )
    return float(below.double().mean()) / (2 * len(lower))


def _means(cells: list[Cell]) -> Cell:
    values: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        for name, value in cell.items():
            values[name].append(value)
    return {name: mean(each) for name, each in values.items()}


def _numbers(tasks: Mapping[str, Mapping[str, Cell]]) -> Table:
    """Coverage, correlation and p-values, by task and number of anchors."""
    columns = ["task", "anchors", "in 80 / 90 / 95 %", "width of 90 %"]
    columns += ["correlation with the found cosine", "flagged", "AUROC of other domains"]
    table = [[*columns, "flagged there", "in 90 % there", "AUROC of items not found first"]]
    for name, sized in tasks.items():
        for anchors, found in sized.items():
            row = [name, f"{int(anchors):,}"]
            row += [" / ".join(f"{found[f'coverage_{level}']:.3f}" for level in LEVELS)]
            row += [f"{found['width_0.9']:.3f}", f"{found['correlation']:.2f}"]
            row += [f"{found['flagged']:.3f}"]
            for key, decimals in (("auroc", 3), ("flagged", 2), ("covered", 2)):
                values = (
                    f"{other} {found[f'{key}_{other}']:.{decimals}f}"
                    for other in SHARED_ENCODERS
                    if f"{key}_{other}" in found
                )
                row.append(", ".join(values) or "-")
            table.append([*row, f"{found.get('auroc_lost', float('nan')):.2f}"])
    return table


def _flagged(tasks: Mapping[str, Mapping[str, Cell]]) -> Table:
    """The shares of garbage that is flagged."""
    table = [["task", "anchors", *GARBAGE_KINDS]]
    for name, sized in tasks.items():
        for anchors, found in sized.items():
            shares = (f"{found[f'flagged_{kind}']:.2f}" for kind in GARBAGE_KINDS)
            table.append([name, f"{int(anchors):,}", *shares])
    return table


if __name__ == "__main__":
    main()
