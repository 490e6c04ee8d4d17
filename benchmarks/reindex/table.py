"""The table: loaded by binary COPY, with an HNSW index, and compared row for row."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.reindex.rows import Collection
from benchmarks.reindex.vectors import DIM

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
    f"CREATE INDEX items_embedding ON items USING hnsw (embedding vector_cosine_ops) "
    f"WITH (m = {M}, ef_construction = {EF_CONSTRUCTION})"
)


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
