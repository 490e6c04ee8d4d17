"""Tables of the tests of pgvector, each in a separate schema, and a whole migration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import psycopg

from app.stores.pgvector import PgvectorStore
from app.stores.port import Migration, Store, StoreLocation
from tests.stores.moving import write_all
from tests.stores.pgvector.catalogue import leftovers

if TYPE_CHECKING:  # it imports torch, and processes that a test kills shall start quickly
    from tests.pgvector_server import PgvectorServer

TAG, OLD_DIM, NEW_DIM = "5eed5eed", 4, 6
ROTATION = np.linalg.qr(np.random.default_rng(3).normal(size=(NEW_DIM, NEW_DIM)))[0]
ROTATION = ROTATION[:OLD_DIM].astype(np.float32)


def translate(ids: Sequence[Any], vectors: np.ndarray) -> np.ndarray:
    return vectors @ ROTATION


def translate_back(ids: Sequence[Any], vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors @ ROTATION.T)


def text(vector: Sequence[float]) -> str:
    return "[" + ",".join(str(float(each)) for each in vector) + "]"


def vectors_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, OLD_DIM)).astype(np.float32)


@dataclass
class Table:
    """`{t}` in a statement is the table, and `{s}` its schema."""

    server: PgvectorServer
    name: str = "docs"
    schema: str = field(default_factory=lambda: f"t_{uuid4().hex[:12]}")
    url: str = ""
    opened: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = self.url or self.server.url
        self.execute('CREATE SCHEMA "{s}"')

    @property
    def full(self) -> str:
        return f'"{self.schema}"."{self.name}"'

    def execute(self, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
        with self.connect() as connection:
            cursor = self.on(connection, statement, values or ())
            return cursor.fetchall() if cursor.description else []

    def contents(self) -> list[Any]:
        """All that is not the vector."""
        return self.execute("SELECT to_jsonb(t) - 'embedding' - 'The Vector' FROM {t} t ORDER BY 1")

    def on(
        self, connection: psycopg.Connection[Any], statement: str, values: Sequence[Any] = ()
    ) -> psycopg.Cursor[Any]:
        statement = statement.replace("{t}", self.full).replace("{s}", self.schema)
        return connection.execute(statement, values or None)

    def connect(self, role: str | None = None) -> psycopg.Connection[Any]:
        url = self.server.url_of(role) if role else self.url
        return psycopg.connect(url, autocommit=True)

    def fill(self, count: int = 30, columns: str = "id bigint PRIMARY KEY, body text") -> Table:
        self.execute(f"CREATE TABLE {{t}} ({columns}, embedding vector({OLD_DIM}) NOT NULL)")
        self.insert((each, f"body {each}", text(v)) for each, v in enumerate(vectors_of(count)))
        self.execute("CREATE INDEX ON {t} USING hnsw (embedding vector_cosine_ops)")
        return self

    def insert(self, rows: Iterable[Sequence[Any]]) -> None:
        """Insert an id, a body and a vector each."""
        statement = f"INSERT INTO {self.full} (id, body, embedding) VALUES (%s, %s, %s)"  # noqa: S608
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def location(self, **members: Any) -> StoreLocation:
        url = members.pop("url", self.url)
        return StoreLocation("pgvector", url, self.full, **members)

    def store(self, **members: Any) -> PgvectorStore:
        self.opened.append(store := PgvectorStore(self.location(**members)))
        return store

    def drop(self) -> None:
        for store in self.opened:
            store.close()
        self.execute('DROP SCHEMA "{s}" CASCADE')

    def traces(self) -> list[str]:
        """What a migration has left in the schema of the table."""
        with self.connect() as connection:
            return leftovers(connection, self.schema)


def sweep(store: Store, migration: Migration, limit: int = 10) -> None:
    write_all(store, migration, limit, translate)
    migration.build_index()


def begin(
    table: Table, limit: int = 10, *, cut_over: bool = False, **members: Any
) -> tuple[PgvectorStore, Any]:
    """A store of the table, and a filled migration of it."""
    store = table.store(**members)
    sweep(store, migration := store.migration(TAG, NEW_DIM), limit)
    if cut_over:
        migration.cutover(translate)
    return store, migration
