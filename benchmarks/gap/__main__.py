"""How much of the gap between keeping an old index and re-embedding it can 300 anchors recover?

    python -m benchmarks.gap  # about 20 minutes of one core; --only NAME measures one lever again

Writes benchmarks/results/gap.json.

Cranfield (1,400 abstracts, 225 queries, human judgements) by three unrelated encoders: USE
multilingual, multilingual-e5-small and all-MiniLM-L6-v2. 300 documents are the anchors; the stored
vectors are translated and searched by the new encoder's queries. nDCG@10 of all six ordered pairs,
mean of five draws. Recovered: (nDCG of the lever - keep) / (re-embed - keep), for the two pairs
whose new encoder is far better. A lever that reads a query log reads one half of the queries and is
measured on the other, in both directions. The options of the kernel (ridge .15, power .25, weight
.3 of sentences) were chosen with the judgements on the first two pairs, so its rows of these pairs
are slightly high.

Data: $ANCHORAGE_DATA/cranfield, banking77, trec and corpora; `--help` names the encoders' packages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import permutations
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from app.demo.run import new_table
from app.maths.quality.metrics import unit
from app.maths.relevance.ranking_metrics import ideal_ranking, measure_ranking
from benchmarks.common import RESULTS, Missing, merged, parser, read, rounded, write
from benchmarks.gap import levers
from benchmarks.gap.data import ENCODERS, PACKAGES, Cranfield, load
from benchmarks.gap.levers import ANCHORS, EXPONENTIAL, Case, cosines, regress, served

DRAWS = 5
PAIRS = tuple(permutations(ENCODERS, 2))
HEADLINE = (("use", "minilm"), ("use", "e5"))

Scores = Callable[[Case], Tensor]


def matrix(*kinds: str, pick: Callable[[Case], Tensor] | None = None, auto: bool = False) -> Scores:
    """One matrix by the service's own fit, from these kinds of rows as anchors."""

    def score(case: Case) -> Tensor:
        return cosines(case, served(case, _groups(case, kinds, pick), auto=auto))

    return score


def kernel(
    *kinds: str,
    pick: Callable[[Case], Tensor] | None = None,
    shift: float = 0.0,
    shared: float = 1.0,
) -> Scores:
    """The exponential kernel on cosines to the anchors, from these kinds of rows."""

    def score(case: Case) -> Tensor:
        groups = _groups(case, kinds, pick)
        fitted = regress(case, groups, kernel=EXPONENTIAL, ridge=0.15, shared=shared)
        return cosines(case, fitted, shift=shift)

    return score


def _groups(
    case: Case, kinds: tuple[str, ...], pick: Callable[[Case], Tensor] | None
) -> list[levers.Group]:
    rows = case.rows if pick is None else pick(case)
    make = {
        "sentences": lambda: case.sentences(rows),
        "pairs": case.pairs,
        "foreign": case.foreign,
    }
    return [case.documents(rows), *(make[kind]() for kind in kinds)]


#: name: (scores, whether it reads the query log)
LEVERS: dict[str, tuple[Scores, bool]] = {
    "graded, as served": (matrix(), False),
    "auto": (matrix(auto=True), False),
    "k-means medoids": (matrix(pick=levers.clustered), False),
    "half found by the log": (matrix(pick=levers.found_by_log), True),
    "suggested": (matrix(pick=levers.suggested), False),
    "sentences": (matrix("sentences"), False),
    "query pairs": (matrix("pairs"), True),
    "suggested, sentences": (matrix("sentences", pick=levers.suggested), False),
    "suggested, sentences, query pairs": (
        matrix("sentences", "pairs", pick=levers.suggested),
        True,
    ),
    "sentences, own means, weight .3": (
        lambda c: cosines(c, regress(c, _groups(c, ("sentences",), None))),
        False,
    ),
    "2,000 foreign texts as anchors": (matrix("foreign"), False),
    "foreign texts as a prior": (
        lambda c: cosines(c, regress(c, _groups(c, ("foreign",), None), shared=0.4)),
        False,
    ),
    "store as prior, power .5": (lambda c: cosines(c, levers.store_as_prior(c, 0.5)), False),
    "store as prior, power -.5": (lambda c: cosines(c, levers.store_as_prior(c, -0.5)), False),
    "kernel distilled into a matrix": (lambda c: cosines(c, levers.distilled(c)), False),
    "queries moved by half": (
        lambda c: cosines(c, served(c, _groups(c, (), None)), shift=0.5),
        True,
    ),
    "bridge added": (levers.with_bridge, False),
    "canonical scores": (levers.canonical, True),
    "lengths by certainty": (levers.by_certainty, False),
    "hubs discounted": (levers.without_hubs, False),
    "anchors keep native vectors": (levers.native_anchors, False),
    "smoothed by neighbours": (
        lambda c: cosines(c, levers.smoothed(c, served(c, _groups(c, (), None)), c.store)),
        False,
    ),
    "native, smoothed by its own neighbours": (
        lambda c: cosines(c, levers.smoothed(c, *[c.data.documents[c.y]] * 2)),
        False,
    ),
    "kernel": (kernel(), False),
    "kernel, suggested": (kernel(pick=levers.suggested), False),
    "kernel, foreign prior": (kernel("foreign", shared=0.4), False),
    "kernel, sentences": (kernel("sentences"), False),
    "kernel, suggested, sentences": (kernel("sentences", pick=levers.suggested), False),
    "kernel, suggested, sentences, query pairs": (
        kernel("sentences", "pairs", pick=levers.suggested),
        True,
    ),
    "the same, queries moved by half": (
        kernel("sentences", "pairs", pick=levers.suggested, shift=0.5),
        True,
    ),
}


