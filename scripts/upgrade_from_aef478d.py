"""Upgrades a database of commit aef478d to the first schema that later versions migrate from.

    python scripts/upgrade_from_aef478d.py [DATABASE_URL]

Stop the API and all workers, and make a backup. Without a URL, the settings name the database.
"""

from __future__ import annotations

import sys

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    JSON,
    URL,
    Column,
    Connection,
    DateTime,
    String,
    column,
    select,
    table,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from app.settings import Settings
from app.storage.db import is_sqlite, make_engine, with_driver
from app.wiring import make_database

OLD, NEW = "0010", "0011"


def upgrade(url: str | URL) -> None:
    """Change the schema in one transaction. Raises SystemExit for a database of another version."""
    engine = make_engine(with_driver(url))
    try:
        with engine.connect() as connection:
            if is_sqlite(engine.url):
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")  # a table is copied
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            found = MigrationContext.configure(connection).get_current_heads()
            if found != (OLD,):
                raise SystemExit(f"Expected revision {OLD}, found {', '.join(found) or 'none'}.")
            _change(connection)
            connection.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": NEW})
            connection.commit()
    finally:
        engine.dispose()


def _change(connection: Connection) -> None:
    op = Operations(MigrationContext.configure(connection))
    lease: dict[str, TypeEngine[object]] = {
        "lease": String(32),
        "lease_until": DateTime(timezone=True),
    }
    renamed = {"claim": "lease", "claimed_until": "lease_until"}
    with op.batch_alter_table("idempotent_requests") as requests:
        for old, new in renamed.items():
            requests.alter_column(old, new_column_name=new, existing_type=lease[new], nullable=True)
    for name, kind in lease.items():
        op.add_column("reindexings", Column(name, kind))
    rows = table("reindexings", column("id"), column("position", JSON))
    for row_id, position in connection.execute(select(rows.c.id, rows.c.position)).all():
        rest = {name: each for name, each in position.items() if name != "held"}
        connection.execute(update(rows).where(rows.c.id == row_id).values(position=rest))


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else make_database(Settings()).url
    upgrade(url)
