"""Milliseconds of single searches of a filled store, through a service over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from app.stores.port import StoreLocation
from benchmarks.service import JSON, Connection, make_set, register
from benchmarks.stores.data import ANCHORS, Vectors, World
from scripts.servers import serve

#: how long a search waits for native vectors: none is left out
DEADLINE_MS = 30_000

#: single queries that are timed, after a few that are not
TIMED, WARM_UP = 100, 5


def measure_searches(location: StoreLocation, world: World) -> dict[str, Any]:
    """Percentiles of the store's own search, of a cascade, and of one with 20 native vectors.

    Queries are the last rows by either encoder, and each is new: most of its texts are not cached.
    """
    old, new = world.rows.vectors, world.native
    cascade: dict[str, Any] = {
        "target": "new",
        "anchor_set": "bridge",
        "method": "graded",
        "mode": "cascade",
    }
    kinds: dict[str, tuple[dict[str, Any], Vectors]] = {
        "search": ({"target": "old"}, old),
        "cascade": ({**cascade, "native": 0}, new),
        "native": ({**cascade, "native": 20, "deadline_ms": DEADLINE_MS}, new),
    }
    with serve(stores=json.dumps({"bench": location.url})) as server:
        service = Connection(server.port)
        register(service, {"old": old.shape[1]})
        model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
        service.ask("/encoders", orjson.dumps({"name": "new", **model}), JSON)
        make_set(service, "bridge", {"old": old[:ANCHORS], "new": new[:ANCHORS]})
        fields = ("kind", "collection", "vector_field", "id_field", "text_field", "options")
        about = {name: getattr(location, name) for name in fields if getattr(location, name)}
        store = {"name": "bench", "address": "bench", "encoder": "old", **about}
        service.ask("/stores", orjson.dumps(store), JSON)
        return {
            what: time_searches(service, body, queries[::-1][:200])
            for what, (body, queries) in kinds.items()
        }


def time_searches(
    service: Connection, body: Mapping[str, Any], queries: Vectors
) -> dict[str, float]:
    """Percentiles of TIMED searches for 10 results of single queries, after WARM_UP others."""
    times = []
    for turn in range(WARM_UP + TIMED):
        content = orjson.dumps(
            {**body, "queries": queries[turn % len(queries)][None], "k": 10},
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        began = time.perf_counter()
        service.ask("/stores/bench/search", content, JSON)
        if turn >= WARM_UP:
            times.append((time.perf_counter() - began) * 1e3)
    return {f"p{part}_ms": float(np.percentile(times, part)) for part in (50, 99)}
