"""A dump of any moment of a migration is restored, and the migration goes on from there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.pgvector_server import PgvectorServer
from tests.stores.pgvector.tables import (
    NEW_DIM,
    TAG,
    Table,
    sweep,
    text,
    translate,
    translate_back,
    vectors_of,
)
from tests.stores.pgvector.test_migration import furnish, shape

ROLE = "dumped"


@pytest.fixture
def restore(
    pgvector_server: PgvectorServer, tmp_path: Path
) -> Iterator[Callable[[Table, str], Table]]:
    """Dumps the schema of a table, and restores it in a new database."""
    binaries = Path(pgvector_server._initdb).parent
    made: list[str] = []

    def run(table: Table, moment: str) -> Table:
        name, dump = f"restored_{table.schema}_{moment}", str(tmp_path / moment)
        pgvector_server.execute(f"CREATE DATABASE {name}")
        made.append(name)
        restored = Table.__new__(Table)  # its schema comes with the dump
        restored.__dict__ |= {
            **table.__dict__,
            "url": table.url.replace("/postgres?", f"/{name}?"),
            "opened": [],
        }
        restored.execute("CREATE EXTENSION vector")
        subprocess.run(
            [binaries / "pg_dump", "-Fc", "-n", table.schema, "-f", dump, table.url], check=True
        )
        subprocess.run([binaries / "pg_restore", "-1", "-e", "-d", restored.url, dump], check=True)
        return restored

    yield run
    for each in made:
        pgvector_server.execute(f"DROP DATABASE {each} WITH (FORCE)")
    pgvector_server.execute(f"DROP OWNED BY {ROLE} CASCADE")
    pgvector_server.execute(f"DROP ROLE {ROLE}")


def test_a_dump_of_each_moment_goes_on(
    new_table: Callable[..., Table], restore: Callable[[Table, str], Table]
) -> None:
    table = new_table()
    furnish(table, ROLE)
    table.execute("ALTER TABLE {t} ADD COLUMN gone int")  # its number is free in a dump
    table.execute("ALTER TABLE {t} DROP COLUMN gone")
    before, new = shape(table), text(np.arange(NEW_DIM))
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll(None, 10)
    migration.write(page.ids, translate(page.ids, page.vectors))

    filling = restore(table, "filling")
    filling.execute("UPDATE {t} SET body = 'late' WHERE id = 3")
    sweep(filling.store(), filling.store().migration(TAG, NEW_DIM))
    filling.store().migration(TAG, NEW_DIM).cutover(translate)
    assert filling.execute("SELECT body FROM {t} WHERE id = 3") == [("late",)]
    filling.store().migration(TAG, NEW_DIM).finish()
    assert (filling.traces(), shape(filling)) == ([], before)

    sweep(store, migration)
    migration.cutover(translate)
    table.execute("UPDATE {t} SET embedding = %s WHERE id = 4", [new])  # waits
    after = restore(table, "after")
    after.execute("UPDATE {t} SET embedding = %s WHERE id = 5", [new])
    after.store().migration(TAG, NEW_DIM).rollback(translate_back)
    old = after.store().fetch(list(range(30))).vectors
    back = translate_back(None, np.arange(NEW_DIM, dtype=np.float32)[None])[0]
    assert np.allclose(old[[4, 5]], back, atol=1e-5)
    kept = [each for each in range(30) if each not in (4, 5)]
    assert np.array_equal(old[kept], vectors_of(30)[kept])
    assert shape(after) == before

    migration.rollback(translate_back)
    rolled = restore(table, "rolled")
    rolled.store().migration(TAG, NEW_DIM).abandon()
    assert (rolled.traces(), shape(rolled)) == ([], before)
    for each in (filling, after, rolled):
        for opened in each.opened:
            opened.close()
