"""What the pages assume before their first block: encoders, anchor sets and files of the reader."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg
import torch
from pgvector.psycopg import register_vector

from anchorage_client import Client
from app.demo.pack import load_pack
from app.demo.run import write_store
from tests.pgvector_server import pgvector_server_of_process

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


def bulk(http: httpx2.Client, folder: Path) -> None:
    six(http, folder)
    for name in ("vectors", "corpus"):
        np.save(folder / f"{name}.npy", DRAW.normal(size=(100, 3)).astype(np.float32))


def pools(http: httpx2.Client, folder: Path) -> None:
    encoders(http, old=3)
    text_encoders(http, "minilm")
    rows = DRAW.normal(size=(20_000, 3)).astype(np.float32)
    np.save(folder / "old.npy", rows)
    np.save(folder / "first.npy", rows[:16_384])
    np.save(folder / "second.npy", rows[16_384:])
    np.save(folder / "new.npy", DRAW.normal(size=(20_000, 4)).astype(np.float32))


def bootstrap(http: httpx2.Client, folder: Path) -> None:
    encoders(http, minilm=8, static=6)
    for name, dim in (("minilm", 8), ("static", 6)):
        body = {"encoder": name, "vectors": DRAW.normal(size=(120, dim)).tolist()}
        http.put(f"/pools/sentences-by-{name}", json=body).raise_for_status()


def as_base64(rows: torch.Tensor) -> dict[str, Any]:
    data = base64.b64encode(rows.numpy().astype("<f4").tobytes()).decode()
    return {"dtype": "float32", "shape": list(rows.shape), "base64": data}


#: by page; pages that are not here assume nothing but a service
def folders(http: httpx2.Client, folder: Path) -> None:
    """Two folders of npy files: the pack's sentences by two encoders."""
    pack = load_pack()
    for name, encoder in (("old", "static-256"), ("new", "minilm6-384")):
        (folder / name).mkdir()
        for number in range(2):
            rows = pack.vectors[encoder][100 * number : 100 * (number + 1)]
            np.save(folder / name / f"part-{number}.npy", rows.numpy())


def questions(http: httpx2.Client, folder: Path) -> None:
    """The reader's table: questions with vectors of a model that does not run any more."""
    pack = load_pack()
    with psycopg.connect(pgvector_server_of_process().url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute("DROP TABLE IF EXISTS questions")
        connection.execute(
            "CREATE TABLE questions (id int PRIMARY KEY, body text, embedding vector(512))"
        )
        for id_, row in enumerate(zip(pack.sentences[:60], pack.old[:60].numpy(), strict=True)):
            connection.execute("INSERT INTO questions VALUES (%s, %s, %s)", (id_, *row))


def shop(http: httpx2.Client, folder: Path) -> None:
    """The store `docs`, a table in the folder `shop`, with both encoders and the anchors `bridge`."""
    pack = load_pack()
    write_store(folder / "shop", pack, rows=200)
    encoders(http, old=512)
    text_encoders(http, "new")
    anchors = {"old": as_base64(pack.old[:200]), "new": as_base64(pack.new[:200])}
    make(http, "/anchor-sets", name="bridge", embeddings=anchors)
    about = {"kind": "lancedb", "collection": "questions", "id_field": "id", "text_field": "text"}
    make(http, "/stores", name="docs", address="shop", encoder="old", **about)


def moved(http: httpx2.Client, folder: Path) -> None:
    """The same, migrated and cut over."""
    shop(http, folder)
    with Client(str(http.base_url)) as client:
        plan = {"store": "docs", "target": "new", "anchor_set": "bridge", "method": "graded"}
        migration = client.migrations.create(**plan)
        migration.run().wait()
        migration.verify().wait()
        migration.cutover()


SETUP: dict[str, Callable[[httpx2.Client, Path], None]] = {
    "README.md": questions,
    "docs/how-to/retired-model.md": questions,
    "clients/python/README.md": folders,
    "docs/how-to/clients.md#command-line": folders,
    "docs/explanation/anchors.md": six,
    "docs/how-to/anchor-sets.md": lambda http, folder: texts(
        http, folder, running=("minilm", "hosted"), old=2, **{"ada-002": 2}
    ),
    "docs/how-to/bootstrap.md": bootstrap,
    "docs/how-to/bulk.md": bulk,
    "docs/how-to/encoders.md": lambda http, folder: texts(http, folder, running=("mine",), old=3),
    "docs/how-to/clients.md#frameworks": lambda http, folder: texts(
        http, folder, running=("old", "new")
    ),
    "docs/how-to/cost.md": shop,
    "docs/how-to/migrate.md": shop,
    "docs/how-to/roll-back.md": moved,
    "docs/how-to/search-a-store.md": shop,
    "docs/how-to/bootstrap.md#pools": pools,
}
