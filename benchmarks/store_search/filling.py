"""Fills real stores with Cranfield's documents, as their own clients do."""

from __future__ import annotations

from typing import Any

import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql

from benchmarks.synthetic import Matrix

#: the schema that the benchmark deletes and creates in the PostgreSQL that it is given
SCHEMA = "anchorage_store_search"


def fill_pgvector(url: str, collection: str, vectors: Matrix) -> dict[str, Any]:
    """Create a table with an HNSW index of cosines, and return the store's definition."""
    table = sql.Identifier(SCHEMA, collection)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(table))
        dim = sql.Literal(vectors.shape[1])
        connection.execute(
            sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY, embedding vector({}))").format(
                table, dim
            )
        )
        copy = sql.SQL("COPY {} (id, embedding) FROM STDIN WITH (FORMAT BINARY)").format(table)
        with connection.cursor().copy(copy) as rows:
            rows.set_types(["int8", "vector"])
            for row, vector in enumerate(vectors):
                rows.write_row((row, vector))
        connection.execute(
            sql.SQL("CREATE INDEX ON {} USING hnsw (embedding vector_cosine_ops)").format(table)
        )
        connection.execute(sql.SQL("ANALYZE {}").format(table))
    return {"kind": "pgvector", "collection": f"{SCHEMA}.{collection}"}


def drop_pgvector(url: str) -> None:
    """Delete what `fill_pgvector` created."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA))
        )
