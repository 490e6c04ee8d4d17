"""Does the inverse cloze test of POST /compare tell which encoder people would prefer?

    python -m benchmarks.cloze [--draws 5]

Writes benchmarks/results/cloze.json. `python -m benchmarks.judged --help` says how to get the
collections; the encoder mpnet is read from $ANCHORAGE_BENCHMARK_CACHE/models/all-mpnet-base-v2.

Every encoder and every ordered pair of encoders on each collection: nDCG@10 by judgements beside
the MRR of the cloze test, what fuse and native scores gain over keep by their default weights with
and without the comparison, and how much nDCG@10 the advice without judgements leaves on the table.
Cranfield, MED and TIME chose the weights and the expected gains; LISA, PubMedQA and XQuAD chose
nothing. The last table says what cascades by 100, 300 and 1,000 anchors gain over keep.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from statistics import mean

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.relevance.advice import IndexFacts, rank_options
from app.maths.relevance.cloze import USUAL_TEXTS, cut_windows, mean_interval, reciprocal_ranks
from app.maths.relevance.fuse_weight import default_weight, held_out_cosine, native_weight
from app.maths.relevance.native import blend
from app.maths.relevance.options import NATIVE_COUNT, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements, measure_ranking
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.judged import JudgedTexts, judgements_of, load
from benchmarks.migrate.vectors import embedded
from benchmarks.relevance.collection import CRANFIELD_ENCODERS, cranfield

CHOSEN_ON = ("cranfield", "med", "time")
COLLECTIONS = (*CHOSEN_ON, "lisa", "pubmedqa", "xquad")
ENCODERS = ("use", "static", "minilm", "mpnet", "e5")
ANCHORS = (100, 300, 1_000)
CANDIDATES = 100
#: most of a collection that becomes anchors
MAX_SHARE = 0.8
#: a judged difference that the test must see
CLEAR = 0.02
#: fuse and native scores must not be below keep by more
LOSS = 0.005


@dataclass(frozen=True, eq=False)
class Side:
    """An encoder on a collection: its vectors, its own ranking, and its cloze test."""

    documents: Tensor
    queries: Tensor
    cosines: Tensor
    ndcg: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class Cell:
    """One ordered pair on one collection, with so many anchors; gains in nDCG@10 over keep."""

    collection: str
    source: str
    target: str
    anchors: int
    difference: float
    interval: tuple[float, float]
    gains: Mapping[str, float]


def vectors(encoder: str, texts: Sequence[str], *, query: bool = False) -> Tensor:
    """Vectors of the texts, from the cache if it has them."""
    name = "e5-query" if encoder == "e5" and query else encoder
    return torch.from_numpy(embedded(name, texts))


def collection_vectors(texts: JudgedTexts, encoder: str) -> tuple[Tensor, Tensor]:
    """Documents and queries. Raises Missing."""
    if texts.name == "cranfield" and encoder in CRANFIELD_ENCODERS:
        known = cranfield()
        documents, queries = (part[encoder].copy() for part in (known.documents, known.queries))
        return torch.from_numpy(documents), torch.from_numpy(queries)
    return vectors(encoder, texts.documents), vectors(encoder, texts.queries, query=True)


def side(texts: JudgedTexts, judged: Judgements, encoder: str, count: int = USUAL_TEXTS) -> Side:
    """Raises Missing."""
    documents, queries = collection_vectors(texts, encoder)
    unit = torch.nn.functional.normalize
    cosines = unit(queries, dim=1)[judged.rows] @ unit(documents, dim=1).T
    windows, rests = zip(*cut_windows(texts.documents, count), strict=True)
    ranks = reciprocal_ranks(vectors(encoder, windows, query=True), vectors(encoder, rests))
    return Side(documents, queries, cosines, ndcg_of(cosines, judged), ranks)


def ndcg_of(scores: Tensor, judged: Judgements) -> Tensor:
    """NDCG@10 of each query by the scores of all documents."""
    first = scores.topk(min(CANDIDATES, judged.size), dim=1).indices
    return measure_ranking(first, judged, 0)[:, 0]


def native_gain(old: Side, new: Side, judged: Judgements, weight: float) -> float:
    """What native scores of the first candidates with the old ones gain over keep, no anchors."""
    top = old.cosines.topk(min(NATIVE_COUNT, judged.size), dim=1)
    rankings = []
    for ids, known, scores in zip(top.indices, top.values.double(), new.cosines, strict=True):
        fused = blend(scores[ids].double(), known, known, weight=weight)
        rankings.append(ids[fused.argsort(descending=True)])
    return float((measure_ranking(torch.stack(rankings), judged, 0)[:, 0] - old.ndcg).mean())


def translated(x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Rows by the map that searches take, from anchors x to y."""
    method = methods.usual_method(len(x))
    options = methods.resolve(method, {}, anchors=len(x))
    fitted = methods.fit(method, fit_space(x), fit_space(y), options)
    return apply(fitted, rows).vectors.float()


