"""What are unpaired vectors worth beside a few anchors?

    python -m benchmarks.frontier.few
    python -m benchmarks.frontier.few --pair use-minilm

Writes benchmarks/results/few.json.

Translators by 15 to 300 anchors and unpaired vectors of both encoders (`align_by_anchors`), beside
those of the anchors alone (graded, its defaults) and of 1,000 anchors. The encoders are unrelated.
Recall@10 and MRR are of 2,000 held-out short sentences, of which no method sees any; the unpaired
vectors of both sides are of different sentences. Data: benchmarks/frontier/texts.py and
benchmarks/migrate/vectors.py.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import mean

import torch
from rich.console import Console
from torch import Tensor

from app.maths.bootstrap.anchored import (
    KnownAndUnpaired,
    fit_alone,
    fit_with_unpaired,
)
from app.maths.translators.translator import apply
from benchmarks.common import RESULTS, Table, parser, show, write
from benchmarks.frontier.texts import parts
from benchmarks.migrate.vectors import embedded
from research.definitions import measures

PAIRS = (("use", "minilm"), ("use", "e5"), ("e5", "minilm"))
ANCHORS, GOAL = (15, 30, 100, 300), 1_000
#: sentences from which anchors are drawn
ANCHOR_TEXTS = 2_000
#: unpaired vectors of a side, and the draws of anchors that are measured with them
UNPAIRED = {0: 3, 2_000: 1, 20_000: 1}


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    command = parser(__doc__, RESULTS / "few.json")
    command.add_argument("--pair", help="only one pair of encoders, as `use-minilm`")
    options = command.parse_args()
    console = Console(width=max(140, Console().width))
    found: dict[str, list[float]] = {}
    rows = []
    for source, target in PAIRS:
        if options.pair not in (None, f"{source}-{target}"):
            continue
        for anchors in (*ANCHORS, GOAL):
            row = [f"{source} -> {target}", f"{anchors:,}"]
            for unpaired in UNPAIRED:
                if unpaired and anchors == GOAL:
                    row.append("")
                    continue
                numbers = measure(source, target, anchors, unpaired)
                found[f"{source} -> {target}, {anchors}, {unpaired}"] = numbers
                row.append(" / ".join(f"{number:.3f}" for number in numbers))
            rows.append(row)
            console.print(*row)
    columns = ["encoders", "anchors", "none", "2,000 a side", "20,000 a side"]
    tables: dict[str, Table] = {"sentences": [columns, *rows]}
    show(console, tables)
    write(options.json, tables, {"cells": found})


@lru_cache(maxsize=1)
def sentence_vectors(source: str, target: str) -> tuple[KnownAndUnpaired, Tensor, Tensor]:
    """All anchors and unpaired vectors of a pair, and both vectors of the held-out sentences.

    The side that e5 embeds takes its sentences from `left`, of which e5 has vectors.
    """
    texts, many = parts(), max(UNPAIRED)
    left, right = texts.left[ANCHOR_TEXTS : ANCHOR_TEXTS + many], texts.right[:many]
    of_x, of_y = (right, left) if target == "e5" else (left, right)
    known = texts.left[:ANCHOR_TEXTS]

    def vectors(encoder: str, some: list[str]) -> Tensor:
        return torch.from_numpy(embedded(encoder, some))

    given = KnownAndUnpaired(
        vectors(source, known), vectors(target, known), vectors(source, of_x), vectors(target, of_y)
    )
    return given, vectors(source, texts.held_out), vectors(target, texts.held_out)


def measure(source: str, target: str, anchors: int, unpaired: int) -> list[float]:
    """Recall@10 and MRR of the held-out sentences, means over draws of anchors."""
    given, x, y = sentence_vectors(source, target)
    centre = y.mean(dim=0)
    recalls, ranks = [], []
    for draw in range(UNPAIRED[unpaired]):
        order = torch.randperm(ANCHOR_TEXTS, generator=torch.Generator().manual_seed(draw))
        some = given.with_anchors(order[:anchors])
        some = KnownAndUnpaired(some.known_x, some.known_y, given.x[:unpaired], given.y[:unpaired])
        translator = fit_with_unpaired(some) if unpaired else fit_alone(some)
        found = measures(apply(translator, x).vectors - centre, y - centre)
        recalls.append(float(found["recall"].mean()))
        ranks.append(float(found["mrr"].mean()))
    return [mean(recalls), mean(ranks)]


if __name__ == "__main__":
    main()
