"""A table in PostgreSQL, whose rows a test moves from the encoder `old` to the encoder `new`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg
import torch
from pgvector.psycopg import register_vector
from psycopg.rows import TupleRow
from torch import Tensor

from app.anchors import service as anchor_sets
from app.context import Services
from app.db import tables
from app.jobs import worker as runner
from app.jobs.worker import Leases
from app.moves import service as migrations
from app.moves.context import open_migration
from app.moves.maps import MigrationMaps, load_maps
from app.moves.plan import plan_migration
from app.moves.schemas import NewMigration
from app.stores.handles import StoreAddress
from app.stores.schemas import NewStore
from app.stores.service import create_store
from tests.helpers import CONTEXT, PROJECT, again, alter, create_encoder, some
from tests.pgvector_server import PgvectorServer
from workers.main import RUNNERS

OLD_DIM, NEW_DIM, LATENT, ROWS = 24, 16, 10, 1200


def items(count: int, seed: int) -> Tensor:
    """Hidden factors of items, which both encoders see."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, LATENT, generator=torch.Generator().manual_seed(99))
    which = torch.randint(12, (count,), generator=generator)
    return centres[which] + 0.7 * torch.randn(count, LATENT, generator=generator)


def encode(factors: Tensor, dim: int, seed: int) -> Tensor:
    """Unit vectors of an encoder: a linear view of the factors, bent, with noise of its own."""
    view = some(LATENT, dim, seed)
    noise = torch.randn(len(factors), dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize((factors @ view / 3).tanh() + 0.1 * noise, dim=1)


def old(factors: Tensor) -> Tensor:
    return encode(factors, OLD_DIM, 1)


def new(factors: Tensor) -> Tensor:
    return encode(factors, NEW_DIM, 2)


def old_vectors(count: int, seed: int = 20) -> np.ndarray:
    """Vectors of other items by the encoder `old`."""
    return old(items(count, seed)).numpy()


@dataclass(frozen=True)
class Table:
    """The table of the store of its name, as clients see it."""

    services: Services
    server: PgvectorServer
    table: str

    def plan(self, **changes: Any) -> Moving:
        """Plan a migration, as `POST /migrations` does."""
        named = {"store": self.table, "target": "new", "anchor_set": "pairs", **changes}
        row = plan_migration(self.services, CONTEXT, NewMigration(**named))
        return Moving(self.services, self.server, self.table, row)

    def connect(self) -> psycopg.Connection[TupleRow]:
        connection = psycopg.connect(self.server.url, autocommit=True)
        register_vector(connection)
        return connection

    def execute(self, statement: str, *arguments: Any) -> None:
        """Run a statement as a client; `{}` stands for the table."""
        with self.connect() as connection:
            connection.execute(statement.format(self.table), arguments)

    def read(self) -> dict[int, tuple[np.ndarray, str]]:
        """Every row as clients see it."""
        with self.connect() as connection:
            query = f"SELECT id, embedding, body FROM {self.table}"  # noqa: S608
            rows = connection.execute(query).fetchall()
        return {row[0]: (np.asarray(row[1].to_numpy()), row[2]) for row in rows}

    def insert(self, first: int, vectors: np.ndarray) -> None:
        """Insert or replace rows, as a client does."""
        with self.connect() as connection, connection.cursor() as cursor:
            ids = list(range(first, first + len(vectors)))
            # A view, which the table may be after a cutover, takes no ON CONFLICT.
            with connection.transaction():
                delete = f"DELETE FROM {self.table} WHERE id = ANY(%s)"  # noqa: S608
                connection.execute(delete, [ids])
                columns = f"{self.table} (id, embedding, body)"
                cursor.executemany(
                    f"INSERT INTO {columns} VALUES (%s, %s, %s)",  # noqa: S608
                    [(each, vectors[n], f"row {each}") for n, each in enumerate(ids)],
                )


@dataclass(frozen=True)
class Moving(Table):
    """A migration of a table, and the table as its clients see it."""

    row: tables.MigrationRow

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def now(self) -> migrations.MigrationStatus:
        return migrations.find_migration(self.services, PROJECT, self.row.id)

    @property
    def state(self) -> str:
        return self.now.row.state

    @property
    def maps(self) -> MigrationMaps:
        return load_maps(self.services, self.row)

    def new_vectors(self) -> dict[int, np.ndarray]:
        """The new vectors, read by the connector."""
        move, found, cursor = open_migration(self.services, self.now.row), {}, None
        while True:
            page = move.store.scroll(cursor, 500, "new")
            found |= dict(zip(page.ids, page.vectors, strict=True))
            if (cursor := page.cursor) is None:
                return found

    def queue(self, action: str) -> tables.JobRow:
        return migrations.queue_action(self.services, CONTEXT, self.id, action)

    def work(self, **more: Any) -> bool:
        """A worker's turn with the job that is due."""
        return runner.run_next(self.services, RUNNERS, Leases(self.services), **more)

    def do(self, action: str) -> tables.JobRow:
        """Queue a job and run it to its end."""
        job = self.queue(action)
        while again(self.services, job).finished_at is None:
            alter(self.services, job, due_at=job.created_at)
            self.work()
        return again(self.services, job)  # type: ignore[no-any-return]


def make_table(server: PgvectorServer, vectors: np.ndarray, *, index: bool = True) -> str:
    """A table of rows, with an HNSW index of cosines."""
    name = f"rows_{uuid4().hex[:12]}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, body text, "
            f"embedding vector({vectors.shape[1]}))"
        )
        copy = f"COPY {name} (id, body, embedding) FROM STDIN WITH (FORMAT BINARY)"
        with connection.cursor() as cursor, cursor.copy(copy) as stream:
            stream.set_types(["int8", "text", "vector"])
            for number, vector in enumerate(vectors):
                stream.write_row((number, f"row {number}", vector))
        if index:
            connection.execute(f"CREATE INDEX ON {name} USING hnsw (embedding vector_cosine_ops)")
    return name


