"""What the pages assume before their first block: encoders, anchor sets and files of the reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import chromadb
import faiss
import lancedb
import numpy as np
import psycopg
import sqlite_vec
import torch
from langchain_core.embeddings import Embeddings
from langchain_postgres import PGVector
from pgvector.psycopg import register_vector
from pymilvus import MilvusClient
from qdrant_client import QdrantClient, models
from sqlalchemy import NullPool, create_engine

from anchorage_client import Client
from app.demo.pack import load_pack
from app.stores.sqlite_vec import SQLITE
from tests.pgvector_server import pgvector_server_of_process
from tests.stores.cases import milvus_server

DRAW = np.random.default_rng(0)
MINILM = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}


def texts(client: Client, folder: Path, names: Sequence[str]) -> None:
    """The set `faq` of texts, by encoders that the service runs."""
    for name in names:
        client.encoders.create(name, **MINILM)
    inputs = [f"I lost my {thing} {n}" for thing in ("card", "account") for n in range(16)]
    client.anchor_sets.create("faq", inputs=inputs, encoders=names)


def anchor_sets(client: Client, folder: Path) -> None:
    """Texts with vectors of a model that does not run any more, and more of its vectors."""
    pack = load_pack()
    (folder / "texts.txt").write_text("\n".join(pack.sentences[:64]), encoding="utf-8")
    np.save(folder / "old.npy", pack.old[:64].numpy())
    np.save(folder / "sample.npy", pack.old[64:124].numpy())


def bulk(client: Client, folder: Path) -> None:
    """Two small encoders with six anchors, and files of vectors."""
    for name in ("old", "new"):
        client.encoders.create(name, dim=3)
    old = np.float32([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 2], [2, 0, 1]])
    new = np.float32([[1, 3, 1], [-1, 1, 1], [1, 1, 3], [-1, 3, 1], [-1, 1, 5], [1, 5, 3]])
    client.anchor_sets.create("six", embeddings={"old": old, "new": new})
    for name in ("vectors", "corpus"):
        np.save(folder / f"{name}.npy", DRAW.normal(size=(100, 3)).astype(np.float32))


def bootstrap(client: Client, folder: Path) -> None:
    """Two pools of the same sentences in different orders, and ten pairs of their rows."""
    pack, count = load_pack(), 600
    place = DRAW.permutation(count)
    np.save(folder / "old.npy", pack.vectors["minilm3-512"][:count].numpy())
    np.save(folder / "new.npy", pack.vectors["minilm6-384"][:count].numpy()[np.argsort(place)])
    np.save(folder / "seeds.npy", [(row, place[row]) for row in range(10)])


def table(name: str, texts: Sequence[str], vectors: np.ndarray) -> None:
    """A table of the reader's database: texts and their vectors."""
    with psycopg.connect(pgvector_server_of_process().url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        columns = f"id int PRIMARY KEY, body text, embedding vector({vectors.shape[1]})"
        connection.execute(f"CREATE TABLE {name} ({columns})")
        connection.execute(f"CREATE INDEX ON {name} USING hnsw (embedding vector_cosine_ops)")
        insert = f"INSERT INTO {name} VALUES (%s, %s, %s)"  # noqa: S608 -- a name of this file
        for id_, row in enumerate(zip(texts, vectors, strict=True)):
            connection.execute(insert, (id_, *row))


def questions(client: Client, folder: Path) -> None:
    """The reader's table: questions with vectors of a model that does not run any more."""
    pack = load_pack()
    table("questions", pack.sentences[:60], pack.old[:60].numpy())


def langchain(client: Client, folder: Path) -> None:
    """A collection of LangChain: the same questions, more of them."""

    class Old(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return load_pack().old[: len(texts)].tolist()

        def embed_query(self, text: str) -> list[float]:
            raise AssertionError("The old model does not run any more.")

    url = pgvector_server_of_process().url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url, poolclass=NullPool)
    store = PGVector(Old(), connection=engine, collection_name="docs", pre_delete_collection=True)
    store.add_texts(load_pack().sentences[:200])


def client_page(client: Client, folder: Path) -> None:
    """The pack's sentences by two encoders, and a table with vectors of the first."""
    pack = load_pack()
    old, new = pack.vectors["static-256"], pack.vectors["minilm6-384"]
    np.save(folder / "old.npy", old[:200].numpy())
    np.save(folder / "new.npy", new[:200].numpy())
    table("items", pack.sentences[:60], old[:60].numpy())


def bridge(client: Client) -> None:
    """The encoders `old` and `new`, and the anchors `bridge` of both."""
    pack = load_pack()
    client.encoders.create("old", dim=512)
    client.encoders.create("new", **MINILM)
    anchors: dict[str, torch.Tensor] = {"old": pack.old[:200], "new": pack.new[:200]}
    client.anchor_sets.create("bridge", embeddings=anchors)


def shop(client: Client, folder: Path) -> None:
    """The store `docs` in the folder `shop`, with both encoders and the anchors `bridge`."""
    bridge(client)
    pack = load_pack()
    rows = [
        {"id": row, "text": pack.sentences[500 + row], "vector": pack.old[500 + row].tolist()}
        for row in range(200)
    ]
    lancedb.connect(str(folder / "shop")).create_table("questions", rows)
    about = {"kind": "lancedb", "collection": "questions", "id_field": "id", "text_field": "text"}
    client.stores.create("docs", address="shop", encoder="old", **about)


def collection(
    folder: Path, name: str, rows: np.ndarray, texts: Sequence[str] | None = None
) -> None:
    """A collection of Chroma; texts are in the field `body`."""
    settings = chromadb.Settings(anonymized_telemetry=False)
    with closing(chromadb.PersistentClient(str(folder), settings)) as chroma:
        made = chroma.create_collection(name, embedding_function=None)
        fields = None if texts is None else [{"body": text} for text in texts]
        made.add(ids=[str(id_) for id_ in range(len(rows))], embeddings=rows, metadatas=fields)


def movable(client: Client, folder: Path) -> None:
    """The same in a store that has a cutover."""
    bridge(client)
    pack = load_pack()
    rows, texts = pack.old[pack.index][:200].numpy(), pack.sentences[pack.index][:200]
    collection(folder / "shop", "questions", rows, texts)
    place = {"kind": "chroma", "collection": "questions", "address": "shop", "text_field": "body"}
    client.stores.create("docs", encoder="old", **place)


def moved(client: Client, folder: Path) -> None:
    """The store `docs`, migrated and cut over."""
    movable(client, folder)
    migration = client.migrate("docs", target="new").wait()
    migration.verify()
    migration.cutover()


def moving(folder: Path) -> np.ndarray:
    """Write the anchors of both models and queries of the new one; returns the rows of a store."""
    meaning = DRAW.normal(size=(205, 12))
    old, new = (np.float32(meaning @ DRAW.normal(size=(12, dim))) for dim in (24, 32))
    for name, rows in (("old", old[:200]), ("new", new[:200]), ("queries", new[200:])):
        np.save(folder / f"{name}.npy", rows)
    return old


def no_texts(client: Client, folder: Path) -> None:
    """A collection of vectors without texts, and 310 kept texts with their old vectors."""
    pack = load_pack()
    (folder / "kept.txt").write_text("\n".join(pack.sentences[:310]), encoding="utf-8")
    np.save(folder / "kept.npy", pack.old[:310].numpy())
    with closing(QdrantClient(path=str(folder / "qdrant"))) as store:
        params = models.VectorParams(size=512, distance=models.Distance.COSINE)
        store.create_collection("faq-1", params)
        alias = models.CreateAlias(alias_name="faq", collection_name="faq-1")
        store.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        rows = enumerate(pack.old[310:510].tolist())
        store.upsert("faq", [models.PointStruct(id=id_, vector=row) for id_, row in rows])


def milvus(client: Client, folder: Path) -> None:
    rows = moving(folder)
    with closing(MilvusClient(milvus_server.shared_server(), timeout=60, dedicated=True)) as store:
        for each in store.list_collections():
            if each.startswith("articles"):
                store.drop_collection(each)
        store.create_collection("articles_1", rows.shape[1], consistency_level="Strong")
        store.create_alias("articles_1", "articles")
        store.insert("articles", [{"id": id_, "vector": row} for id_, row in enumerate(rows)])


def embedded(client: Client, folder: Path) -> None:
    """The same rows in LanceDB, sqlite-vec and FAISS."""
    rows = moving(folder)
    table = [{"id": id_, "vector": row} for id_, row in enumerate(rows)]
    lancedb.connect(str(folder / "lancedb")).create_table("articles", table)
    with closing(SQLITE.connect(str(folder / "notes.db"), isolation_level=None)) as store:
        store.enable_load_extension(True)
        sqlite_vec.load(store)
        store.execute("PRAGMA journal_mode = wal")
        store.execute(f"CREATE VIRTUAL TABLE articles USING vec0(v float[{rows.shape[1]}])")
        packed = [(id_, row.tobytes()) for id_, row in enumerate(rows)]
        store.executemany("INSERT INTO articles(rowid, v) VALUES (?, ?)", packed)
    index = faiss.index_factory(rows.shape[1], "IDMap2,HNSW32")
    index.add_with_ids(rows, np.arange(len(rows)))
    (folder / "faiss").mkdir()
    faiss.write_index(index, str(folder / "faiss/articles.faiss"))


def articles(client: Client, folder: Path) -> None:
    rows = moving(folder)
    table("articles", [f"text {id_}" for id_ in range(len(rows))], rows)


#: by page; pages that are not here assume nothing but a service
SETUP: dict[str, Callable[[Client, Path], None]] = {
    "README.md": questions,
    "docs/how-to/langchain.md": langchain,
    "docs/how-to/pgvector.md": articles,
    "docs/how-to/embedded-stores.md": embedded,
    "docs/how-to/milvus.md": milvus,
    "clients/python/README.md": client_page,
    "docs/how-to/anchor-sets.md": anchor_sets,
    "docs/how-to/bootstrap.md": bootstrap,
    "docs/how-to/bulk.md": bulk,
    "docs/how-to/encoders.md": partial(texts, names=["mine"]),
    "docs/how-to/clients.md": partial(texts, names=["old", "new"]),
    "docs/how-to/cost.md": shop,
    "docs/how-to/migrate.md": movable,
    "docs/how-to/name.md": moved,
    "docs/how-to/no-texts.md": no_texts,
    "docs/how-to/roll-back.md": moved,
    "docs/how-to/search-a-store.md": questions,
}
