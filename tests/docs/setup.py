"""What the pages assume before their first block: encoders, anchor sets and files of the reader."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import chromadb
import faiss
import httpx2
import lancedb
import numpy as np
import psycopg
import sqlite_vec
import torch
from pgvector.psycopg import register_vector
from pymilvus import MilvusClient
from qdrant_client import QdrantClient, models

from anchorage_client import Client
from app.demo.pack import load_pack
from app.demo.run import write_store
from app.stores.sqlite_vec import SQLITE
from tests.pgvector_server import pgvector_server_of_process
from tests.stores.cases import milvus_server

DRAW = np.random.default_rng(0)
TEXTS = [f"{verb} my {thing}" for verb in ("I lost", "Close") for thing in ("card", "account")]


def make(http: httpx2.Client, path: str, **body: Any) -> dict[str, Any]:
    """POST something that a page assumes."""
    answer = http.post(path, json=body)
    answer.raise_for_status()
    return answer.json()  # type: ignore[no-any-return]


def encoders(http: httpx2.Client, **dims: int) -> None:
    for name, dim in dims.items():
        make(http, "/encoders", name=name, dim=dim)


def text_encoders(http: httpx2.Client, *names: str) -> None:
    for name in names:
        make(http, "/encoders", name=name, kind="sentence-transformers", model="all-MiniLM-L6-v2")


def texts(
    http: httpx2.Client, folder: Path, *, running: Sequence[str] = ("minilm",), **dims: int
) -> None:
    """The set `faq` of texts, by encoders that the service runs and by others at random."""
    text_encoders(http, *running)
    encoders(http, **dims)
    inputs = [f"{text} {number}" for text in TEXTS for number in range(8)]
    make(http, "/anchor-sets", name="faq", inputs=inputs, encoders=list(running))
    for name, dim in dims.items():
        vectors = DRAW.normal(size=(len(inputs), dim)).tolist()
        http.put(
            f"/anchor-sets/faq/embeddings/{name}", json={"vectors": vectors}
        ).raise_for_status()


def six(http: httpx2.Client, folder: Path) -> None:
    """Two small encoders, and six anchors."""
    encoders(http, old=3, new=3)
    old = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 2], [2, 0, 1]]
    new = [[1, 3, 1], [-1, 1, 1], [1, 1, 3], [-1, 3, 1], [-1, 1, 5], [1, 5, 3]]
    make(http, "/anchor-sets", name="six", embeddings={"old": old, "new": new})


def anchor_sets(http: httpx2.Client, folder: Path) -> None:
    """Texts with vectors of a model that does not run any more, and more of its vectors."""
    pack = load_pack()
    (folder / "texts.txt").write_text("\n".join(pack.sentences[:64]), encoding="utf-8")
    np.save(folder / "old.npy", pack.old[:64].numpy())
    np.save(folder / "sample.npy", pack.old[64:124].numpy())


def bulk(http: httpx2.Client, folder: Path) -> None:
    six(http, folder)
    for name in ("vectors", "corpus"):
        np.save(folder / f"{name}.npy", DRAW.normal(size=(100, 3)).astype(np.float32))


def bootstrap(http: httpx2.Client, folder: Path) -> None:
    """Two pools of the same sentences in different orders, and ten pairs of their rows."""
    pack, count = load_pack(), 600
    place = DRAW.permutation(count)
    np.save(folder / "old.npy", pack.vectors["minilm3-512"][:count].numpy())
    np.save(folder / "new.npy", pack.vectors["minilm6-384"][:count].numpy()[np.argsort(place)])
    np.save(folder / "seeds.npy", [(row, place[row]) for row in range(10)])


def as_base64(rows: torch.Tensor) -> dict[str, Any]:
    data = base64.b64encode(rows.numpy().astype("<f4").tobytes()).decode()
    return {"dtype": "float32", "shape": list(rows.shape), "base64": data}


def table(name: str, vectors: torch.Tensor) -> None:
    """A table of the reader's database: the pack's first 60 sentences with their vectors."""
    rows = zip(load_pack().sentences[:60], vectors[:60].numpy(), strict=True)
    with psycopg.connect(pgvector_server_of_process().url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, body text, "
            f"embedding vector({vectors.shape[1]}))"
        )
        for id_, row in enumerate(rows):
            connection.execute(
                f"INSERT INTO {name} VALUES (%s, %s, %s)",  # noqa: S608 -- a name of this file
                (id_, *row),
            )


def questions(http: httpx2.Client, folder: Path) -> None:
    """The reader's table: questions with vectors of a model that does not run any more."""
    table("questions", load_pack().old)