def cells_of(
    texts: JudgedTexts, judged: Judgements, sides: Mapping[str, Side], draws: int
) -> list[Cell]:
    """The cells of all ordered pairs, with means over draws of the anchors."""
    cells = []
    for source, target in permutations(sides, 2):
        old, new = sides[source], sides[target]
        found = mean_interval(new.ranks - old.ranks)
        by_native = {
            "native": native_gain(old, new, judged, native_weight(None)),
            "native, compared": native_gain(old, new, judged, native_weight(found.value)),
            "re-embed": float((new.ndcg - old.ndcg).mean()),
        }
        for anchors in ANCHORS:
            gains: dict[str, list[float]] = defaultdict(list)
            for draw in range(draws):
                generator = torch.Generator().manual_seed(100 + draw)
                count = min(anchors, int(MAX_SHARE * judged.size))
                rows = torch.randperm(judged.size, generator=generator)[:count]
                x, y = old.documents[rows], new.documents[rows]
                cosine = held_out_cosine(x, y)
                weights = default_weight(cosine), default_weight(cosine, found.value)
                measured = measure_options(
                    SearchVectors(
                        old.queries,
                        old.documents,
                        new.queries,
                        None,
                        translated(y, x, new.queries),
                        translated(x, y, old.documents),
                    ),
                    judged,
                    weights=weights,
                    default_weight=weights[0],
                )
                for name, values in (
                    ("fuse", measured.fused[0]),
                    ("fuse, compared", measured.fused[1]),
                    ("cascade", measured.options["cascade"]),
                    ("translate", measured.options["translate"]),
                ):
                    gains[name].append(float((values[:, 0] - old.ndcg).mean()))
            means = {name: mean(values) for name, values in gains.items()}
            interval = (found.low, found.high)
            whole = {**means, **by_native}
            cells.append(Cell(texts.name, source, target, anchors, found.value, interval, whole))
    return cells