def begin_table(
    services: Services,
    server: PgvectorServer,
    vectors: np.ndarray,
    *,
    anchors: int = 120,
    text_field: str | None = "body",
) -> Table:
    """A new table as a store, with the encoders `old`, `new` and `other` in the set `pairs`."""
    if "main" not in services.stores.addresses:
        services.stores.addresses = {"main": StoreAddress(server.url, frozenset({PROJECT}))}
        factors = items(anchors, 5)
        rows = {"old": old(factors), "new": new(factors), "other": encode(factors, OLD_DIM, 7)}
        for name, made in rows.items():
            create_encoder(services, name, made.shape[1])
        anchor_sets.create_anchor_set(services, CONTEXT, name="pairs", embeddings=rows)
    table = make_table(server, vectors)
    place = {"kind": "pgvector", "address": "main", "collection": table}
    fields = {"vector_field": "embedding", "text_field": text_field}
    create_store(services, CONTEXT, NewStore(name=table, encoder="old", **place, **fields))
    return Table(services, server, table)


def begin_moving(
    services: Services, server: PgvectorServer, vectors: np.ndarray | None = None, **plan: Any
) -> Moving:
    """Plan a migration of a new table."""
    vectors = old_vectors(ROWS) if vectors is None else vectors
    usual = {"method": "ridge", "min_recall": 0.9, "batch": 100}
    return begin_table(services, server, vectors).plan(**{**usual, **plan})


def expected(moving: Moving, vectors: np.ndarray) -> np.ndarray:
    """The new vectors that an undisturbed run gives these old ones."""
    return moving.maps.forward.map_rows(vectors).vectors


def same(moving: Moving, vectors: np.ndarray) -> bool:
    """Whether the rows 0, 1, ... have the translations of these vectors."""
    found = moving.new_vectors()
    if set(found) != set(range(len(vectors))):
        return False
    rows = np.stack([found[each] for each in range(len(vectors))])
    return np.allclose(rows, expected(moving, vectors), atol=1e-5)


def use_a_poor_index(moving: Moving, table: str, probes: int | None = 5) -> None:
    """Replace the index of a table by one of lists, of which the store searches some."""
    with moving.connect() as connection:
        query = "SELECT indexname FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%hnsw%%'"
        [index] = connection.execute(query, [table]).fetchone()
        connection.execute(f"DROP INDEX {index}")
        connection.execute(
            f"CREATE INDEX {index} ON {table} USING ivfflat (embedding vector_cosine_ops) "
            f"WITH (lists = {ROWS})"
        )
    store = moving.now.row.store
    alter(
        moving.services,
        store,
        options={**store.options, "options": {"probes": probes} if probes else {}},
    )
