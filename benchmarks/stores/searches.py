"""Milliseconds of single searches of a filled store, through a service over HTTP."""

from __future__ import annotations

import json
from typing import Any

from app.stores.base import StoreLocation
from benchmarks.store_search.timing import Service, time_searches
from benchmarks.stores.data import ANCHORS, Vectors, World
from scripts.servers import serve

#: how long a search waits for native vectors: none is left out
DEADLINE_MS = 30_000


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
        "native": ({**cascade, "native": 20, "native_deadline_ms": DEADLINE_MS}, new),
    }
    with serve(stores=json.dumps({"bench": location.url})) as server:
        service = Service(server)
        service.post("/encoders", {"name": "old", "dim": old.shape[1]})
        model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
        service.post("/encoders", {"name": "new", **model})
        anchors = {"old": old[:ANCHORS], "new": new[:ANCHORS]}
        service.post("/anchor-sets", {"name": "bridge", "embeddings": anchors})
        fields = ("kind", "collection", "vector_field", "id_field", "text_field", "options")
        about = {name: getattr(location, name) for name in fields if getattr(location, name)}
        service.post("/stores", {"name": "bench", "address": "bench", "encoder": "old", **about})
        return {
            what: time_searches(service, "/stores/bench/search", body, queries[::-1][:200])
            for what, (body, queries) in kinds.items()
        }
