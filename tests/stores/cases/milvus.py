"""Milvus for the contract suite: collections of its own server, which clients use by an alias."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from pymilvus import DataType, MilvusClient

from app.stores.port import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase
from tests.stores.cases.milvus_server import shared_server
from tests.waiting import until

#: collections that are made at once: a server takes a second to load one, or eight
AT_ONCE = 8


@functools.cache
def client_of(url: str) -> MilvusClient:
    """Return a client of the library, as users of Milvus open one."""
    return MilvusClient(url, timeout=10, dedicated=True)


def make_collections(
    client: MilvusClient, count: int, *, loaded: bool = True, **fields: Any
) -> list[str]:
    """Return the names of new, empty collections.

    fields  arguments of `add_field` by the name of the field, beside `text`
    """
    names = [f"items_{uuid4().hex[:12]}" for _ in range(count)]
    schema = MilvusClient.create_schema(enable_dynamic_field=True, description="made by a test")
    for name, options in (
        {"text": {"datatype": DataType.VARCHAR, "max_length": 1000}} | fields
    ).items():
        schema.add_field(name, **options)
    index = MilvusClient.prepare_index_params()
    params = {"M": 8, "efConstruction": 64}
    index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=params)
    for name in names:
        client.create_collection(name, schema=schema, consistency_level="Strong")
        client.create_index(name, index, sync=False)
        if loaded:
            client.load_collection(name, _async=True)
    for name in names if loaded else ():
        until(lambda name=name: client.get_load_state(name)["state"].name == "Loaded")
    return names


@functools.cache
def empty_collections(url: str, dim: int) -> list[str]:
    return []


class MilvusCase(StoreCase):
    kind = "milvus"
    is_slow = True

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        url, dim = shared_server(), rows.vectors.shape[1]
        client, empty = client_of(url), empty_collections(url, dim)
        if not empty:
            key = {"datatype": DataType.INT64, "is_primary": True}
            vector = {"datatype": DataType.FLOAT_VECTOR, "dim": dim}
            empty += make_collections(client, AT_ONCE, id=key, vector=vector)
        name = empty.pop()
        client.create_alias(name, f"clients_{name}")
        location = StoreLocation(self.kind, url, f"clients_{name}", text_field="text")
        self.insert(location, rows)
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        columns = zip(rows.ids, rows.vectors, rows.payloads, strict=True)
        client_of(location.url).upsert(
            location.collection,
            [{**payload, "id": id, "vector": vector} for id, vector, payload in columns],
        )

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        client_of(location.url).delete(location.collection, ids=list(ids))

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        found = client_of(location.url).query(location.collection, limit=10_000)
        rows = [dict(each) for each in found]
        return {row.pop("id"): (np.float32(row.pop("vector")), row) for row in rows}

    def remove(self, location: StoreLocation) -> None:
        client = client_of(location.url)
        name = location.collection.removeprefix("clients_")
        for each in client.list_collections():
            if each.startswith(name):
                client.drop_collection(each)
