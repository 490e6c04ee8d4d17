"""Qdrant in local mode and Qdrant Edge, written to by their own clients.

Both let one handle into a folder, so the clients of this process share the connector's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge
from qdrant_client import QdrantClient, models

from app.stores.base import StoreId, StoreLocation
from app.stores.qdrant.client import load_local
from app.stores.qdrant.edge import EDGE_METADATA, load_shard
from app.stores.qdrant.layout import LIVE_VECTORS
from tests.stores.cases.base import Rows, StoreCase
from tests.stores.qdrant.visits import visit_folder


class LocalQdrantCase(StoreCase):
    """A collection with a vector `text`. Clients read its alias and its metadata."""

    kind = "qdrant"
    strategies = ("collection", "named-vector")

    def visit(self, location: StoreLocation):
        folder = str(Path(location.url).resolve())
        return visit_folder(folder, lambda: load_local(folder))

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        with_client = QdrantClient(path=str(folder / "qdrant"))
        params = models.VectorParams(size=rows.vectors.shape[1], distance=models.Distance.COSINE)
        with_client.create_collection("items-1", {"text": params})
        alias = models.CreateAlias(alias_name="items", collection_name="items-1")
        with_client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        with_client.close()
        location = StoreLocation(
            self.kind, str(folder / "qdrant"), "items", vector_field="text", text_field="text"
        )
        self.insert(location, rows)
        return location

    def live(self, client: Any, location: StoreLocation) -> str:
        metadata = client.get_collection(location.collection).config.metadata or {}
        return str(metadata.get(LIVE_VECTORS, {}).get("text", "text"))

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        with self.visit(location) as client:
            name = self.live(client, location)
            client.upsert(
                location.collection,
                [
                    models.PointStruct(id=each, vector={name: vector.tolist()}, payload=payload)
                    for each, vector, payload in zip(
                        rows.ids, rows.vectors, rows.payloads, strict=True
                    )
                ],
            )

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with self.visit(location) as client:
            client.delete(location.collection, models.PointIdsList(points=list(ids)))

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        with self.visit(location) as client:
            name = self.live(client, location)
            records, _ = client.scroll(
                location.collection, limit=10_000, with_vectors=[name], with_payload=True
            )
        return {each.id: (np.float32(each.vector[name]), each.payload) for each in records}


class EdgeCase(StoreCase):
    """A shard whose only vector has no name. Clients read the file beside the segments."""

    kind = "qdrant-edge"
    strategies = ("named-vector",)

    def path(self, location: StoreLocation) -> Path:
        return Path(location.url).resolve() / location.collection

    def visit(self, location: StoreLocation):
        folder = str(self.path(location))
        return visit_folder(folder, lambda: load_shard(folder))

    def live(self, location: StoreLocation) -> str:
        notes = self.path(location) / EDGE_METADATA
        metadata = json.loads(notes.read_text()) if notes.exists() else {}
        return str(metadata.get(LIVE_VECTORS, {}).get("", ""))

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        (folder / "shards" / "items").mkdir(parents=True)
        params = edge.EdgeVectorParams(size=rows.vectors.shape[1], distance=edge.Distance.Cosine)
        path = str(folder / "shards" / "items")
        edge.EdgeShard.create(path, edge.EdgeConfig(vectors=params)).close()
        location = StoreLocation(self.kind, str(folder / "shards"), "items", text_field="text")
        self.insert(location, rows)
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        name = self.live(location)
        points = [
            edge.Point(each, {name: vector.tolist()}, dict(payload))
            for each, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True)
        ]
        with self.visit(location) as shard:
            shard.update(edge.UpdateOperation.upsert_points(points))

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with self.visit(location) as shard:
            shard.update(edge.UpdateOperation.delete_points(list(ids)))

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        name = self.live(location)
        with self.visit(location) as shard:
            request = edge.ScrollRequest(limit=10_000, with_payload=True, with_vector=[name])
            records, _ = shard.scroll(request)
        return {
            each.id: (
                np.float32(each.vector[name] if isinstance(each.vector, dict) else each.vector),
                each.payload,
            )
            for each in records
        }