def groups(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of the collections that chose the weights, and of those that did not."""
    made: dict[str, list[Cell]] = {"chose the weights": [], "chose nothing": []}
    for cell in cells:
        made["chose the weights" if cell.collection in CHOSEN_ON else "chose nothing"].append(cell)
    return {name: each for name, each in made.items() if each}


def anchor_table(cells: Sequence[Cell]) -> Table:
    """What cascades reach where the new encoder is clearly better, by the number of anchors."""
    table = [["collection", "pairs", "re-embed", *(f"cascade, {n:,}" for n in ANCHORS)]]
    for name in dict.fromkeys(cell.collection for cell in cells):
        better = [c for c in cells if c.collection == name and c.gains["re-embed"] >= CLEAR]
        if better:
            row = [name, f"{len(better) // len(ANCHORS)}"]
            row.append(f"{mean(c.gains['re-embed'] for c in better):+.3f}")
            for anchors in ANCHORS:
                worth = mean(c.gains["cascade"] for c in better if c.anchors == anchors)
                row.append(f"{worth:+.3f}")
            table.append(row)
    return table


def order_table(cells: Sequence[Cell]) -> Table:
    """Of pairs whose nDCG@10 clearly differs, how many the test orders as judgements do."""
    table = [["collections", "pairs", "ordered as judged", "decided, and right", "correlation"]]
    for name, group in groups(cells).items():
        pairs = {(c.collection, c.source, c.target): c for c in group if c.source < c.target}
        clear = [c for c in pairs.values() if abs(c.gains["re-embed"]) > CLEAR]
        right = [c for c in clear if c.difference * c.gains["re-embed"] > 0]
        decided = [c for c in clear if c.interval[0] > 0 or c.interval[1] < 0]
        agreed = [c for c in decided if c in right]
        every = [(c.difference, c.gains["re-embed"]) for c in group]
        correlation = float(np.corrcoef(np.array(every).T)[0, 1])
        table.append(
            [
                name,
                f"{len(clear)} of {len(pairs)}",
                f"{len(right)} of {len(clear)}",
                f"{len(agreed)} of {len(decided)}",
                f"{correlation:.2f}",
            ]
        )
    return table


def weight_table(cells: Sequence[Cell]) -> Table:
    """What the default weights gain over keep, with the comparison and without."""
    table = [["option", "collections", "mean", "worst cell", f"below -{LOSS:g}"]]
    for option in ("fuse", "native"):
        for name, group in groups(cells).items():
            for label in (option, f"{option}, compared"):
                gains = [c.gains[label] for c in group]
                table.append(
                    [
                        label,
                        name,
                        f"{mean(gains):+.3f}",
                        f"{min(gains):+.3f}",
                        f"{sum(g < -LOSS for g in gains)} of {len(gains)}",
                    ]
                )
    return table


def regret_table(cells: Sequence[Cell]) -> Table:
    """NDCG@10 of the best option less that of the advised one, without judgements."""
    table = [["texts", "advice", "collections", "mean", "worst", "within .01"]]
    for text_exists in (True, False):
        for name, group in groups(cells).items():
            for label in ("without comparison", "with comparison"):
                lost = [regret(cell, text_exists, label == "with comparison") for cell in group]
                table.append(
                    [
                        "yes" if text_exists else "no",
                        label,
                        name,
                        f"{mean(lost):.3f}",
                        f"{max(lost):.3f}",
                        f"{sum(each <= 0.01 for each in lost) / len(lost):.0%}",
                    ]
                )
    return table


def regret(cell: Cell, text_exists: bool, compared: bool) -> float:
    """How much the first option is worse than the best possible one."""
    facts = IndexFacts(
        cell.anchors,
        old_encoder_runs=True,
        text_exists=text_exists,
        new_encoder_runs=text_exists,
        difference=cell.difference if compared else None,
    )
    worth = {"keep": 0.0, **{name: cell.gains[name] for name in ("cascade", "translate")}}
    for name in ("fuse", "native", "re-embed"):
        label = f"{name}, compared" if compared and name != "re-embed" else name
        if text_exists or name == "fuse":
            worth[name] = cell.gains[label]
    advised = rank_options(facts, {}, 0)[0].name
    return max(worth.values()) - worth[advised]


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "cloze.json")
    command.add_argument("--draws", type=int, default=5, help="draws of anchors")
    command.add_argument("--encoders", default=",".join(ENCODERS))
    command.add_argument("--collections", default=",".join(COLLECTIONS))
    options = command.parse_args()
    console = Console(width=max(160, Console().width))
    encoders = options.encoders.split(",")
    cells: list[Cell] = []
    try:
        for name in options.collections.split(","):
            texts = load(name)
            judged = judgements_of(texts)
            sides = {each: side(texts, judged, each) for each in encoders}
            cells += cells_of(texts, judged, sides, options.draws)
            console.print(f"{name} is measured")
    except Missing as error:
        sys.exit(str(error))
    tables = {
        "order": order_table(cells),
        "weights": weight_table(cells),
        "regret": regret_table(cells),
        "anchors": anchor_table(cells),
    }
    show(console, tables)
    write(options.json, tables, {"cells": [asdict(cell) for cell in cells]})


if __name__ == "__main__":
    main()
