"""Chroma for the contract suite: its own server over HTTP, and a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from chromadb.config import Settings

from app.stores.port import StoreId, StoreLocation
from tests.stores.cases.base import LiveStoreCase, Rows
from tests.stores.cases.chroma_server import ChromaServer, shared_server


@contextmanager
def open_client(url: str):
    """Yield a client of the library, as users of Chroma open one."""
    settings = Settings(anonymized_telemetry=False)
    if url.startswith("http"):
        host, port = url.removeprefix("http://").split(":")
        client = chromadb.HttpClient(host=host, port=int(port), settings=settings)
    else:
        client = chromadb.PersistentClient(path=url, settings=settings)
    try:
        yield client
    finally:
        client.close()
        for each in (client, client._admin_client):
            if hasattr(each._server, "_session"):
                each._server._session.close()


class ChromaFolderCase(LiveStoreCase):
    kind = "chroma"
    id_type = str

    def url(self, folder: Path) -> str:
        return str(folder / "chroma")

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        location = StoreLocation(
            "chroma", self.url(folder), folder.name, text_field="chroma:document"
        )
        with open_client(location.url) as client:
            client.create_collection(
                location.collection,
                metadata={"made": "by a test"},
                configuration={"hnsw": {"space": "cosine", "ef_construction": 120}},
                embedding_function=None,
            )
        self.insert(location, rows)
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        with open_client(location.url) as client:
            client.get_collection(location.collection, embedding_function=None).upsert(
                ids=list(rows.ids),
                embeddings=np.asarray(rows.vectors, np.float32),
                documents=[payload["text"] for payload in rows.payloads],
                metadatas=[
                    {key: payload[key] for key in ("text", "number")}
                    | {"json": json.dumps(payload)}
                    for payload in rows.payloads
                ],
            )

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with open_client(location.url) as client:
            client.get_collection(location.collection, embedding_function=None).delete(list(ids))

    def change_text(self, location: StoreLocation, id: StoreId, text: str) -> None:
        with open_client(location.url) as client:
            collection = client.get_collection(location.collection, embedding_function=None)
            [vector] = collection.get([id], include=["embeddings"])["embeddings"]
            collection.update([id], documents=[text], embeddings=[vector])

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        with open_client(location.url) as client:
            found = client.get_collection(location.collection, embedding_function=None).get(
                include=["embeddings", "metadatas", "documents"]
            )
        payloads = [json.loads(metadata["json"]) for metadata in found["metadatas"]]
        assert [payload["text"] for payload in payloads] == found["documents"]
        return {
            id: (vector, payload)
            for id, vector, payload in zip(found["ids"], found["embeddings"], payloads, strict=True)
        }


class ChromaServerCase(ChromaFolderCase):
    def __init__(self, server: ChromaServer | None = None) -> None:
        self._server = server

    def url(self, folder: Path) -> str:
        return (self._server or shared_server()).url

    def remove(self, location: StoreLocation) -> None:
        with open_client(location.url) as client:
            for each in client.list_collections():
                if each.name.startswith(location.collection):
                    client.delete_collection(each.name)
