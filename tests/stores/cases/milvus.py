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
from tests.stores.cases.base import LiveStoreCase, Rows
from tests.stores.cases.milvus_server import shared_server


@functools.cache
def client_of(url: str) -> MilvusClient:
    """Return a client of the library, as users of Milvus open one."""
    return MilvusClient(url, timeout=10, dedicated=True)


def make_collection(client: MilvusClient, *, loaded: bool = True, **fields: Any) -> str:
    """Return the name of a new, empty collection.

    fields  arguments of `add_field` by the name of the field, beside `text`
    """
    name = f"items_{uuid4().hex[:12]}"
    schema = MilvusClient.create_schema(enable_dynamic_field=True, description="made by a test")
    schema.add_field("text", DataType.VARCHAR, max_length=60_000)
    for field, options in fields.items():
        schema.add_field(field, **options)
    index = MilvusClient.prepare_index_params()
    params = {"M": 8, "efConstruction": 64}
    index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=params)
    client.create_collection(name, schema=schema, consistency_level="Strong")
    client.create_index(name, index, sync=False)
    if loaded:
        client.load_collection(name)
    return name


class MilvusCase(LiveStoreCase):
    kind = "milvus"
    is_slow = True

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        url, dim = shared_server(), rows.vectors.shape[1]
        client = client_of(url)
        key = {"datatype": DataType.INT64, "is_primary": True}
        vector = {"datatype": DataType.FLOAT_VECTOR, "dim": dim}
        name = make_collection(client, id=key, vector=vector)
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

    def change_text(self, location: StoreLocation, id: StoreId, text: str) -> None:
        client = client_of(location.url)
        [row] = client.get(location.collection, [id])
        client.upsert(location.collection, [{**row, "text": text}])

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
