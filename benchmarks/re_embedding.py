"""Which rows of a translated store should be encoded again, and does mixing both kinds harm?

    python -m benchmarks.re_embedding

Cranfield's documents are translated from an old to a new encoder by 300 or 1,000 anchors, whose
own rows get native vectors. Then a share of the other rows gets native vectors too: those that are
most central, those whose translation is least sure, those that are translated worst (which nobody
knows), or random ones. Compared are

- recall@10: of the results of the new encoder's own vectors, in an index of the rows that are no
  anchors
- nDCG@10 of people's judgements, in the whole collection
- the recall that a plan predicts from held-out anchors

The same recall is measured on sentences of bank customers, by which no choice was made: all pairs
of the three encoders of the demo, 300 anchors, and 300 other sentences as queries.

Mixing: the share of native rows among the results when 10 % of the rows, drawn at random, are
native, and both measures when the cosines of translations are stretched to the mean and spread of
native ones. Writes benchmarks/results/re_embedding.json. Data: ANCHORAGE_DATA/cranfield.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from app.demo.pack import load_pack
from app.maths.geometry.space import fit_space
from app.maths.quality.confidence import expected_cosines, fit_confidence
from app.maths.quality.metrics import shared_count, unit
from app.maths.relevance.re_embedding import at_size, centrality, re_embedding_curve
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import RESULTS, parser, write
from benchmarks.relevance.collection import JudgedCollection, cranfield

PAIRS = (("use", "minilm"), ("use", "e5"), ("e5", "minilm"))
ANCHORS, DRAWS = (300, 1000), 3
SHARES = (0.0, 0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.5)
CHOICES = ("centrality", "confidence", "worst", "random")
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
    for measure_name in ("recall_10", "ndcg_10"):
        table = Table(title=f"{measure_name} by share of native rows, mean of {DRAWS} draws")
        for column in ("old -> new", "anchors", "choice", *(f"{share:.0%}" for share in SHARES)):
            table.add_column(column)
        for cell in cells:
            for choice in CHOICES:
                values = (f"{each[measure_name]:.3f}" for each in cell["choices"][choice])
                name = f"{cell['old']} -> {cell['new']}"
                table.add_row(name, str(cell["anchors"]), choice, *values)
        Console(width=140).print(table)
    gains = {
        choice: {
            f"{share:g}": round(mean(_gain(cell, choice, place) for cell in cells), 4)
            for place, share in enumerate(SHARES)
        }
        for choice in CHOICES
    }
    for choice, gain in gains.items():
        Console().print(f"mean gain in recall@10, {choice}: {gain}")
    for cell in cells:
        Console().print(cell["old"], cell["new"], cell["anchors"], cell["mixing"])
    sentences = [_sentences(old, new) for old, new in permutations(sorted(load_pack().vectors), 2)]
    for each in sentences:
        Console(width=140).print(each)
    report = {
        "method": METHOD,
        "draws": DRAWS,
        "shares": SHARES,
        "gains": gains,
        "ndcg_gains": {
            choice: {
                f"{share:g}": round(
                    mean(_gain(cell, choice, place, "ndcg_10") for cell in cells), 4
                )
                for place, share in enumerate(SHARES)
            }
            for choice in CHOICES
        },
        "prediction_errors": _prediction_errors(cells),
        "cells": cells,
        "sentences": sentences,
    }
    write(arguments.json, report)


def _prediction_errors(cells: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Predicted less found recall at 5, 8, 10 and 20 %: the mean, and the largest magnitude."""
    errors = {
        name: [
            cell["predicted"][name][place] - cell["choices"][name][place]["recall_10"]
            for cell in cells
            for place, share in enumerate(SHARES)
            if 0.05 <= share <= 0.2
        ]
        for name in cells[0]["predicted"]
    }
    return {
        name: {"mean": round(mean(each), 4), "largest": round(max(map(abs, each)), 4)}
        for name, each in errors.items()
    }


def _gain(cell: dict[str, Any], choice: str, place: int, measure: str = "recall_10") -> float:
    values = cell["choices"][choice]
    return float(values[place][measure] - values[0][measure])


