"""The table: loaded by binary COPY, with an HNSW index, and compared row for row."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.migrate.rows import Collection
from benchmarks.migrate.vectors import DIM

TABLE = "items"
BATCH = 5_000

#: of the HNSW index
M, EF_CONSTRUCTION = 16, 64

CREATE = f"""
CREATE TABLE items (
    id bigint PRIMARY KEY,
    body text NOT NULL,
    corpus text NOT NULL,
    revision integer NOT NULL DEFAULT 0,
    embedding vector({DIM}) NOT NULL
)
"""
INDEX = (
    f"CREATE INDEX items_embedding ON items USING hnsw ((embedding::halfvec({DIM})) "
    f"halfvec_cosine_ops) WITH (m = {M}, ef_construction = {EF_CONSTRUCTION})"
)
#: as clients search by the index
HALF = f"halfvec({DIM})"
SEARCH = f"SELECT id FROM items ORDER BY embedding::{HALF} <=> %s::{HALF} LIMIT 10"  # noqa: S608


def fill(connection: Any, rows: Collection, count: int, encoder: str) -> dict[str, float]:
    """Create the table with rows 0 to `count` and its index; seconds of both."""
    connection.execute("DROP TABLE IF EXISTS items CASCADE")
    connection.execute(CREATE)
    began = time.perf_counter()
    names = "id, body, corpus, revision, embedding"
    with connection.cursor().copy(f"COPY items ({names}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["int8", "text", "text", "int4", "vector"])
        for start in range(0, count, BATCH):
            numbers = np.arange(start, min(start + BATCH, count))
            for row, vector in zip(numbers, rows.embed(encoder, numbers), strict=True):
                copy.write_row((int(row), rows.text(int(row)), rows.corpus(int(row)), 0, vector))
    loaded = time.perf_counter()
    connection.execute(INDEX)
    indexed = time.perf_counter()
    connection.execute("VACUUM ANALYZE items")
    connection.execute("CHECKPOINT")
    return {"load_s": loaded - began, "index_s": indexed - loaded}


def definitions(connection: Any) -> set[str]:
    """Columns, constraints, indexes and rights of the table, without what the vectors change."""
    rows = connection.execute(
        "SELECT format('%s %s %s %s', attnum, attname, format_type(atttypid, atttypmod), "
        "attnotnull) FROM pg_attribute WHERE attrelid = 'items'::regclass AND attnum > 0 "
        "UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = 'items'::regclass "
        "UNION ALL SELECT pg_get_indexdef(indexrelid) || indisvalid FROM pg_index "
        "WHERE indrelid = 'items'::regclass "
        "UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = 'items'::regclass "
        "UNION ALL SELECT concat('rights ', relacl, ' ', reloptions, relkind) FROM pg_class "
        "WHERE oid = 'items'::regclass"
    ).fetchall()
    return {row[0] for row in rows}


def leftovers(connection: Any) -> list[str]:
    """Names of the service's tables, indexes and functions in the database."""
    rows = connection.execute(
        "SELECT relname FROM pg_class WHERE relname ~ '^anchorage_' UNION ALL "
        "SELECT proname FROM pg_proc WHERE proname ~ '^anchorage_' ORDER BY 1"
    ).fetchall()
    return [row[0] for row in rows]
