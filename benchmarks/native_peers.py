"""Native scores behind another library's translation: does it matter whose bridge finds them?

    python -m benchmarks.native_peers [--draws 5]

Writes benchmarks/results/native_peers.json.

The old encoder is gone: 200 candidates of a query come from its translation, and the first n of
them are scored by the new encoder's own vectors. nDCG@10 on Cranfield, for the pairs whose new
encoder is better by .02 or more. Anchorage answers POST /evaluate; isotrieve 0.4.0 maps queries and
documents by its default ridge, and the rankings are measured by the same code. peers.txt of
benchmarks/quality says how to install isotrieve.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import permutations
from statistics import mean

import torch
from rich.console import Console

from app.maths.relevance.options import NATIVE_COUNTS, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements, collect
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.native import ANCHORS, CANDIDATES, LEAST_GAP
from benchmarks.quality.peers import Fit, peers
from benchmarks.relevance.cells import PEER, anchor_rows
from benchmarks.relevance.client import Direction, finished, packed, post
from benchmarks.relevance.collection import JudgedCollection, cranfield
from benchmarks.service import Connection, make_set, register
from scripts.servers import serve

OURS = "Anchorage, graded"


def by_peer(
    fit: Fit, data: JudgedCollection, judged: Judgements, pair: Direction, anchors: list[int]
) -> list[float]:
    """NDCG@10 of a cascade by the peer's maps, and of native by each of NATIVE_COUNTS."""
    old, new = (
        torch.from_numpy(data.documents[name]).double() for name in (pair.source, pair.target)
    )
    queries = torch.from_numpy(data.queries[pair.target]).double()
    vectors = SearchVectors(
        old_documents=old.float(),
        new_queries=queries.float(),
        new_documents=new.float(),
        bridged_queries=fit(new[anchors], old[anchors])(queries).float(),
        translated_documents=fit(old[anchors], new[anchors])(old).float(),
    )
    measured = measure_options(vectors, judged, weights=(), candidates=CANDIDATES)
    tables = [measured.options["cascade"], *measured.native["native-cascade"]]
    return [float(each[:, 0].mean()) for each in tables]


def by_service(connection: Connection, data: JudgedCollection, pair: Direction) -> list[float]:
    """The same by POST /evaluate."""
    body = {
        **pair.fields,
        "queries": packed(data.queries[pair.target]),
        "documents": packed(data.documents[pair.source]),
        "native_documents": packed(data.documents[pair.target]),
        "judgements": [
            {"query": query, "document": document, "grade": grade}
            for query, document, grade in data.relevance
        ],
        "candidates": CANDIDATES,
    }
    answer = finished(connection, post(connection, "/evaluate", body))
    native = [each["ndcg_10"] for each in answer["native"]]
    return [answer["results"]["cascade"]["ndcg_10"], *native]


def exact(data: JudgedCollection, judged: Judgements, encoder: str) -> float:
    """NDCG@10 of an encoder's own search."""
    vectors = SearchVectors(
        new_queries=torch.from_numpy(data.queries[encoder]),
        new_documents=torch.from_numpy(data.documents[encoder]),
    )
    return float(measure_options(vectors, judged, weights=()).options["re-embed"][:, 0].mean())


def measure(data: JudgedCollection, draws: int, fit: Fit) -> Table:
    """The means over draws of each pair, number of anchors and library."""
    relevance = torch.tensor(data.relevance)
    judged = collect(relevance[:, 0], relevance[:, 1], relevance[:, 2].double(), size=data.size)
    own = {name: exact(data, judged, name) for name in data.documents}
    pairs = [each for each in permutations(own, 2) if own[each[1]] - own[each[0]] >= LEAST_GAP]
    cells: dict[tuple[str, str, int, str], list[list[float]]] = defaultdict(list)
    with serve(max_json=2**26) as server:
        connection = Connection(server.port)
        register(connection, {name: each.shape[1] for name, each in data.documents.items()})
        for anchors in ANCHORS:
            for draw in range(draws):
                rows, name = anchor_rows(data, anchors, draw), f"a{anchors}-{draw}"
                vectors = {each: data.documents[each][rows].copy() for each in own}
                make_set(connection, name, vectors)
                for source, target in pairs:
                    pair = Direction(source, target, name, "graded")
                    cell = (source, target, anchors)
                    cells[*cell, OURS].append(by_service(connection, data, pair))
                    cells[*cell, PEER].append(by_peer(fit, data, judged, pair, rows))
    counts = [f"n {count}" for count in (0, *NATIVE_COUNTS)]
    table = [["old -> new", "keep", "re-embed", "anchors", "translated by", *counts]]
    for (source, target, anchors, library), values in sorted(cells.items()):
        means = [f"{mean(column):.3f}" for column in zip(*values, strict=True)]
        ends = [f"{own[source]:.3f}", f"{own[target]:.3f}", f"{anchors:,}"]
        table.append([f"{source} -> {target}", *ends, library, *means])
    return table


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "native_peers.json")
    command.add_argument("--draws", type=int, default=5, help="draws of anchors")
    options = command.parse_args()
    try:
        data = cranfield()
    except Missing as error:
        sys.exit(str(error))
    fit = peers(Console(stderr=True)).get(PEER)
    if fit is None:
        sys.exit("isotrieve is not installed: benchmarks/quality/peers.txt says how.")
    tables = {"peers": measure(data, options.draws, fit)}
    show(Console(width=max(160, Console().width)), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
