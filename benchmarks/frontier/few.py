"""What are unpaired vectors worth beside a few anchors?

    python -m benchmarks.frontier.few                     # everything
    python -m benchmarks.frontier.few --only cranfield    # one section; the other stays
    python -m benchmarks.frontier.few --resume            # keep the cells that are measured already

Writes benchmarks/results/few.json.

Translators by 15 to 300 anchors and unpaired vectors of both encoders (`align_by_anchors`), beside
those of the anchors alone (graded, its defaults) and of 1,000 anchors. The encoders are unrelated.
`sentences`: 2,000 held-out short sentences, of which no method sees any; the unpaired vectors of
both sides are of different sentences. `cranfield`: nDCG@10 by human judgements of new queries and
translated documents, anchors are documents. Its unpaired vectors are `own`: one half of the other
documents by the old encoder, the other half by the new one; or sentences of other corpora.
Recall@10 and MRR are of items that are no anchors. Data: benchmarks/frontier/texts.py,
benchmarks/reindex/vectors.py and benchmarks/relevance/collection.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from app.maths.alignment.anchored import (
    AnchoredSettings,
    KnownAndUnpaired,
    align_by_anchors,
    fit_alone,
    fit_with_unpaired,
)
from app.maths.quality.metrics import item_metrics
from app.maths.relevance.options import SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import collect
from app.maths.translators.translator import Translator, apply
from benchmarks.common import RESULTS, machine, parser, read, rounded, write
from benchmarks.frontier.texts import parts
from benchmarks.reindex.vectors import embedded
from benchmarks.relevance.collection import JudgedCollection, cranfield

PAIRS = (("use", "minilm"), ("use", "e5"), ("e5", "minilm"))
ANCHORS, GOAL = (15, 30, 100, 300), 1_000
#: Sentences from which anchors are drawn.
ANCHOR_TEXTS = 2_000
NONE, OWN, FEW, MANY = "0", "own", "2,000", "20,000"
COUNTS = {FEW: 2_000, MANY: 20_000}
#: Draws of anchors. The judged columns repeat the alignment for every fold.
DRAWS = {NONE: 3, OWN: 1, FEW: 1, MANY: 1}
JUDGED = (OWN, FEW)
MEMORY = 256 * 2**20

Measured = dict[str, Any]


@dataclass(frozen=True)
class FewCell:
    """One number of anchors of one pair of encoders, with some unpaired vectors."""

    source: str
    target: str
    anchors: int
    unpaired: str

    @property
    def name(self) -> str:
        """The key in the report."""
        return f"{self.source} -> {self.target}, {self.anchors} anchors, {self.unpaired} unpaired"


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    command = parser(__doc__, RESULTS / "few.json")
    command.add_argument("--only", choices=list(SECTIONS), help="measure one section")
    command.add_argument("--pair", help="only one pair of encoders, as `use-minilm`")
    command.add_argument("--resume", action="store_true", help="keep what is measured already")
    options = command.parse_args()
    console = Console(width=max(140, Console().width))
    for name in [options.only] if options.only else SECTIONS:
        kept = read(options.json).get(name, {}).get("cells", {}) if options.resume else {}
        for cell in cells(SECTIONS[name].columns):
            if cell.name in kept or options.pair not in (None, f"{cell.source}-{cell.target}"):
                continue
            kept[cell.name] = SECTIONS[name].measure(cell)
            console.print(cell.name, kept[cell.name])
            section = {**SECTIONS[name].facts(), "cells": rounded(kept, 4)}
            about = (__doc__ or "").split("\n\n")[3].replace("\n", " ")
            write(
                options.json,
                {"about": about, "machine": machine(), **_other(options.json, name), name: section},
            )
        show(console, name, kept)


def _other(path: Path, name: str) -> dict[str, Any]:
    """The report's other sections."""
    return {key: value for key, value in read(path).items() if key in SECTIONS and key != name}


def cells(columns: tuple[str, ...]) -> Iterator[FewCell]:
    """All cells of a section, pair by pair."""
    for source, target in PAIRS:
        for unpaired in columns:
            for anchors in (*ANCHORS, GOAL) if unpaired == NONE else ANCHORS:
                yield FewCell(source, target, anchors, unpaired)


# Sentences


@lru_cache(maxsize=1)
def sentence_vectors(source: str, target: str) -> tuple[KnownAndUnpaired, Tensor, Tensor]:
    """All anchors and unpaired vectors of a pair, and both vectors of the held-out sentences.

    The side that e5 embeds takes its sentences from `left`, of which e5 has vectors.
    """
    texts, many = parts(), COUNTS[MANY]
    left, right = texts.left[ANCHOR_TEXTS : ANCHOR_TEXTS + many], texts.right[:many]
    of_x, of_y = (right, left) if target == "e5" else (left, right)
    known = texts.left[:ANCHOR_TEXTS]

    def vectors(encoder: str, some: list[str]) -> Tensor:
        return torch.from_numpy(embedded(encoder, some))

    given = KnownAndUnpaired(
        vectors(source, known), vectors(target, known), vectors(source, of_x), vectors(target, of_y)
    )
    return given, vectors(source, texts.held_out), vectors(target, texts.held_out)


