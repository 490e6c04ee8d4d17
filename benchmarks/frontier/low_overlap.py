"""What does self-learning find in pools that have 30 % of their items in common?

    python -m benchmarks.frontier.low_overlap           # everything
    python -m benchmarks.frontier.low_overlap --resume  # keep the cells that are measured already

Writes benchmarks/results/low_overlap.json.

The setting of VecLink (2605.31100): 15 right seeds, and 30 % of each pool's items are in the other.
Its SciFact is not at hand; sentences of customers in 77 intents (Banking77), images, abstracts
(Cranfield) and short sentences stand in, by related and by unrelated encoders. `scored` is the
share of right pairs among the half that has the highest CSLS by maps of pairs without them, and
`decoys` the share that orphans at this score suggest: a cut by score that was tried and is not
served. Data: benchmarks/quality/data.py, and as benchmarks/frontier/few.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap import estimate, self_learning
from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.attempts import SelfLearningSettings
from app.maths.bootstrap.estimate import CONFIRMATIONS, draw_half
from app.maths.bootstrap.neighbours import (
    graded_map,
    hubness_offsets,
    learn_and_match,
    no_beat,
    partner_pairs,
)
from app.maths.bootstrap.pools import fit_pools
from benchmarks.bootstrap.counts import believed
from benchmarks.bootstrap.draws import CASES, Case, draw
from benchmarks.common import RESULTS, machine, parser, read, rounded, write
from benchmarks.frontier.texts import parts
from benchmarks.reindex.vectors import embedded
from benchmarks.relevance.collection import cranfield

COMMON, SEEDS, DRAWS = 0.3, 15, 3
#: Items of both pools together; each pool has half of them and shares COMMON of its own.
ITEMS = 1_500
MEMORY = 256 * 2**20

#: number of the draw -> vectors of the same items by two encoders
Both = Callable[[int], tuple[Tensor, Tensor]]


def quality_case(name: str) -> Both:
    """A case of benchmarks/bootstrap."""

    def load(number: int) -> tuple[Tensor, Tensor]:
        case = CASES[name]
        drawn = draw(Case(case.name, case.task, case.source, case.target, 2 * ITEMS), number)
        return drawn.x, drawn.y[drawn.partner]

    return load


def judged_documents(source: str, target: str) -> Both:
    """Cranfield's abstracts."""

    def load(number: int) -> tuple[Tensor, Tensor]:
        documents = cranfield().documents
        order = _order(len(documents[source]), number)
        x, y = (torch.from_numpy(documents[name])[order] for name in (source, target))
        return x, y

    return load


def sentences(source: str, target: str) -> Both:
    """Short sentences of corpora."""

    def load(number: int) -> tuple[Tensor, Tensor]:
        texts = parts().left[:4_000]
        order = _order(len(texts), number)[: 2 * ITEMS]
        x, y = (torch.from_numpy(embedded(name, texts))[order] for name in (source, target))
        return x, y

    return load


POOLS: dict[str, Both] = {
    **{
        name: quality_case(name)
        for name in (
            "Banking77, MiniLM -> static",
            "Banking77, minilm3 -> static",
            "CIFAR-10, V1 .75 -> .25",
        )
    },
    "Cranfield, e5 -> minilm": judged_documents("e5", "minilm"),
    "sentences, use -> minilm": sentences("use", "minilm"),
}


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    command = parser(__doc__, RESULTS / "low_overlap.json")
    command.add_argument("--resume", action="store_true", help="keep what is measured already")
    options = command.parse_args()
    kept = read(options.json).get("cells", {}) if options.resume else {}
    console = Console(width=max(140, Console().width))
    for number in range(DRAWS):
        for name, load in POOLS.items():
            if str(number) in kept.get(name, {}):
                continue
            measured = measure(load, number)
            kept.setdefault(name, {})[str(number)] = measured
            console.print(name, number, measured)
            about = (__doc__ or "").split("\n\n")[3].replace("\n", " ")
            write(options.json, {"about": about, "machine": machine(), "cells": rounded(kept, 4)})
    show(console, kept)


