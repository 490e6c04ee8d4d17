"""isotrieve 0.4.0 on the same table, for a fixed time.

It runs in an interpreter of its own, because its versions of libraries are not ours:

    python3 -m venv PATH && PATH/bin/pip install 'isotrieve[pgvector]==0.4.0'
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reindex.postgres import Database, lsn
from benchmarks.reindex.table import TABLE
from benchmarks.reindex.vectors import Vectors

#: its own default of a batch; `dsn` is not used because psycopg 3 refuses that name
SCRIPT = """
import sys
import numpy as np
from isotrieve import RidgeMapping
from isotrieve.adapters.pgvector import PgvectorAdapter

anchors, host, name, table = sys.argv[1:]
with np.load(anchors) as pairs:
    mapping = RidgeMapping().fit(pairs["source"], pairs["target"])
PgvectorAdapter(mapping, host=host, dbname=name, table=table).migrate()
"""


def measure(
    python: Path, database: Database, anchors: tuple[Vectors, Vectors], seconds: float, folder: Path
) -> dict[str, Any]:
    """Rows that its `migrate` updates in a time, and what they cost. Its column is dropped."""
    pairs = folder / "pairs.npz"
    np.savez(pairs, source=anchors[0], target=anchors[1])
    connection = database.connect()
    rows = connection.execute("SELECT count(*) FROM items").fetchone()[0]
    wal, began = lsn(connection), time.monotonic()
    command = [str(python), "-c", SCRIPT, str(pairs), database.host, database.name, TABLE]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=seconds)
        if process.returncode:
            sys.exit(f"isotrieve failed:\n{errors.decode()[-2000:]}")
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    took = time.monotonic() - began
    written = lsn(connection) - wal
    done = connection.execute(
        "SELECT count(*) FROM items WHERE embedding_isotrieve_new IS NOT NULL"
    ).fetchone()[0]
    connection.execute("ALTER TABLE items DROP COLUMN IF EXISTS embedding_isotrieve_new")
    return {
        "version": "0.4.0",
        "seconds": took,
        "rows": done,
        "rows_per_second": done / took,
        "hours_for_all": rows / (done / took) / 3600 if done else None,
        "wal_bytes_per_row": written / done if done else None,
    }
