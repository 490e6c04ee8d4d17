"""Which rows of a translated store should be encoded again, and does mixing both kinds harm?

    python -m benchmarks.re_embedding

Cranfield's documents are translated from an old to a new encoder by 300 or 1,000 anchors, whose
own rows get native vectors. Then a share of the other rows gets native vectors too: those that are
most central, those whose translation is least sure, those that are translated worst (which nobody
knows), or random ones. Compared are recall@10 of the results of the new encoder's own vectors, in
an index of the rows that are no anchors, and the recall that a plan predicts from held-out anchors.

Mixing: the share of native rows among the results when 10 % of the rows, drawn at random, are
native. Writes benchmarks/results/re_embedding.json. Data: ANCHORAGE_DATA/cranfield.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality.confidence import expected_cosines, fit_confidence
from app.maths.quality.metrics import shared_count, unit
from app.maths.relevance.re_embedding import at_size, centrality, re_embedding_curve
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.relevance.collection import JudgedCollection, cranfield

PAIRS = (("use", "minilm"), ("use", "e5"), ("e5", "minilm"))
ANCHORS, DRAWS = (300, 1000), 3
SHARES = (0.0, 0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.5)
#: shares of the page's table
SHOWN = (0.01, 0.02, 0.05, 0.08, 0.1, 0.2)
CHOICES = {
    "centrality": "centrality",
    "confidence": "confidence, the least sure first",
    "worst": "the truly worst first, which are not known",
    "random": "random",
}
RANDOM_DRAWS = 5
METHOD = "graded"
NEIGHBOURS = 10


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, RESULTS / "re_embedding.json").parse_args()
    torch.set_num_threads(1)
    collection = cranfield()
    cells = [
        {"old": old, "new": new, "anchors": anchors, **measure(collection, old, new, anchors)}
        for old, new in PAIRS
        for anchors in ANCHORS
    ]
    tables = {"gains": _gains(cells), "predictions": _predictions(cells), "mixed": _mixed(cells)}
    show(Console(width=140), tables)
    write(arguments.json, tables, {"cells": cells})


def _gains(cells: Sequence[dict[str, Any]]) -> Table:
    """The mean gain in recall@10 of each choice of rows, by the share that is encoded again."""
    table = [["rows", *(f"{100 * share:g} %" for share in SHOWN)]]
    for choice, title in CHOICES.items():
        gains = (
            mean(cell["choices"][choice][place] - cell["choices"][choice][0] for cell in cells)
            for place, share in enumerate(SHARES)
            if share in SHOWN
        )
        table.append([title, *(f"{gain:.3f}" for gain in gains)])
    return table


def _mixed(cells: Sequence[dict[str, Any]]) -> Table:
    """What native rows change about the others."""
    columns = ["native rows among the results", "spread of native cosines", "of translated ones"]
    table = [["old -> new", "anchors", *columns]]
    for cell in cells:
        mixing = cell["mixing"]
        spreads = (f"{mixing[name]:.3f}" for name in ("spread_native", "spread_translated"))
        start = [f"{cell['old']} -> {cell['new']}", f"{cell['anchors']:,}"]
        table.append([*start, f"{mixing['native_share_of_results']:.2f}", *spreads])
    return table


def _predictions(cells: Sequence[dict[str, Any]]) -> Table:
    """Predicted less found recall at 5, 8, 10 and 20 %: the mean, and the largest magnitude."""
    table = [["rows", "predicted less found, mean", "largest"]]
    for name in cells[0]["predicted"]:
        errors = [
            cell["predicted"][name][place] - cell["choices"][name][place]
            for cell in cells
            for place, share in enumerate(SHARES)
            if 0.05 <= share <= 0.2
        ]
        table.append([name, f"{mean(errors):.3f}", f"{max(map(abs, errors)):.3f}"])
    return table


@dataclass(frozen=True, eq=False)
class Translated:
    """A collection whose documents were translated.

    queries, native, translated  unit vectors by the new encoder; anchors are native in both
    rest                         rows that are no anchors
    """

    queries: Tensor
    native: Tensor
    translated: Tensor
    rest: Tensor


def measure(collection: JudgedCollection, old: str, new: str, anchors: int) -> dict[str, Any]:
    """The means over draws of the anchors."""
    cells = [_draw(collection, old, new, anchors, seed) for seed in range(DRAWS)]
    return {
        "choices": {
            choice: [
                round(mean(cell["choices"][choice][place] for cell in cells), 4)
                for place in range(len(SHARES))
            ]
            for choice in CHOICES
        },
        "predicted": {
            name: [
                round(mean(cell["predicted"][name][place] for cell in cells), 4)
                for place in range(len(SHARES))
            ]
            for name in cells[0]["predicted"]
        },
        "mixing": {
            name: round(mean(cell["mixing"][name] for cell in cells), 4)
            for name in cells[0]["mixing"]
        },
    }


def _draw(
    collection: JudgedCollection, old: str, new: str, anchors: int, seed: int
) -> dict[str, Any]:
    source, target = (torch.as_tensor(collection.documents[name]) for name in (old, new))
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    rows, rest = order[:anchors], order[anchors:]
    x, y = source[rows], target[rows]
    options = methods.resolve(METHOD, {}, anchors=anchors)
    raw = apply(methods.fit(METHOD, fit_space(x), fit_space(y), options), source).vectors.double()
    confidence = fit_confidence(METHOD, x, y, options)
    assert confidence is not None
    curve = re_embedding_curve(METHOD, x, y, options, shares=SHARES)
    assert curve is not None
    translated = unit(raw)
    translated[rows] = unit(target[rows])
    queries, native = unit(torch.as_tensor(collection.queries[new])), unit(target)
    made = Translated(queries, native, translated, rest)
    middle = y.double().mean(dim=0)
    true = (unit(raw[rest] - middle) * unit(target[rest].double() - middle)).sum(dim=1)
    urgency = {
        "centrality": centrality(raw[rest], y),
        "confidence": -expected_cosines(confidence, source[rest]).cosine,
        "worst": -true,
    }
    orders = {
        name: [rest[each.argsort(descending=True, stable=True)]] for name, each in urgency.items()
    }
    generator = torch.Generator().manual_seed(seed)
    orders["random"] = [
        rest[torch.randperm(len(rest), generator=generator)] for _ in range(RANDOM_DRAWS)
    ]
    choices = {
        name: [_score(made, each, share) for share in SHARES] for name, each in orders.items()
    }
    found = choices["random"][0]
    predicted = at_size(curve, found, len(rest))
    return {
        "choices": choices,
        "predicted": {
            name: [each.recall[name].value for each in predicted.shares]
            for name in ("centrality", "confidence", "random")
        },
        "mixing": _mixing(made, orders["random"]),
    }


def _score(made: Translated, orders: Sequence[Tensor], share: float) -> float:
    """Recall@10 with a share of the rows of `rest` native, the first of each order."""
    wanted = (made.queries @ made.native[made.rest].T).topk(NEIGHBOURS, dim=1).indices
    recalls = []
    for order in orders:
        mixed = made.translated.clone()
        chosen = order[: round(share * len(order))]
        mixed[chosen] = made.native[chosen]
        found = (made.queries @ mixed[made.rest].T).topk(NEIGHBOURS, dim=1).indices
        recalls.append(float(shared_count(found, wanted).double().mean()) / NEIGHBOURS)
    return mean(recalls)


def _mixing(made: Translated, orders: Sequence[Tensor]) -> dict[str, float]:
    """What native rows change about the others, with 10 % of `rest` native."""
    plain = made.queries @ made.translated[made.rest].T
    native = made.queries @ made.native[made.rest].T
    shares = []
    for order in orders:
        chosen = order[: round(0.1 * len(order))]
        is_native = torch.isin(made.rest, chosen)
        top = torch.where(is_native, native, plain).topk(NEIGHBOURS, dim=1).indices
        shares.append(float(is_native[top].double().mean()))
    return {
        "native_share_of_results": mean(shares),
        "spread_native": float(native.std(dim=1).mean()),
        "spread_translated": float(plain.std(dim=1).mean()),
    }


if __name__ == "__main__":
    main()
