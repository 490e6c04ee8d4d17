"""What tests do to databases: empty them, and what a restart does to their connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from app.db import tables
from app.db.session import Database


def change(db: Database, function: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
    """What a query returns in a transaction of its own."""
    with db.transaction() as session:
        return function(session, *arguments, **values)


def delete_all(db: Database) -> None:
    """Delete every row."""
    order = list(reversed(tables.Base.metadata.sorted_tables))
    if db.url.drivername.startswith("postgresql"):
        # At once: a busy machine pauses between statements, and the service ends idle transactions.
        url = db.url.set(drivername="postgresql").render_as_string(False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(";".join(f"DELETE FROM {table.name}" for table in order))  # noqa: S608
        return
    with db.transaction() as session:
        for table in order:
            session.execute(table.delete())


def end_connections(db: Database) -> None:
    """End every connection to the database."""
    with psycopg.connect(
        db.url.set(drivername="postgresql").render_as_string(False), autocommit=True
    ) as connection:
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database()"
        )
        connection.execute(f"{others} AND pid <> pg_backend_pid()")


@contextmanager
def closed(db: Database) -> Iterator[None]:
    """End every connection to the database, and let nobody connect for the time being."""
    admin = db.url.set(drivername="postgresql", database="postgres").render_as_string(False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{db.url.database}" ALLOW_CONNECTIONS false')
        try:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (db.url.database,),
            )
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{db.url.database}" ALLOW_CONNECTIONS true')