def client_page(http: httpx2.Client, folder: Path) -> None:
    """The pack's sentences by two encoders, and a table with vectors of the first."""
    pack = load_pack()
    old, new = pack.vectors["static-256"], pack.vectors["minilm6-384"]
    np.save(folder / "old.npy", old[:200].numpy())
    np.save(folder / "new.npy", new[:200].numpy())
    table("items", old)


def bridge(http: httpx2.Client) -> None:
    """The encoders `old` and `new`, and the anchors `bridge` of both."""
    pack = load_pack()
    encoders(http, old=512)
    text_encoders(http, "new")
    anchors = {"old": as_base64(pack.old[:200]), "new": as_base64(pack.new[:200])}
    make(http, "/anchor-sets", name="bridge", embeddings=anchors)


def shop(http: httpx2.Client, folder: Path) -> None:
    """The store `docs` in the folder `shop`, with both encoders and the anchors `bridge`."""
    bridge(http)
    write_store(folder / "shop", load_pack(), rows=200)
    about = {"kind": "lancedb", "collection": "questions", "id_field": "id", "text_field": "text"}
    make(http, "/stores", name="docs", address="shop", encoder="old", **about)


def movable(http: httpx2.Client, folder: Path) -> None:
    """The same in a store that has a cutover."""
    bridge(http)
    pack = load_pack()
    settings = chromadb.Settings(anonymized_telemetry=False)
    with closing(chromadb.PersistentClient(str(folder / "shop"), settings)) as client:
        rows = pack.old[pack.index][:200].numpy()
        collection = client.create_collection("questions", embedding_function=None)
        collection.add(ids=[str(id_) for id_ in range(len(rows))], embeddings=rows)
    about = {"kind": "chroma", "collection": "questions"}
    make(http, "/stores", name="docs", address="shop", encoder="old", **about)


def moved(http: httpx2.Client, folder: Path) -> None:
    """The store `docs`, migrated and cut over."""
    movable(http, folder)
    with Client(str(http.base_url)) as client:
        plan = {"store": "docs", "target": "new", "anchor_set": "bridge", "method": "graded"}
        migration = client.migrations.create(**plan)
        migration.run()
        migration.verify()
        migration.cutover()


def moving(folder: Path) -> np.ndarray:
    """Write the anchors of both models and queries of the new one; returns the rows of a store."""
    meaning = DRAW.normal(size=(205, 12))
    old, new = (np.float32(meaning @ DRAW.normal(size=(12, dim))) for dim in (24, 32))
    for name, rows in (("old", old[:200]), ("new", new[:200]), ("queries", new[200:])):
        np.save(folder / f"{name}.npy", rows)
    return old


def qdrant(http: httpx2.Client, folder: Path) -> None:
    rows = moving(folder)
    with closing(QdrantClient(path=str(folder / "qdrant"))) as client:
        params = models.VectorParams(size=rows.shape[1], distance=models.Distance.COSINE)
        client.create_collection("articles-1", params)
        alias = models.CreateAlias(alias_name="articles", collection_name="articles-1")
        client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        points = [models.PointStruct(id=id_, vector=row.tolist()) for id_, row in enumerate(rows)]
        client.upsert("articles", points)