def measure(load: Both, number: int) -> dict[str, Any]:
    """One run."""
    both_x, both_y = load(number)
    size = min(ITEMS, int(len(both_x) / (2 - COMMON)))
    kept = int(COMMON * size)
    # The first `kept` items are in both pools; the target's others follow the source's.
    order = _order(size, number + 100)
    y = torch.cat([both_y[:kept], both_y[size : 2 * size - kept]])[order]
    partner = torch.full((size,), -1)
    partner[:kept] = order.argsort()[:kept]
    seeds = [(row, int(partner[row])) for row in range(SEEDS)]
    pools, began = fit_pools(both_x[:size], y), time.process_time()
    found = self_learning.learn(pools, seeds, SelfLearningSettings(seed=number))
    seconds = time.process_time() - began
    pairs = found.pairs[~torch.isin(found.pairs[:, 0], torch.arange(SEEDS))]
    right = partner[pairs[:, 0]] == pairs[:, 1]
    estimate = found.estimate
    measured = {
        "items": size,
        "pairs": len(pairs),
        "right": int(right.sum()),
        "common": kept - SEEDS,
        "estimate": estimate.right,
        "agreement": estimate.agreement,
        "orphans_paired": None
        if estimate.orphans_paired != estimate.orphans_paired
        else estimate.orphans_paired,
        "accepted": believed(len(found.pairs), estimate.right),
        "seconds": seconds,
    }
    if estimate.right:
        measured |= _cut_by_score(pools.x, pools.y, found.pairs, pairs, right)
    return measured


def _cut_by_score(
    x: Tensor, y: Tensor, known: Tensor, pairs: Tensor, right: Tensor
) -> dict[str, Any]:
    """The half of the pairs with the highest scores: its share of right ones, and what orphans at
    these scores suggest.
    """
    x, y = (principal_directions(side).along for side in (x, y))
    scores = _scores(x, y, known, pairs)
    best = scores.argsort(descending=True)[: len(pairs) // 2]
    lost, orphan_scores = _orphan_scores(x, y, known)
    passed = float((orphan_scores >= scores[best[-1]]).sum()) / lost
    accepted = len(best) / len(x)
    return {
        "scored": float(right[best].double().mean()),
        "decoys": 1 - passed * (1 - COMMON) / accepted,
    }


def _scores(x: Tensor, y: Tensor, known: Tensor, pairs: Tensor) -> Tensor:
    """Mean CSLS of pairs by maps of random halves of the known pairs."""
    scores, unit_y = torch.zeros(len(pairs)), normalize(y)
    for repeat in range(CONFIRMATIONS):
        half = draw_half(len(known), repeat, 0)
        for part in (half, ~half):
            q = normalize(x @ graded_map(x[known[part, 0]], y[known[part, 1]]).float())
            of_q, of_y = hubness_offsets(q, unit_y, 10)
            cosines = (q[pairs[:, 0]] * unit_y[pairs[:, 1]]).sum(dim=1)
            scores += 2 * cosines - of_q[pairs[:, 0]] - of_y[pairs[:, 1]]
    return scores / (2 * CONFIRMATIONS)


def _orphan_scores(x: Tensor, y: Tensor, known: Tensor) -> tuple[int, Tensor]:
    """How many pairs lost their item of y, and the scores of the pairs that these then found."""
    order = _order(len(known), 1)
    lost = known[order[: len(known) // estimate.ORPHAN_PARTS]]
    rest = known[order[len(lost) :]]
    stays = ~torch.isin(torch.arange(len(y)), lost[:, 1])
    place = stays.cumsum(dim=0) - 1
    rest = torch.stack([rest[:, 0], place[rest[:, 1]]], dim=1)
    claimed = partner_pairs(learn_and_match(x, y[stays], rest, beat=no_beat))
    claimed = claimed[torch.isin(claimed[:, 0], lost[:, 0])]
    return len(lost), _scores(x, y[stays], rest, claimed)


def _order(count: int, number: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(number))


def show(console: Console, found: dict[str, Any]) -> None:
    """One line for each pool, draws beside each other."""
    table = Table("pools", "right of pairs", "estimate", "accepted", "best half", "decoys")
    for name, draws in found.items():
        cells = draws.values()
        table.add_row(
            name,
            ", ".join(f"{each['right']} of {each['pairs']}" for each in cells),
            ", ".join(f"{each['estimate']:.2f}" for each in cells),
            ", ".join("yes" if each["accepted"] else "no" for each in cells),
            ", ".join(f"{each.get('scored', float('nan')):.2f}" for each in cells),
            ", ".join(f"{each.get('decoys', float('nan')):.2f}" for each in cells),
        )
    console.print(table)


if __name__ == "__main__":
    main()
