"""Searches of unchanged stores, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import numpy as np
import orjson
from rich.progress import track

from benchmarks.relevance.cells import anchor_rows
from benchmarks.relevance.client import mean_ndcg
from benchmarks.relevance.collection import JudgedCollection
from benchmarks.synthetic import Matrix
from scripts.servers import Server

#: old and new encoder
PAIRS = (("use", "minilm"), ("use", "e5"), ("e5", "minilm"))

RESULTS_OF_A_QUERY = 10

#: queries of one request: all must be answered within the deadline of a store
QUERIES_AT_ONCE = 15

#: single queries that are timed, after a few that are not
TIMED, WARM_UP = 100, 5


class Service:
    """Calls of the service. Each must succeed."""

    def __init__(self, server: Server) -> None:
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=300)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer. Raises RuntimeError for an error."""
        answer = self.http.post(
            path,
            content=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
            headers={"Content-Type": "application/json"},
        )
        if answer.status_code >= 300:
            raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json()


def measure_before(
    server: Server,
    data: JudgedCollection,
    stores: Mapping[str, tuple[str, Mapping[str, Any]]],
    anchors: int,
    draws: int,
) -> dict[str, Any]:
    """nDCG@10 of each pair in each store, and times of single queries."""
    service = Service(server)
    for encoder, rows in data.documents.items():
        service.post("/encoders", {"name": encoder, "dim": rows.shape[1]})
    for draw in range(draws):
        chosen = anchor_rows(data, anchors, draw)
        embeddings = {name: vectors[chosen] for name, vectors in data.documents.items()}
        service.post("/anchor-sets", {"name": f"draw-{draw}", "embeddings": embeddings})
    for name, (address, definition) in stores.items():
        encoder = name.partition("-")[2]
        body = {"name": name, "address": address, "encoder": encoder, **definition}
        made = service.post("/stores", body)
        assert made["space"]["verdict"] == "matches", made["space"]
    cells = [
        cell(service, data, name, pair, f"draw-{draw}")
        for name in sorted(stores)
        for pair in PAIRS
        if name.endswith(f"-{pair[0]}")
        for draw in track(range(draws), f"{name} -> {pair[1]}")
    ]
    times = [
        timed(service, data, name, pair)
        for name in sorted(stores)
        for pair in PAIRS[:1]
        if name.endswith(f"-{pair[0]}")
    ]
    return {"anchors": anchors, "draws": draws, "cells": cells, "times": times}


def cell(
    service: Service, data: JudgedCollection, store: str, pair: tuple[str, str], anchor_set: str
) -> dict[str, Any]:
    """nDCG@10 of one store, pair and draw: by the store's index, and exactly."""
    source, target = pair
    common = {"anchor_set": anchor_set, "method": "graded"}
    queries = data.queries[target]
    body = {**common, "target": target, "k": RESULTS_OF_A_QUERY}
    path = f"/stores/{store}/search"
    by_index = search_all(service.post, path, body, queries)
    exact = search_all(service.post, path, {**body, "exact": True}, queries)
    return {
        "store": store.partition("-")[0],
        "source": source,
        "target": target,
        "draw": anchor_set,
        "search": ndcg(data, by_index),
        "search, exact": ndcg(data, exact),
    }


def search_all(
    post: Callable[[str, dict[str, Any]], Any], path: str, body: Mapping[str, Any], queries: Matrix
) -> list[dict[str, Any]]:
    """The results of all queries, of several requests."""
    results: list[dict[str, Any]] = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = queries[start : start + QUERIES_AT_ONCE]
        results += post(path, {**body, "queries": part})["results"]
    return results


def timed(
    service: Service, data: JudgedCollection, store: str, pair: tuple[str, str]
) -> dict[str, Any]:
    """Milliseconds of single queries: the cascade, and the store's own search for the same k."""
    source, target = pair
    path = f"/stores/{store}/search"
    cascade = {"target": target, "anchor_set": "draw-0", "method": "graded"}
    found: dict[str, Any] = {"store": store.partition("-")[0], "source": source, "target": target}
    for what, body, queries in (
        ("cascade", cascade, data.queries[target]),
        ("own", {"target": source}, data.queries[source]),
    ):
        found[what] = time_searches(service, path, body, queries)
    return found


def time_searches(
    service: Service, path: str, body: Mapping[str, Any], queries: Matrix
) -> dict[str, Any]:
    """Percentiles of TIMED searches of a store by single queries, after WARM_UP others."""
    totals, steps = [], []
    for turn in range(WARM_UP + TIMED):
        query = queries[turn % len(queries)][None]
        content = orjson.dumps(
            {**body, "queries": query, "k": RESULTS_OF_A_QUERY},
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        began = time.perf_counter()
        answer = service.http.post(
            path, content=content, headers={"Content-Type": "application/json"}
        )
        if turn >= WARM_UP:
            totals.append((time.perf_counter() - began) * 1e3)
            steps.append(split(answer.headers["Server-Timing"]))
        answer.raise_for_status()
    return {
        "p50_ms": float(np.percentile(totals, 50)),
        "p99_ms": float(np.percentile(totals, 99)),
        "steps_p50_ms": {
            name: float(np.percentile([each[name] for each in steps], 50)) for name in steps[0]
        },
    }


def split(header: str) -> dict[str, float]:
    """The steps of a Server-Timing header, in milliseconds."""
    parts = (part.strip().partition(";dur=") for part in header.split(","))
    return {name: float(duration) for name, _, duration in parts}


def ndcg(data: JudgedCollection, results: list[dict[str, Any]]) -> float:
    """nDCG@10 of results whose ids are rows of the documents."""
    return mean_ndcg(data, [each["ids"] for each in results])
