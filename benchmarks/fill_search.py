"""How good is a search while a migration embeds every row?

    python -m benchmarks.fill_search

nDCG@10 by the share of rows that a migration has filled, for three pairs of unrelated encoders:
Cranfield as people judged it, questions of Banking77 with the same intent, and those of TREC with
the same fine class (1,500 documents and 300 queries of each, drawn at random). The functions of the
service make the maps from 1,000 rows, as a migration does, and order the candidates of an exact
search: 100 by the old query and 100 by the translated one. Day one is before a migration: without
a map, 100 texts of each query are embedded. Weights are those of the
comparison on Cranfield; texts of the two others are too short for one.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console

from app.maths.geometry.space import draw_rows
from app.maths.relevance.fuse_weight import (
    default_weight,
    held_out_cosine,
    native_weight,
    trust_of,
)
from app.maths.relevance.native import blend
from app.maths.relevance.options import DEFAULT_CANDIDATES
from app.search.scoring import USUAL_NATIVE
from benchmarks.common import DATA, RESULTS, Missing, Table, parser, show, write
from benchmarks.cranfield import JudgedCollection, cranfield, exact, mean_ndcg
from benchmarks.judged import judgements_of, load
from benchmarks.migrate.vectors import embedded
from benchmarks.search.cells import fitted, unit_cosines
from benchmarks.search.sides import side

ENCODERS = ("use", "e5", "minilm")
PAIRS = (("use", "minilm"), ("e5", "minilm"), ("minilm", "e5"))
SHARES = (0, 10, 25, 50, 75, 90, 100)
DRAWN, ANCHORS = (1_500, 300), 1_000


def labelled(name: str, *parts: list[list[str]]) -> JudgedCollection:
    """Documents and queries of [text, label]; those with one label are relevant for each other."""
    drawn = []
    for items, count in zip(parts, DRAWN, strict=True):
        different = sorted({(" ".join(text.split()), label) for text, label in items})
        random.Random(0).shuffle(different)  # noqa: S311
        drawn.append(different[:count])
    relevance = [
        (row, place, 1)
        for row, (_, wanted) in enumerate(drawn[1])
        for place, (_, label) in enumerate(drawn[0])
        if label == wanted
    ]
    documents, queries = ([text for text, _ in items] for items in drawn)
    asked = {each: embedded("e5-query" if each == "e5" else each, queries) for each in ENCODERS}
    return JudgedCollection(
        name, asked, {each: embedded(each, documents) for each in ENCODERS}, relevance
    )


def collections() -> Iterator[JudgedCollection]:
    """Raises Missing."""
    yield cranfield()
    files = [(DATA / "banking77" / f"{part}.csv").open(newline="") for part in ("train", "test")]
    yield labelled("banking77", *(list(csv.reader(file))[1:] for file in files))
    names = [DATA / "trec" / f"{part}.label" for part in ("train_5500", "TREC_10")]
    lines = [name.read_text(encoding="latin-1").splitlines() for name in names]
    yield labelled("trec", *([line.split(" ", 1)[::-1] for line in part] for part in lines))


class Pair:
    """The scores of all documents by all queries of a collection, of one pair of encoders."""

    def __init__(self, data: JudgedCollection, old: str, new: str) -> None:
        stored, native = (torch.from_numpy(data.documents[each]) for each in (old, new))
        x, y = (each[draw_rows(data.size, ANCHORS, seed=1)] for each in (stored, native))
        forward, backward = fitted(x, y, "kernel"), fitted(y, x, "kernel")
        asked = torch.from_numpy(data.queries[new])
        found = None
        if data.name == "cranfield":
            texts = load(data.name)
            ranks = [side(texts, judgements_of(texts), each).ranks for each in (old, new)]
            found = float((ranks[1] - ranks[0]).mean())  # type: ignore[operator]
        self.weight = default_weight(held_out_cosine(x, y), found)
        self.beside_old = native_weight(found)
        self.old = unit_cosines(torch.from_numpy(data.queries[old]), stored)
        self.native = unit_cosines(asked, native)
        self.translated = unit_cosines(asked, forward(stored))
        self.bridged = unit_cosines(backward(asked), stored)
        self.order = draw_rows(data.size, seed=2)  # in which rows are filled

    def search(self, share: int, *, runs: bool) -> Iterator[list[int]]:
        """The first ten documents of each query; without a share, before the migration."""
        filled = torch.zeros(len(self.order), dtype=torch.bool)
        filled[self.order[: round(share / 100 * len(self.order))]] = True
        for query, old in enumerate(self.old):
            first = self.bridged[query].topk(DEFAULT_CANDIDATES).indices
            if runs:
                kept = old.topk(DEFAULT_CANDIDATES).indices
                first = torch.cat([kept, first[~torch.isin(first, kept)]]) if share else kept
            guess = self.translated[query, first] if share else old[first]
            known = filled[first]
            for more in (USUAL_NATIVE[0], 0):
                native = self.native[query, first].where(known, torch.nan)
                scores = blend(
                    native,
                    guess,
                    old[first] if runs else None,
                    weight=self.beside_old,
                    trust=trust_of(self.weight, self.beside_old) if share else 1.0,
                )
                unknown = scores.masked_fill(known, -torch.inf).topk(len(known)).indices
                known[unknown[: min(more, int((~known).sum()))]] = True
            yield first[scores.topk(10).indices].tolist()


def table_of(cells: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each collection and pair, and the means."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for each in cells:
        pair = f"{each['old']} -> {each['new']}"
        for key in ((each["way"], each["collection"], pair), (each["way"], "mean", "")):
            groups.setdefault(key, []).append(each)
    rows = []
    for (way, name, pair), group in sorted(
        groups.items(), key=lambda e: (e[0][0] != "runs", e[0][1] == "mean")
    ):
        means = [np.mean([e["ndcg"] for e in group if e["share"] == s] or np.nan) for s in SHARES]
        keep, anew = (np.mean([each[end] for each in group]) for end in ("keep", "re_embed"))
        values = ["" if np.isnan(each) else f"{each:.3f}" for each in (keep, *means, anew)]
        rows.append([name, pair, way, *values])
    shares = ["day one", *(f"{share} %" for share in SHARES[1:])]
    return [["collection", "old -> new", "old encoder", "keep", *shares, "re-embed"], *rows]


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, RESULTS / "fill_search.json").parse_args()
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = []
    try:
        for data in collections():
            for old, new in PAIRS:
                pair = Pair(data, old, new)
                known = {"collection": data.name, "old": old, "new": new}
                known |= {"keep": exact(data, old), "re_embed": exact(data, new)}  # type: ignore[dict-item]
                for share in SHARES:
                    for way in ("runs", "is gone")[: 1 if share == 0 else 2]:
                        ndcg = mean_ndcg(data, list(pair.search(share, runs=way == "runs")))
                        cells.append({**known, "share": share, "way": way, "ndcg": ndcg})
    except Missing as missing:
        sys.exit(str(missing))
    tables = {"shares": table_of(cells)}
    show(Console(width=140), tables)
    write(options.json, tables, {"cells": cells})


if __name__ == "__main__":
    main()
