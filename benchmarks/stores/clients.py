"""Each kind of store as its own clients fill and read it: by its fastest documented way."""

# ruff: noqa: D102 (StoreClient describes the methods)
from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
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


class PgvectorClient(StoreClient):
    """A table of PostgreSQL with an HNSW index."""

    kind, label, insert = "pgvector", "pgvector", "COPY, binary"
    server = "PostgreSQL"

    @contextmanager
    def running(self, folder: Path) -> Iterator[str]:
        from benchmarks.migrate.postgres import server

        with server(folder / "postgres") as running:
            yield running.database("stores").url

    def _connect(self, url: str) -> Any:
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(url, autocommit=True)
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        return connection

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        dim = rows.vectors.shape[1]
        with self._connect(url) as connection:
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
        with self._connect(location.url) as connection:
            connection.execute("CREATE INDEX ON items USING hnsw (embedding vector_cosine_ops)")
        return True

    def read(self, location: StoreLocation) -> Read:
        with self._connect(location.url) as connection:
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


class LancedbClient(StoreClient):
    """A table in a folder."""

    kind, label, insert = "lancedb", "LanceDB", "create_table from one Arrow table"

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        import lancedb
        import pyarrow as pa

        flat = pa.array(rows.vectors.reshape(-1))
        columns = {
            "id": pa.array(rows.ids),
            **{name: [each[name] for each in rows.payloads] for name in rows.payloads[0]},
            "vector": pa.FixedSizeListArray.from_arrays(flat, rows.vectors.shape[1]),
        }
        lancedb.connect(url).create_table("items", pa.table(columns))
        return StoreLocation(self.kind, url, "items", text_field="text")

    def index(self, location: StoreLocation) -> bool:
        import lancedb
        from lancedb.index import IvfPq

        table = lancedb.connect(location.url).open_table("items")
        table.create_index("vector", config=IvfPq(distance_type="cosine"))
        return True

    def read(self, location: StoreLocation) -> Read:
        import lancedb

        found = lancedb.connect(location.url).open_table("items").to_arrow()
        vectors = found["vector"].combine_chunks().flatten().to_numpy()
        payloads = found.drop_columns(["id", "vector"]).to_pylist()
        both = zip(vectors.reshape(found.num_rows, -1), payloads, strict=True)
        return dict(zip(found["id"].to_pylist(), both, strict=True))


class SqliteVecClient(StoreClient):
    """A vec0 table in a file, which searches exactly."""

    kind, label, insert = "sqlite-vec", "sqlite-vec", "INSERT, one transaction"

    def _connect(self, url: str) -> Any:
        import sqlite_vec

        from app.stores.sqlite_vec import SQLITE

        database = SQLITE.connect(url, isolation_level=None)
        database.enable_load_extension(True)
        sqlite_vec.load(database)
        return closing(database)

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        url = f"{url}/items.db"
        with self._connect(url) as database:
            database.execute("PRAGMA journal_mode = wal")
            database.execute(
                "CREATE VIRTUAL TABLE items USING vec0(id INTEGER PRIMARY KEY, text TEXT, "
                f"+payload TEXT, embedding FLOAT[{rows.vectors.shape[1]}] distance_metric=cosine)"
            )
            database.execute("BEGIN")
            database.executemany(
                "INSERT INTO items (id, text, payload, embedding) VALUES (?, ?, ?, ?)",
                (
                    (id, payload["text"], json.dumps(payload), vector.tobytes())
                    for id, vector, payload in zip(
                        rows.ids, rows.vectors, rows.payloads, strict=True
                    )
                ),
            )
            database.execute("COMMIT")
        return StoreLocation(self.kind, url, "items", text_field="text")

    def read(self, location: StoreLocation) -> Read:
        with self._connect(location.url) as database:
            rows = database.execute("SELECT id, embedding, text, payload FROM items").fetchall()
        return {id: (np.frombuffer(vector, "<f4"), payload) for id, vector, *payload in rows}


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


class FaissFileClient(StoreClient):
    """An index file, and the payloads in a file of JSON Lines beside it."""

    kind, label, insert = "faiss", "FAISS", "add_with_ids to an HNSW index, and one file"

    def fill(self, url: str, rows: StoredRows) -> StoreLocation:
        import faiss

        kind, metric = "IDMap2,HNSW32", faiss.METRIC_INNER_PRODUCT
        index = faiss.index_factory(rows.vectors.shape[1], kind, metric)
        index.add_with_ids(rows.vectors, np.asarray(rows.ids, np.int64))
        faiss.write_index(index, f"{url}/items.faiss")
        pairs = zip(rows.ids, rows.payloads, strict=True)
        lines = [json.dumps({"id": id, **payload}) + "\n" for id, payload in pairs]
        Path(url, "items.jsonl").write_text("".join(lines))
        return StoreLocation(self.kind, url, "items.faiss")

    def read(self, location: StoreLocation) -> Read:
        import faiss

        index: Any = faiss.read_index(f"{location.url}/{location.collection}")
        lines = Path(location.url, "items.jsonl").read_text().splitlines()
        payloads = {row.pop("id"): row for row in map(json.loads, lines)}
        ids = faiss.vector_to_array(index.id_map).tolist()
        return {id: (index.reconstruct(id), payloads.get(id)) for id in ids}


CLIENTS: list[StoreClient] = [
    PgvectorClient(),
    QdrantClientLocal(),
    ChromaFolderClient(),
    LancedbClient(),
    SqliteVecClient(),
    MilvusServerClient(),
    FaissFileClient(),
]
