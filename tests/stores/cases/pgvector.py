"""A table with an HNSW index, which clients use by psycopg and the package pgvector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql

from app.stores.port import StoreId, StoreLocation
from tests.pgvector_server import pgvector_server_of_process
from tests.stores.cases.base import LiveStoreCase, Rows


class PgvectorCase(LiveStoreCase):
    kind = "pgvector"

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        schema = f"s_{uuid4().hex[:12]}"
        url = pgvector_server_of_process().url
        location = StoreLocation("pgvector", url, f"{schema}.items", text_field="text")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{schema}"')
            connection.execute(
                f"CREATE TABLE {location.collection} (id bigint PRIMARY KEY, text text NOT NULL, "
                f"payload jsonb, embedding vector({rows.vectors.shape[1]}) NOT NULL)"
            )
        self.insert(location, rows)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                f"CREATE INDEX ON {location.collection} USING hnsw (embedding vector_cosine_ops) "
                "WITH (m = 8, ef_construction = 32)"
            )
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        statement = sql.SQL(
            "INSERT INTO {} (id, text, payload, embedding) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (id) DO UPDATE SET (text, payload, embedding) = "
            "(excluded.text, excluded.payload, excluded.embedding)"
        ).format(sql.SQL(location.collection))
        with self._connect(location) as connection:
            for each, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True):
                values = (each, payload["text"], psycopg.types.json.Jsonb(payload), vector)
                connection.execute(statement, values)

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with self._connect(location) as connection:
            table = sql.SQL(location.collection)
            connection.execute(sql.SQL("DELETE FROM {} WHERE id = ANY(%s)").format(table), [[*ids]])

    def change_text(self, location: StoreLocation, id: StoreId, text: str) -> None:
        with self._connect(location) as connection:
            table = sql.SQL(location.collection)
            change = sql.SQL("UPDATE {} SET text = %s WHERE id = %s").format(table)
            connection.execute(change, [text, id])

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        with self._connect(location) as connection:
            rows = connection.execute(
                sql.SQL("SELECT * FROM {}").format(sql.SQL(location.collection))
            ).fetchall()
            assert all(row[1] == row[2]["text"] for row in rows)
            return {row[0]: (row[3].to_numpy(), row[2]) for row in rows}

    def remove(self, location: StoreLocation) -> None:
        schema = location.collection.partition(".")[0]
        with psycopg.connect(location.url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "{schema}" CASCADE')

    def _connect(self, location: StoreLocation) -> psycopg.Connection[Any]:
        connection = psycopg.connect(location.url)
        register_vector(connection)
        return connection
