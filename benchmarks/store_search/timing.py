"""Times of single searches of a store, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx2
import numpy as np
import orjson

from benchmarks.synthetic import Matrix
from scripts.servers import Server

RESULTS_OF_A_QUERY = 10

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