def _sentences(old: str, new: str) -> dict[str, Any]:
    """Gains in recall@10 on the demo's sentences, where 300 of them are queries."""
    vectors = load_pack().vectors
    source, target = vectors[old], vectors[new]
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    rows, asked, rest = order[:300], order[300:600], order[600:]
    x, y = source[rows], target[rows]
    options = methods.resolve(METHOD, {}, anchors=300)
    translator = methods.fit(METHOD, fit_space(x), fit_space(y), options)
    raw = apply(translator, source[rest]).vectors.double()
    confidence = fit_confidence(METHOD, x, y, options)
    assert confidence is not None
    queries, native = unit(target[asked]), unit(target[rest])
    wanted = (queries @ native.T).topk(NEIGHBOURS, dim=1).indices

    def recall(chosen: Tensor) -> float:
        mixed = unit(raw)
        mixed[chosen] = native[chosen]
        found = (queries @ mixed.T).topk(NEIGHBOURS, dim=1).indices
        return float(shared_count(found, wanted).double().mean()) / NEIGHBOURS

    urgency = {
        "centrality": centrality(raw, y),
        "confidence": -expected_cosines(confidence, source[rest]).cosine,
    }
    orders = {name: [each.argsort(descending=True)] for name, each in urgency.items()}
    generator = torch.Generator().manual_seed(0)
    orders["random"] = [torch.randperm(len(rest), generator=generator) for _ in range(RANDOM_DRAWS)]
    before = recall(torch.zeros(0, dtype=torch.int64))
    return {
        "old": old,
        "new": new,
        "before": round(before, 4),
        "gains": {
            name: {
                f"{share:g}": round(
                    mean(recall(each[: round(share * len(rest))]) for each in choices) - before, 4
                )
                for share in (0.05, 0.1, 0.2)
            }
            for name, choices in orders.items()
        },
    }


@dataclass(frozen=True, eq=False)
class Translated:
    """A collection whose documents were translated.

    queries, native, translated  unit vectors by the new encoder; anchors are native in both
    rest                         rows that are no anchors
    """

    collection: JudgedCollection
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
                {
                    "share": share,
                    **{
                        name: round(mean(cell["choices"][choice][place][name] for cell in cells), 4)
                        for name in ("recall_10", "ndcg_10")
                    },
                }
                for place, share in enumerate(SHARES)
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
    made = Translated(collection, queries, native, translated, rest)
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
    found = choices["random"][0]["recall_10"]
    predicted = at_size(curve, found, len(rest))
    return {
        "choices": choices,
        "predicted": {
            name: [each.recall[name].value for each in predicted.shares]
            for name in ("centrality", "confidence", "random")
        },
        "mixing": _mixing(made, orders["random"]),
    }


def _score(made: Translated, orders: Sequence[Tensor], share: float) -> dict[str, float]:
    """Recall and nDCG with a share of the rows of `rest` native, the first of each order."""
    results = []
    for order in orders:
        mixed = made.translated.clone()
        chosen = order[: round(share * len(order))]
        mixed[chosen] = made.native[chosen]
        results.append(_measures(made, made.queries @ mixed.T))
    return {name: mean(each[name] for each in results) for name in results[0]}


def _measures(made: Translated, scores: Tensor) -> dict[str, float]:
    wanted = (made.queries @ made.native[made.rest].T).topk(NEIGHBOURS, dim=1).indices
    found = scores[:, made.rest].topk(NEIGHBOURS, dim=1).indices
    return {
        "recall_10": float(shared_count(found, wanted).double().mean()) / NEIGHBOURS,
        "ndcg_10": _ndcg(made.collection, scores),
    }


def _ndcg(collection: JudgedCollection, scores: Tensor) -> float:
    grades = torch.zeros(scores.shape, dtype=torch.float64)
    for query, document, grade in collection.relevance:
        grades[query, document] = max(float(grade), 0.0)
    judged = torch.tensor(collection.judged)
    discounts = 1.0 / torch.arange(2, NEIGHBOURS + 2).double().log2()
    top = scores[judged].topk(NEIGHBOURS, dim=1).indices
    gained = grades[judged].gather(1, top) @ discounts
    ideal = grades[judged].topk(NEIGHBOURS, dim=1).values @ discounts
    return float((gained / ideal).mean())


def _mixing(made: Translated, orders: Sequence[Tensor]) -> dict[str, float]:
    """What native rows change about the others, with 10 % of `rest` native."""
    plain = made.queries @ made.translated[made.rest].T
    native = made.queries @ made.native[made.rest].T
    shares, raw, stretched = [], [], []
    for order in orders:
        chosen = order[: round(0.1 * len(order))]
        mixed = made.translated.clone()
        mixed[chosen] = made.native[chosen]
        scores = made.queries @ mixed.T
        is_native = torch.isin(made.rest, chosen)
        top = scores[:, made.rest].topk(NEIGHBOURS, dim=1).indices
        shares.append(float(is_native[top].double().mean()))
        raw.append(_measures(made, scores))
        others = made.rest[~is_native]
        centre, wide = plain.mean(dim=1, keepdim=True), plain.std(dim=1, keepdim=True)
        scores[:, others] = (scores[:, others] - centre) / wide * native.std(
            dim=1, keepdim=True
        ) + native.mean(dim=1, keepdim=True)
        stretched.append(_measures(made, scores))
    return {
        "native_share_of_results": mean(shares),
        "mean_native": float(native.mean()),
        "mean_translated": float(plain.mean()),
        "spread_native": float(native.std(dim=1).mean()),
        "spread_translated": float(plain.std(dim=1).mean()),
        **{f"{name}_raw": mean(each[name] for each in raw) for name in raw[0]},
        **{f"{name}_stretched": mean(each[name] for each in stretched) for name in raw[0]},
    }


if __name__ == "__main__":
    main()
