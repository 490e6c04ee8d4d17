"""One pair of encoders, number of anchors and draw: what each option makes of the search."""

from __future__ import annotations

from statistics import mean
from typing import Any

import numpy as np
import torch

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


def anchor_rows(data: JudgedCollection, anchors: int, draw: int) -> list[int]:
    """Documents drawn at random; with one draw, fewer anchors are the first of more."""
    order = torch.randperm(data.size, generator=torch.Generator().manual_seed(draw))
    return order[:anchors].tolist()


def measure_cell(connection: Connection, data: JudgedCollection, pair: Direction) -> dict[str, Any]:
    """NDCG@10 of each option; cascade and fuse as a client runs them, by /rescore."""
    judged = evaluate(connection, data, pair)
    results = {name: each["ndcg_10"] for name, each in judged["results"].items()}
    found = find_by_bridge(connection, data, pair)
    cascade, _ = rescore(connection, data, pair, list(found))
    return {
        **{name: results[name] for name in ("keep", "bridge", "translate", "re-embed")},
        "cascade": mean_ndcg(data, cascade),
        "fuse, judged": results["fuse"],
        **measure_fuse(connection, data, pair, found),
        "weight, judged": judged["fuse"]["weight"],
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


def average(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """The means over the draws of one cell."""
    return {name: mean(draw[name] for draw in draws) for name in draws[0]}
