"""Each kind of store as its own clients fill and read it: by its fastest documented way."""

# ruff: noqa: D102 (StoreClient describes the methods)
from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from app.stores.port import StoreLocation
from benchmarks.stores.data import StoredRows, Vectors

#: rows of one call where a client sends batches
BATCH = 1000

Read = dict[int, tuple[Vectors, Any]]


class StoreClient(ABC):
    """Fills an empty store, and reads it, without this project's connector."""

    kind: str
    label: str
    #: where the store runs: in a server, or in the process of the service
    server = "embedded"
    #: how the rows are inserted
    insert: str

    @contextmanager
    def running(self, folder: Path) -> Iterator[str]:
        """Yield the address."""
        yield str(folder)

    @abstractmethod
    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        """Create the collection and insert the rows in bulk, without an index if it is apart."""

    def index(self, location: StoreLocation) -> bool:
        """Build the index, if the store builds it apart from inserts."""
        return False

    @abstractmethod
    def read(self, location: StoreLocation) -> Read:
        """Return the vector and the payload of each row."""

    def drop(self, url: str) -> None:  # noqa: B027 -- most servers end with `running`
        """Drop the collection, where its server outlives `running`."""


class PgvectorClient(StoreClient):
    """A table of PostgreSQL with an HNSW index."""

    kind, label, insert = "pgvector", "pgvector", "COPY, binary"
    server = "PostgreSQL"

    @contextmanager
    def running(self, folder: Path) -> Iterator[str]:
        from benchmarks.migrate.postgres import server

        with server(folder / "postgres") as running:
            yield running.database("stores").url

    def connect(self, url: str) -> Any:
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(url, autocommit=True)
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        return connection

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        dim = rows.vectors.shape[1]
        with self.connect(url) as connection:
            connection.execute(
                "CREATE TABLE items (id bigint PRIMARY KEY, text text, payload jsonb, "
                f"embedding vector({dim}) NOT NULL)"
            )
            copy = "COPY items FROM STDIN WITH (FORMAT BINARY)"
            with connection.cursor() as cursor, cursor.copy(copy) as stream:
                stream.set_types(["int8", "text", "jsonb", "vector"])
                for id, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True):
                    stream.write_row((id, payload["text"], json.dumps(payload), vector))
        return StoreLocation(self.kind, url, "public.items", text_field="text")

    def index(self, location: StoreLocation) -> bool:
        with self.connect(location.url) as connection:
            connection.execute("CREATE INDEX ON items USING hnsw (embedding vector_cosine_ops)")
        return True

    def read(self, location: StoreLocation) -> Read:
        with self.connect(location.url) as connection:
            found = connection.execute("SELECT id, payload, embedding, text FROM items").fetchall()
        return {
            id: (np.asarray(_plain(vector), np.float32), [payload, text])
            for id, payload, vector, text in found
        }


def _plain(vector: Any) -> Any:
    return vector.to_numpy() if hasattr(vector, "to_numpy") else vector


class QdrantClientLocal(StoreClient):
    """A collection in the local mode of Qdrant's client, which searches exactly."""

    kind, label, insert = "qdrant", "Qdrant", "upsert, 1,000 points a call"
    server = "local mode"

    def _client(self, url: str) -> Any:
        from qdrant_client import QdrantClient

        return QdrantClient(path=url)

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        from qdrant_client import models

        client = self._client(url)
        params = models.VectorParams(size=rows.vectors.shape[1], distance=models.Distance.COSINE)
        client.create_collection("items-1", vectors_config={"text": params})
        alias = models.CreateAlias(alias_name="items", collection_name="items-1")
        client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        for start in range(0, len(rows.ids), BATCH):
            part = slice(start, start + BATCH)
            client.upsert(
                "items",
                models.Batch(
                    ids=list(rows.ids[part]),
                    vectors={"text": rows.vectors[part].tolist()},
                    payloads=[dict(each) for each in rows.payloads[part]],
                ),
            )
        client.close()
        return StoreLocation(self.kind, url, "items", vector_field="text", text_field="text")

    def read(self, location: StoreLocation) -> Read:
        client = self._client(location.url)
        found, _ = client.scroll("items", limit=10**6, with_vectors=True, with_payload=True)
        client.close()
        return {
            each.id: (np.asarray(each.vector["text"], np.float32), each.payload) for each in found
        }


