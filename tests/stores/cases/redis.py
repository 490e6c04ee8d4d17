"""Redis's search for the contract suite: hashes, searched by an alias."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import redis

from app.stores.base import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase
from tests.stores.cases.redis_server import SearchServer


def vector_field(client: redis.Redis, alias: str) -> tuple[str, int]:
    """Return the field of vectors behind an alias, as clients find it, and its dimension."""
    words = client.execute_command("FT.INFO", alias)
    info = dict(zip(words[::2], words[1::2], strict=True))
    [found] = [each for each in info[b"attributes"] if b"VECTOR" in each]
    named = dict(zip(found[::2], found[1::2], strict=False))
    return named[b"identifier"].decode(), int(named[b"dim"])


class RedisCase(StoreCase):
    """The keys are numbers, so each collection has its own server."""

    kind = "redis"
    id_type = str

    def __init__(self) -> None:
        self.servers: dict[str, SearchServer] = {}

    def client(self, location: StoreLocation) -> redis.Redis:
        return redis.Redis.from_url(location.url, protocol=2)

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        server = SearchServer(folder)
        self.servers[server.url] = server
        location = StoreLocation(self.kind, server.url, "items", text_field="text")
        with self.client(location) as client:
            self.create(client, rows.vectors.shape[1])
        self.insert(location, rows)
        return location

    def create(self, client: redis.Redis, dim: int, prefix: str = "", *fields: Any) -> None:
        vector = ["HNSW", 6, "TYPE", "FLOAT32", "DIM", dim, "DISTANCE_METRIC", "COSINE"]
        words = ["ON", "HASH", "PREFIX", 1, prefix, "SCHEMA", "number", "NUMERIC", *fields]
        client.execute_command("FT.CREATE", "items-1", *words, "vector", "VECTOR", *vector)
        client.execute_command("FT.ALIASADD", "items", "items-1")

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        with self.client(location) as client:
            field, dim = vector_field(client, location.collection)
            if rows.vectors.shape[1] != dim:
                raise ValueError(f"the index takes vectors of {dim} numbers")
            pipe = client.pipeline(transaction=False)
            for id, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True):
                content = {key: payload[key] for key in ("text", "number")}
                content |= {"json": json.dumps(payload), field: np.float32(vector).tobytes()}
                pipe.hset(str(id), mapping=content)
            pipe.execute()

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with self.client(location) as client:
            client.delete(*map(str, ids))

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        found = {}
        with self.client(location) as client:
            field, _ = vector_field(client, location.collection)
            for key in client.scan_iter(_type="hash"):
                content = client.hgetall(key)
                payload = json.loads(content[b"json"])
                assert content[b"text"].decode() == payload["text"]
                vector = np.frombuffer(content.get(field.encode(), b""), np.float32)
                found[key.decode()] = (vector, payload)
        return found

    def remove(self, location: StoreLocation) -> None:
        self.servers.pop(location.url).stop()
