"""One pair of encoders, number of anchors and draw: what each option makes of the search."""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.quality import peers
from benchmarks.relevance.client import (
    Direction,
    Rows,
    evaluate,
    mean_ndcg,
    rescore,
    search,
    translate,
)
from benchmarks.relevance.collection import JudgedCollection
from benchmarks.service import Connection

PEER = "isotrieve ridge"


OPTIONS = ("keep", "bridge", "cascade", "fuse", "translate", "re-embed")


def anchor_rows(data: JudgedCollection, anchors: int, draw: int) -> list[int]:
    """Documents drawn at random; with one draw, fewer anchors are the first of more."""
    order = torch.randperm(data.size, generator=torch.Generator().manual_seed(draw))
    return order[:anchors].tolist()


def measure_cell(
    connection: Connection,
    data: JudgedCollection,
    pair: Direction,
    anchors: list[int],
    draw: int,
    halves: int,
) -> dict[str, Any]:
    """NDCG@10 of each option; cascade and fuse as a client runs them, by /rescore.

    halves  random halves of the queries, on which the option and weight are chosen
    """
    judged = evaluate(connection, data, pair)
    results = {name: each["ndcg_10"] for name, each in judged["results"].items()}
    found = find_by_bridge(connection, data, pair)
    cascade, _ = rescore(connection, data, pair, list(found))
    by_peer = _peer(data, pair, anchors)
    return {
        **{name: results[name] for name in ("keep", "bridge", "translate", "re-embed")},
        "cascade": mean_ndcg(data, cascade),
        "fuse, judged": results["fuse"],
        **measure_fuse(connection, data, pair, found),
        "weight, judged": judged["fuse"]["weight"],
        "cascade, evaluated": results["cascade"],
        "by weight": {each["weight"]: each["ndcg_10"] for each in judged["fuse"]["by_weight"]},
        "isotrieve": None if by_peer is None else by_peer,
        "method": judged["method"],
        "halves": [_half(connection, data, pair, draw, half) for half in range(halves)],
    }


def find_by_bridge(connection: Connection, data: JudgedCollection, pair: Direction) -> Rows:
    """The candidates that the old store finds for the translated queries."""
    bridged = translate(connection, pair.turned, data.queries[pair.target])
    return search(bridged, data.documents[pair.source])


def measure_fuse(
    connection: Connection, data: JudgedCollection, pair: Direction, found: Rows
) -> dict[str, Any]:
    """NDCG@10 of fuse by the weight that the service takes without judgements.

    found  the bridge's candidates, to which those of the old queries are added
    """
    kept = search(data.queries[pair.source], data.documents[pair.source])
    union = [np.union1d(*both) for both in zip(kept, found, strict=True)]
    fused, weight = rescore(connection, data, pair, union, mode="fuse")
    return {"fuse": mean_ndcg(data, fused), "weight": weight}


def _half(
    connection: Connection, data: JudgedCollection, pair: Direction, draw: int, half: int
) -> dict[str, Any]:
    """The option and weight that are best on half of the queries, measured on the others."""
    queries = np.array(data.judged)
    order = np.random.default_rng((draw, half)).permutation(len(queries))
    known, others = (queries[part].tolist() for part in np.split(order, [len(queries) // 2]))
    chosen = evaluate(connection, data, pair, known)
    measured = evaluate(connection, data, pair, others)
    fused = {each["weight"]: each["ndcg_10"] for each in measured["fuse"]["by_weight"]}
    values = {name: measured["results"][name]["ndcg_10"] for name in OPTIONS}
    values["fuse"] = fused[measured["fuse"]["default_weight"]]
    weight, best = chosen["fuse"]["weight"], _best(chosen["results"])
    return {
        "queries": len(known),
        "best": best,
        "weight": weight,
        "chosen": fused[weight] if best == "fuse" else values[best],
        "options": values,
    }


def _best(results: dict[str, Any]) -> str:
    """The best of the options that this benchmark compares."""
    return max(OPTIONS, key=lambda name: float(results[name]["ndcg_10"]))


def average(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """The means over the draws of one cell."""
    names = (*OPTIONS, "fuse, judged", "weight", "weight, judged", "cascade, evaluated")
    halves = [half for draw in draws for half in draw["halves"]]
    options = {name: mean(half["options"][name] for half in halves) for name in OPTIONS}
    weights = draws[0]["by weight"]
    return {
        **{name: mean(draw[name] for draw in draws) for name in names},
        "by weight": {
            f"{weight:g}": mean(draw["by weight"][weight] for draw in draws) for weight in weights
        },
        "isotrieve": None
        if draws[0]["isotrieve"] is None
        else mean(draw["isotrieve"] for draw in draws),
        "halves": {
            "chosen": mean(half["chosen"] for half in halves),
            "options": options,
            "best": max(options.values()),
        },
    }


@cache
def _peers() -> dict[str, peers.Fit]:
    return dict(peers.peers(Console(stderr=True)))


def _peer(data: JudgedCollection, pair: Direction, anchors: list[int]) -> float | None:
    """NDCG@10 of documents that isotrieve translates, by its defaults; None: not installed."""
    fit = _peers().get(PEER)
    if fit is None:
        return None
    source, target = (
        torch.from_numpy(data.documents[name]).double() for name in (pair.source, pair.target)
    )
    translated = fit(source[anchors], target[anchors])(source).numpy()
    return mean_ndcg(data, search(data.queries[pair.target], translated, 10).tolist())