def measure_sentences(cell: FewCell) -> Measured:
    """Recall@10 and MRR of the held-out sentences."""
    given, x, y = sentence_vectors(cell.source, cell.target)
    count = COUNTS.get(cell.unpaired, 0)

    def one(draw: int) -> Measured:
        rows = _order(ANCHOR_TEXTS, draw)[: cell.anchors]
        some = given.with_anchors(rows)
        some = KnownAndUnpaired(some.known_x, some.known_y, given.x[:count], given.y[:count])
        translator, facts = fitted(some, cell.unpaired)
        return {**facts, **_metrics(translator, x, y)}

    return _averaged(one, DRAWS[cell.unpaired])


# Cranfield


@lru_cache(maxsize=1)
def collection() -> JudgedCollection:
    """Cranfield, loaded once."""
    return cranfield()


def measure_cranfield(cell: FewCell) -> Measured:
    """nDCG@10 of new queries and translated documents, and recall@10 and MRR of other documents."""
    data = collection()
    x, y = (torch.from_numpy(data.documents[name]) for name in (cell.source, cell.target))

    def one(draw: int) -> Measured:
        order = _order(data.size, draw)
        rows, others = order[: cell.anchors], order[cell.anchors :]
        of_x, of_y = _unpaired(cell, x, y, others)
        translator, facts = fitted(KnownAndUnpaired(x[rows], y[rows], of_x, of_y), cell.unpaired)
        found = SearchVectors(
            new_queries=torch.from_numpy(data.queries[cell.target]),
            translated_documents=apply(translator, x).vectors,
        )
        return {
            **facts,
            **_metrics(translator, x[others], y[others]),
            "ndcg_10": _ndcg(found, "translate"),
        }

    return _averaged(one, DRAWS[cell.unpaired])


def _unpaired(cell: FewCell, x: Tensor, y: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Unpaired vectors of both encoders: of documents that are no anchors, or of sentences."""
    if cell.unpaired == OWN:
        return x[others[::2]], y[others[1::2]]
    given, _, _ = sentence_vectors(cell.source, cell.target)
    count = COUNTS.get(cell.unpaired, 0)
    return given.x[:count], given.y[:count]


def references() -> Measured:
    """NDCG@10 of the old index and of re-embedding, by encoder."""
    data = collection()
    return {
        "ndcg_10": {
            name: _ndcg(
                SearchVectors(
                    new_queries=torch.from_numpy(data.queries[name]),
                    new_documents=torch.from_numpy(data.documents[name]),
                ),
                "re-embed",
            )
            for name in data.documents
        }
    }


def _ndcg(vectors: SearchVectors, option: Any) -> float:
    data = collection()
    queries, documents, grades = np.array(data.relevance).T
    judged = collect(
        torch.from_numpy(queries),
        torch.from_numpy(documents),
        torch.from_numpy(grades).double(),
        size=data.size,
    )
    found = measure_options(vectors, judged, weights=())
    return float(found.options[option].ndcg.mean())


# Both


def fitted(given: KnownAndUnpaired, unpaired: str) -> tuple[Translator, Measured]:
    """The translator with the unpaired vectors, and what the held-out anchors say of it."""
    if unpaired == NONE:
        return fit_alone(given), {}
    began, facts = time.process_time(), {}
    translator = fit_with_unpaired(given, AnchoredSettings())
    facts["seconds"] = time.process_time() - began
    if unpaired in JUDGED:
        verdict = align_by_anchors(given, AnchoredSettings())
        facts |= {
            "taken": float(verdict.aligned),
            "held_out": verdict.recall,
            "held_out_alone": verdict.recall_alone,
        }
    return translator, facts


def _order(count: int, draw: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(draw))


def _metrics(translator: Translator, x: Tensor, y: Tensor) -> Measured:
    centre = y.mean(dim=0)
    items = item_metrics(apply(translator, x).vectors - centre, y - centre)
    return {"recall": float(items.recall.mean()), "mrr": float(items.reciprocal_rank.mean())}


def _averaged(one: Callable[[int], Measured], draws: int) -> Measured:
    measured = [one(draw) for draw in range(draws)]
    return {"draws": draws, **{key: mean(each[key] for each in measured) for key in measured[0]}}


@dataclass(frozen=True)
class FewSection:
    """columns  the unpaired vectors, and how a cell is measured; facts of the whole section"""

    columns: tuple[str, ...]
    measure: Callable[[FewCell], Measured]
    facts: Callable[[], Measured]


SECTIONS = {
    "sentences": FewSection((NONE, FEW, MANY), measure_sentences, dict),
    "cranfield": FewSection((NONE, OWN, MANY), measure_cranfield, references),
}


def show(console: Console, name: str, found: Mapping[str, Measured]) -> None:
    """One line for each pair and number of anchors."""
    columns = SECTIONS[name].columns
    table = Table("pair, anchors", *columns, title=name)
    for source, target in PAIRS:
        for anchors in (*ANCHORS, GOAL):
            row = [found.get(FewCell(source, target, anchors, each).name) for each in columns]
            shown = [
                "-" if each is None else " / ".join(f"{each[m]:.3f}" for m in MEASURES if m in each)
                for each in row
            ]
            table.add_row(f"{source} -> {target}, {anchors}", *shown)
    console.print(table)


MEASURES = ("ndcg_10", "recall", "mrr")


if __name__ == "__main__":
    main()
