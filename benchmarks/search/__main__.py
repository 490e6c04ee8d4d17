"""How good is the default search?

    python -m benchmarks.search [--draws 5] [--open]

Writes benchmarks/results/search.json. `python -m benchmarks.judged --help` says how to get the
collections.

nDCG@10 by human judgements of every ordered pair of four unrelated encoders (three on some
collections), with 0, 100, 300 and 1,000 anchors (documents drawn at random, at most 80 % of a
collection), by what is there: the old encoder, the texts. `default` is the search without a setting
once the encoders were compared on their texts, `first` before that; `best fixed` is the setting
that is best in the mean of its row, and `hindsight` takes the best setting of each cell. Cranfield,
MED, TIME, LISA, PubMedQA and XQuAD chose the defaults; NFCorpus and Tatoeba were opened once, at
the end (`--open`).

Peers translate in their own environments: `--export FOLDER` writes what benchmarks/search/peers.py
reads, and `--peers FOLDER` takes its answers into the table. EmbedFlow 0.8.0 orders the old index's
first 50 by the new encoder, which needs no package; rebasis 0.1.0 translates the query, and orders
100 candidates so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from app.maths.relevance.cloze import mean_interval
from app.maths.relevance.ranking_metrics import Judgements
from benchmarks.common import RESULTS, Missing, parser, show, write
from benchmarks.judged import judgements_of, load
from benchmarks.search import tables as report
from benchmarks.search.cells import (
    ANCHORS,
    Side,
    Tables,
    draws_of,
    first,
    measure_pair,
    ndcg,
    rank,
    unit_cosines,
)
from benchmarks.search.sides import CHOSE, ENCODERS, OPENED, WITHOUT_MPNET, side


def export(folder: Path, name: str, sides: Mapping[str, Side], draws: int) -> None:
    """Write the vectors of a collection, and the rows of each draw of anchors."""
    size = len(next(iter(sides.values())).documents)
    arrays = {
        f"rows.{anchors}.{draw}": rows.numpy()
        for anchors in ANCHORS[1:]
        for draw, rows in draws_of(size, anchors, draws)
    }
    for encoder, each in sides.items():
        arrays[f"{encoder}.documents"] = each.documents.numpy()
        arrays[f"{encoder}.queries"] = each.queries.numpy()
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]


@cache
def answers(path: Path) -> Mapping[str, Any]:
    """A peer's queries; empty if it did not answer."""
    return dict(np.load(path)) if path.exists() else {}


def peers_of(
    folder: Path | None, name: str, judged: Judgements, pair: tuple[str, str], old: Side, size: int
) -> Callable[[int, Tables], dict[str, float]]:
    """Return what measures the peers of a draw."""

    def measure(draw: int, tables: Tables) -> dict[str, float]:
        found: dict[str, float] = {}
        for peer in ("rebasis", "isotrieve") if folder is not None else ():
            assert folder is not None
            bridged = answers(folder / peer / f"{name}.npz").get(
                f"{'.'.join(pair)}.rows.{size}.{draw}"
            )
            if bridged is None:
                continue
            asked = torch.from_numpy(bridged)[judged.rows]
            cosines = unit_cosines(asked, old.documents)
            value = ndcg(first(cosines, 10), judged)
            found |= {f"{each}: {peer}": value for each in ("neither", "old")}
            if peer == "rebasis":
                only = Tables(tables.old, tables.native, cosines, cosines)
                ranked = rank(only, runs=False, texts=100, weight=1.0, trust=1.0)
                value = ndcg(ranked, judged)
                found |= {f"{each}: {peer}": value for each in ("texts", "old and texts")}
        return found

    return measure


def cells_of(name: str, group: str, draws: int, options: Any) -> list[dict[str, Any]]:
    """The cells of a collection. Raises Missing."""
    texts = load(name)
    encoders = ENCODERS[: -1 if name in WITHOUT_MPNET else None]
    judged = judgements_of(texts)
    sides = {each: side(texts, judged, each) for each in encoders}
    if options.export:
        export(options.export, name, sides, draws)
        return []
    own = {k: ndcg(first(v.cosines, 10), judged) for k, v in sides.items()}
    cells = []
    for pair in permutations(encoders, 2):
        old, new = (sides[each] for each in pair)
        found = None
        if old.ranks is not None and new.ranks is not None:
            found = mean_interval(new.ranks - old.ranks)
        for anchors in ANCHORS:
            more = peers_of(options.peers, name, judged, pair, old, anchors)
            values = measure_pair(old, new, judged, anchors, draws, found and found.value, more)
            cells.append(
                {
                    "collection": name,
                    "group": group,
                    "source": pair[0],
                    "target": pair[1],
                    "anchors": anchors,
                    "difference": found and found.value,
                    "interval": found and [found.low, found.high],
                    "keep": own[pair[0]],
                    "re-embed": own[pair[1]],
                    "values": values,
                }
            )
    return cells


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "search.json")
    command.add_argument("--draws", type=int, default=5, help="draws of anchors")
    command.add_argument("--open", action="store_true", help="measure the opened collections too")
    command.add_argument("--collections", help="only these")
    command.add_argument("--export", type=Path, help="write what peers need, and end")
    command.add_argument("--peers", type=Path, help="the folder with their answers")
    command.add_argument("--cells", type=Path, help="write and keep the cells of each collection")
    options = command.parse_args()
    torch.set_num_threads(1)
    names = options.collections.split(",") if options.collections else CHOSE
    names = (*names, *(OPENED if options.open else ()))
    cells: list[dict[str, Any]] = []
    try:
        for name in names:
            kept = options.cells and options.cells / f"{name}.json"
            if kept and kept.exists():
                cells += json.loads(kept.read_text())
                continue
            group = "opened" if name in OPENED else "chose"
            made = cells_of(name, group, options.draws, options)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(made))
            cells += made
    except Missing as error:
        sys.exit(str(error))
    if not cells:
        return
    tables = {
        "situations": report.situations(cells),
        "peers": report.peers(cells),
        "comparison": report.comparison(cells),
        "collections": report.collections(cells),
    }
    show(Console(width=200), tables)
    write(options.json, tables, {"cells": cells})


if __name__ == "__main__":
    main()