def chroma(http: httpx2.Client, folder: Path) -> None:
    rows = moving(folder)
    settings = chromadb.Settings(anonymized_telemetry=False)
    with closing(chromadb.PersistentClient(str(folder / "chroma"), settings)) as client:
        collection = client.create_collection("articles", embedding_function=None)
        collection.add(ids=[str(id_) for id_ in range(len(rows))], embeddings=rows)


def milvus(http: httpx2.Client, folder: Path) -> None:
    rows = moving(folder)
    with closing(MilvusClient(milvus_server.shared_server(), timeout=60, dedicated=True)) as client:
        for each in client.list_collections():
            if each.startswith("articles"):
                client.drop_collection(each)
        client.create_collection("articles_1", rows.shape[1], consistency_level="Strong")
        client.create_alias("articles_1", "articles")
        client.insert("articles", [{"id": id_, "vector": row} for id_, row in enumerate(rows)])


def lance(http: httpx2.Client, folder: Path) -> None:
    rows = [{"id": id_, "vector": row} for id_, row in enumerate(moving(folder))]
    lancedb.connect(str(folder / "lancedb")).create_table("articles", rows)


def sqlite(http: httpx2.Client, folder: Path) -> None:
    rows = moving(folder)
    with closing(SQLITE.connect(str(folder / "notes.db"), isolation_level=None)) as client:
        client.enable_load_extension(True)
        sqlite_vec.load(client)
        client.execute("PRAGMA journal_mode = wal")
        client.execute(f"CREATE VIRTUAL TABLE articles USING vec0(v float[{rows.shape[1]}])")
        packed = [(id_, row.tobytes()) for id_, row in enumerate(rows)]
        client.executemany("INSERT INTO articles(rowid, v) VALUES (?, ?)", packed)


def index_file(http: httpx2.Client, folder: Path) -> None:
    rows = moving(folder)
    index = faiss.index_factory(rows.shape[1], "IDMap2,HNSW32")
    index.add_with_ids(rows, np.arange(len(rows)))
    (folder / "faiss").mkdir()
    faiss.write_index(index, str(folder / "faiss/articles.faiss"))
    lines = [json.dumps({"id": id_, "text": f"text {id_}"}) for id_ in range(len(rows))]
    (folder / "faiss/articles.jsonl").write_text("\n".join(lines))


def embedded(http: httpx2.Client, folder: Path) -> None:
    for make in (lance, sqlite, index_file):
        make(http, folder)


def articles(http: httpx2.Client, folder: Path) -> None:
    rows = moving(folder)
    with psycopg.connect(pgvector_server_of_process().url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute("DROP TABLE IF EXISTS articles")
        connection.execute(
            f"CREATE TABLE articles (id int PRIMARY KEY, embedding vector({rows.shape[1]}))"
        )
        for id_, row in enumerate(rows):
            connection.execute("INSERT INTO articles VALUES (%s, %s)", (id_, row))
        connection.execute("CREATE INDEX ON articles USING hnsw (embedding vector_cosine_ops)")


#: by page; pages that are not here assume nothing but a service
SETUP: dict[str, Callable[[httpx2.Client, Path], None]] = {
    "README.md": questions,
    "docs/how-to/retired-model.md": questions,
    "docs/how-to/pgvector.md": articles,
    "docs/how-to/qdrant.md": qdrant,
    "docs/how-to/chroma.md": chroma,
    "docs/how-to/embedded-stores.md": embedded,
    "docs/how-to/milvus.md": milvus,
    "clients/python/README.md": client_page,
    "docs/how-to/anchor-sets.md": anchor_sets,
    "docs/how-to/bootstrap.md": bootstrap,
    "docs/how-to/bulk.md": bulk,
    "docs/how-to/encoders.md": lambda http, folder: texts(http, folder, running=("mine",)),
    "docs/how-to/clients.md": lambda http, folder: texts(http, folder, running=("old", "new")),
    "docs/how-to/cost.md": shop,
    "docs/how-to/migrate.md": movable,
    "docs/how-to/roll-back.md": moved,
    "docs/how-to/search-a-store.md": shop,
}
