"""Through a pooler in transaction mode: its other clients get the same sessions next."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from app.stores.pgvector import PgvectorStore
from app.stores.port import Search, StoreLocation
from scripts.servers import Missing, pgbouncer
from tests.pgvector_server import PgvectorServer
from tests.stores.cases.pgvector import PgvectorCase
from tests.stores.moving import (
    NEW_DIM,
    TAG,
    fill_migration,
    rows,
    run_until_killed,
    same,
    translate,
    translate_back,
)
from tests.waiting import until

#: sessions that all clients share
SESSIONS = 2


@pytest.fixture
def pooler(pgvector_server: PgvectorServer, role: str) -> Iterator[str]:
    """The URL of a pooler, for a role without special rights. With CI=true it must be installed."""
    try:
        with pgbouncer(pgvector_server.home, pgvector_server.database, role, SESSIONS) as url:
            yield url
    except Missing as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


class Neighbour:
    """Another application on the same pool: it reads its settings, and a table of its rows."""

    def __init__(self, url: str, secrets: str) -> None:
        self._url, self._secrets = url, secrets
        self._first = self._read()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.readings, self.changed = 0, list[Any]()

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> set[tuple[str, str]]:
        with psycopg.connect(self._url, prepare_threshold=None) as connection:
            # a library has settings of its own once it is loaded
            query = "SELECT name, setting FROM pg_settings WHERE name !~ '\\.'"
            found = set(connection.execute(query).fetchall())
            query = f"SELECT count(*) FROM {self._secrets}"  # noqa: S608
            [(count,)] = connection.execute(query).fetchall()
            return found | {("visible rows", str(count))}

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            try:
                self.changed += self._read() - self._first
            except psycopg.Error as error:
                self.changed.append(error)
            self.readings += 1


def test_nothing_of_ours_stays_in_the_sessions_of_a_pooler(
    pgvector_server: PgvectorServer, role: str, pooler: str, tmp_path: Path
) -> None:
    case = PgvectorCase()
    written = rows(case, 60)
    direct = case.fill(tmp_path, written)
    schema = direct.collection.partition(".")[0]
    pgvector_server.execute(
        f"ALTER SCHEMA {schema} OWNER TO {role}",
        f"ALTER TABLE {direct.collection} OWNER TO {role}",
        f"CREATE TABLE {schema}.secrets AS SELECT generate_series(1, 10) AS id",
        f"ALTER TABLE {schema}.secrets ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY own ON {schema}.secrets USING (id <= 3)",
        f"GRANT SELECT ON {schema}.secrets TO {role}",
    )
    pooled = replace(direct, url=pooler)
    with Neighbour(pooler, f"{schema}.secrets") as neighbour:
        run_until_killed(pooled, 20, 2)
        _move(pooled, written.vectors)
        until(lambda: neighbour.readings > 20)
    assert neighbour.changed == []
    after = replace(written, vectors=translate(None, written.vectors))
    assert same(case.read(direct), after)
    case.remove(direct)


def _move(location: StoreLocation, vectors: np.ndarray) -> None:
    """A whole migration, with a search on each side of each step."""
    store = PgvectorStore(location)
    try:
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration)
        assert migration.requeue_different() == 0
        for step, by, queries in (
            (None, None, vectors),
            (migration.cutover, translate, translate(None, vectors)),
            (migration.rollback, translate_back, vectors),
            (migration.cutover, translate, translate(None, vectors)),
        ):
            if step is not None:
                step(by)
            side = "old" if queries is vectors else "new"
            [hits] = store.search(Search(queries[:1], 3, side=side))
            assert hits.ids[0] == 0
        migration.finish()
    finally:
        store.close()
