"""A table in PostgreSQL whose rows a test moves to another encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg.rows import TupleRow

from app.access.name_lookup import find_by_name
from app.anchors import service as anchor_sets
from app.context import Services
from app.db import tables
from app.errors import NotFound
from app.jobs import worker as runner
from app.jobs.leases import Leases
from app.moves import service as migrations
from app.moves.maps import MigrationMaps, build_maps, load_maps
from app.stores.handles import StoreAddress
from app.translate.fit import FitRequest
from app.types import MigrationState
from tests.helpers import CONTEXT, PROJECT, again, alter, create_encoder, some
from tests.pgvector_server import PgvectorServer
from workers.main import RUNNERS

OLD_DIM, NEW_DIM, ROWS = 12, 8, 1200

#: relates the two encoders, but for a little noise
LINEAR = some(OLD_DIM, NEW_DIM, 3)


def old_vectors(count: int, seed: int = 20) -> np.ndarray:
    """Unit vectors of the old encoder."""
    found = some(count, OLD_DIM, seed).numpy()
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@dataclass(frozen=True)
class Moving:
    """A migration of a table, and the table as its clients see it."""

    services: Services
    server: PgvectorServer
    table: str
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

    def new_vectors(self) -> dict[int, np.ndarray]:
        """The new vectors, read by the connector."""
        from app.moves.context import open_migration

        move, found, cursor = open_migration(self.services, self.now.row), {}, None
        while True:
            page = move.store.scroll(cursor, 500, "new")
            found |= dict(zip(page.ids, page.vectors, strict=True))
            if (cursor := page.cursor) is None:
                return found

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

    def search_little(self) -> None:
        """Let the store's searches look into five lists of an ivfflat index."""
        store = self.now.row.store
        alter(self.services, store, options={**store.options, "options": {"probes": 5}})

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


def make_encoders(services: Services) -> None:
    """Encoders `old` and `new` with 60 anchors in the set `pairs`, unless they exist."""
    try:
        find_by_name(services, tables.EncoderRow, PROJECT, "old", field="encoder")
    except NotFound:
        create_encoder(services, "old", OLD_DIM)
        create_encoder(services, "new", NEW_DIM)
        old = some(60, OLD_DIM)
        new = old @ LINEAR + 0.05 * some(60, NEW_DIM, 9)
        embeddings = {"old": old, "new": new}
        anchor_sets.create_anchor_set(services, CONTEXT, name="pairs", embeddings=embeddings)


def begin_moving(
    services: Services,
    server: PgvectorServer,
    vectors: np.ndarray | None = None,
    *,
    url: str | None = None,
    **plan: Any,
) -> Moving:
    """Plan a migration of a new table, as `POST /migrations` does, without its measurements."""
    vectors = old_vectors(ROWS) if vectors is None else vectors
    main = StoreAddress(url or server.url, frozenset({PROJECT}))
    addresses = {**services.stores.addresses, "main": main}
    services.stores.addresses = addresses
    make_encoders(services)
    table = make_table(server, vectors)
    built = build_maps(services, CONTEXT, FitRequest("old", "new", "pairs", "ridge", {}))
    with services.db.transaction() as session:
        named = {
            each: find_by_name(services, tables.EncoderRow, PROJECT, each, field="encoder").id
            for each in ("old", "new")
        }
        anchors = find_by_name(
            services, tables.AnchorSetRow, PROJECT, "pairs", field="anchor_set"
        ).id
        store = tables.StoreRow(
            project=PROJECT,
            name=table,
            kind="pgvector",
            address="main",
            collection=table,
            options={"vector_field": "embedding", "id_field": None, "text_field": "body"},
            encoder_id=named["old"],
        )
        session.add(store)
        session.flush()
        row = tables.MigrationRow(
            project=PROJECT,
            store_id=store.id,
            target_id=named["new"],
            anchor_set_id=anchors,
            state=MigrationState.planned,
            maps=built.digest,
            plan=plan_of(table, rows=len(vectors), **plan),
            position={},
            found={},
        )
        session.add(row)
        session.flush()
        session.refresh(row)
    return Moving(services, server, table, row)


def plan_of(store: str, **changes: Any) -> Mapping[str, Any]:
    usual = {
        "store": store,
        "source": "old",
        "target": "new",
        "anchor_set": "pairs",
        "dim": NEW_DIM,
        "estimate": {"recall": 0.9},
        "min_recall": 0.9,
        "re_embed": 0,
        "rows_per_second": None,
        "batch": 100,
    }
    return {**usual, **changes}


def expected(moving: Moving, vectors: np.ndarray) -> np.ndarray:
    """The new vectors that an undisturbed run gives these old ones."""
    return moving.maps.translate(vectors)


def same(moving: Moving, vectors: np.ndarray) -> bool:
    """Whether the rows 0, 1, ... have the translations of these vectors."""
    found = moving.new_vectors()
    if set(found) != set(range(len(vectors))):
        return False
    rows = np.stack([found[each] for each in range(len(vectors))])
    return np.allclose(rows, expected(moving, vectors), atol=1e-5)