class ChromaFolderClient(StoreClient):
    """A collection in a folder."""

    kind, label, insert = "chroma", "Chroma", "add, 1,000 records a call"

    @contextmanager
    def _client(self, url: str) -> Iterator[Any]:
        import chromadb
        from chromadb.config import Settings

        settings = Settings(anonymized_telemetry=False)
        if url.startswith("http"):
            host, port = url.removeprefix("http://").split(":")
            client: Any = chromadb.HttpClient(host=host, port=int(port), settings=settings)
        else:
            client = chromadb.PersistentClient(path=url, settings=settings)
        yield client
        client.close()

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        with self._client(url) as client:
            items = client.create_collection(
                "items", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
            )
            for start in range(0, len(rows.ids), BATCH):
                part = slice(start, start + BATCH)
                items.add(
                    ids=[str(id) for id in rows.ids[part]],
                    embeddings=rows.vectors[part],
                    documents=[each["text"] for each in rows.payloads[part]],
                    metadatas=[dict(each) for each in rows.payloads[part]],
                )
        return StoreLocation(self.kind, url, "items", text_field="chroma:document")

    def read(self, location: StoreLocation) -> Read:
        include = ["embeddings", "documents", "metadatas"]
        found: Read = {}
        with self._client(location.url) as client:
            items = client.get_collection("items", embedding_function=None)
            while True:
                page = items.get(include=include, limit=5000, offset=len(found))
                if not page["ids"]:
                    return found
                for id, vector, document, metadata in zip(
                    *(page[name] for name in ("ids", *include)), strict=True
                ):
                    found[int(id)] = (np.asarray(vector, np.float32), [document, metadata])


class MilvusServerClient(StoreClient):
    """A collection of a server, with an HNSW index and an alias."""

    kind, label, insert = "milvus", "Milvus", "insert, 1,000 rows a call"
    server = "Milvus 2.3"

    @contextmanager
    def running(self, folder: Path) -> Iterator[str]:
        yield import_module("tests.stores.cases.milvus_server").shared_server()

    def _client(self, url: str) -> Any:
        return import_module("pymilvus").MilvusClient(url, timeout=600, dedicated=True)

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        milvus: Any = import_module("pymilvus")
        types, client = milvus.DataType, self._client(url)
        schema = client.create_schema(enable_dynamic_field=True)
        schema.add_field("id", types.INT64, is_primary=True)
        schema.add_field("text", types.VARCHAR, max_length=2000)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=rows.vectors.shape[1])
        client.create_collection("bench_1", schema=schema, consistency_level="Strong")
        client.create_alias("bench_1", "bench")
        every = zip(rows.ids, rows.vectors, rows.payloads, strict=True)
        content = [{**payload, "id": id, "vector": vector} for id, vector, payload in every]
        for start in range(0, len(content), BATCH):
            client.insert("bench", content[start : start + BATCH])
        client.flush("bench")
        client.close()
        return StoreLocation(self.kind, url, "bench", text_field="text")

    def index(self, location: StoreLocation) -> bool:
        client = self._client(location.url)
        index = client.prepare_index_params()
        params = {"M": 16, "efConstruction": 64}
        index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=params)
        client.create_index("bench_1", index)
        client.load_collection("bench_1")
        client.close()
        return True

    def drop(self, url: str) -> None:
        client = self._client(url)
        client.drop_alias("bench")
        for name in client.list_collections():
            client.drop_collection(name)
        client.close()

    def read(self, location: StoreLocation) -> Read:
        client = self._client(location.url)
        pages = client.query_iterator("bench", batch_size=BATCH, output_fields=["*"])
        found: Read = {}
        while page := pages.next():
            for row in map(dict, page):
                found[row.pop("id")] = (np.asarray(row.pop("vector"), np.float32), row)
        pages.close()
        client.close()
        return found


CLIENTS: list[StoreClient] = [
    PgvectorClient(),
    QdrantClientLocal(),
    ChromaFolderClient(),
    MilvusServerClient(),
]