def main() -> None:
    """Measure, print and write."""
    command = parser(f"{__doc__}\n{PACKAGES}", RESULTS / "gap.json")
    command.add_argument("--only", choices=LEVERS, action="append", help="measure this lever only")
    options = command.parse_args()
    try:
        data = load()
    except Missing as error:
        sys.exit(str(error))
    ends = {name: ndcg(data, data.queries[name], data.documents[name]) for name in ENCODERS}
    report = {
        "about": (__doc__ or "").split("\n\n")[3],
        "native": {name: float(values.mean()) for name, values in ends.items()},
        "sentences": len(data.owners),
        "levers": read(options.json).get("levers", {}),
    }
    for name in options.only or LEVERS:
        started = time.perf_counter()
        row = measure(data, *LEVERS[name], native=report["native"])
        report["levers"] = merged(report["levers"], name, row, tuple(LEVERS))
        write(options.json, rounded(report, 4))
        sys.stdout.write(f"{name}: {row['recovered']} in {time.perf_counter() - started:.0f} s\n")
        sys.stdout.flush()
    show(report)


def ndcg(data: Cranfield, queries: Tensor, documents: Tensor) -> Tensor:
    """nDCG@10 of each query, by cosine."""
    return of_scores(data, unit(queries) @ unit(documents).T)


def of_scores(data: Cranfield, scores: Tensor) -> Tensor:
    """nDCG@10 of each judged query by scores (q, n)."""
    ranking = scores[data.judged.rows].topk(10, dim=1).indices
    return measure_ranking(ranking, data.judged, ideal_ranking(data.judged)).ndcg


def measure(
    data: Cranfield, scores: Scores, reads_log: bool, native: dict[str, float]
) -> dict[str, object]:
    """nDCG@10 of each pair, and the share of the gap that it recovers."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randperm(data.judged.size, generator=draw)[:ANCHORS] for _ in range(DRAWS)]
    order = torch.randperm(len(data.judged), generator=draw)
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    found: dict[str, float] = {}
    for x, y in PAIRS:
        values = []
        for chosen in rows:
            for log, rest in (halves, halves[::-1]) if reads_log else ((order, order),):
                each = of_scores(data, scores(Case(data, x, y, chosen, log)))
                values.append((float(each[rest].mean()), len(rest)))
        found[f"{x} -> {y}"] = sum(v * n for v, n in values) / sum(n for _, n in values)
    return {
        "ndcg": found,
        "mean": mean(found.values()),
        "recovered": {
            f"{x} -> {y}": round((found[f"{x} -> {y}"] - native[x]) / (native[y] - native[x]), 3)
            for x, y in HEADLINE
        },
    }


def show(report: dict[str, Any]) -> None:
    """Print one table."""
    columns = tuple(f"{x} -> {y}" for x, y in HEADLINE)
    table = new_table(
        "nDCG@10, in brackets the share of the gap", ("lever",), (*columns, "mean of six pairs")
    )
    for name, row in report["levers"].items():
        cells = [f"{row['ndcg'][pair]:.3f} ({row['recovered'][pair]:.2f})" for pair in columns]
        table.add_row(name, *cells, f"{row['mean']:.3f}")
    Console(width=max(110, Console().width)).print(table)


if __name__ == "__main__":
    main()
