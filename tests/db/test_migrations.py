"""The migrations, run on real databases of both kinds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from app.db import tables
from app.db.session import Database, SchemaOutdated, alembic_config
from tests.waiting import until

#: the advisory lock that migrations/env.py takes
LOCK = 4_126_077_329
ROOT = Path(__file__).parents[2]


def look(url: str, function: Callable[[Connection], Any]) -> Any:
    engine = create_engine(url)
    with engine.begin() as connection:
        found = function(connection)
    engine.dispose()
    return found


def difference(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": True}
    )
    return list(compare_metadata(context, tables.Base.metadata))


def test_of_two_migrations_at_the_same_moment_one_waits_for_the_other(postgres_url):
    script = "import sys; from app.db.session import Database; Database(sys.argv[1]).upgrade()"
    # Both are held up before the first table until both stand there.
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        both = [
            subprocess.Popen(
                [sys.executable, "-c", script, postgres_url],
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        waiting = (
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE locktype = 'advisory' AND NOT granted AND objid = %s "
            "AND datname = current_database()"
        )
        lock = (LOCK & 0xFFFFFFFF,)
        until(lambda: gate.execute(waiting, lock).fetchone() == (2,))
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert look(postgres_url, difference) == []


def test_a_schema_of_another_version_is_refused(database_url):
    db = Database(database_url)
    with pytest.raises(SchemaOutdated, match="anchorage db upgrade"):
        db.require_schema()
    db.upgrade()
    db.require_schema()
    with db.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for call in (db.require_schema, db.upgrade):
        with pytest.raises(SchemaOutdated, match="9999"):
            call()
    db.close()


#: each revision that landed, with its file's digest: a database that has it is never altered again
LANDED = {"0001_schema.py": "68187416748767de", "0002_anchor_sets.py": "84d0259a429da984"}


def test_a_revision_that_landed_is_never_edited():
    folder = ROOT / "migrations" / "versions"
    found = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest()[:16] for file in LANDED}
    assert found == LANDED, "a change of the tables needs a revision of its own"


ROW = (
    "INSERT INTO anchor_sets (id, project, name, size, created_at) "
    "VALUES ('1', 'p', 'a', 2, '2026-11-28')"
)
#: what other databases of revision 0001 have, or lack
DROPPED = [f"ALTER TABLE anchor_sets ADD COLUMN {each}" for each in ("roles JSON", "pairs TEXT")]
OLDER = ["DROP TABLE aliases", "CREATE TABLE aliases (id VARCHAR(32), model VARCHAR(400))"]


@pytest.mark.parametrize("changes", [DROPPED, [], OLDER])
def test_a_database_that_landed_as_revision_0001_is_upgraded_or_refused(database_url, changes):
    command.upgrade(alembic_config(database_url), "0001")
    look(database_url, lambda conn: [conn.execute(text(each)) for each in (*changes, ROW)])
    db = Database(database_url)
    if changes is OLDER:
        with pytest.raises(SchemaOutdated, match="begin with an empty database"):
            db.upgrade()
        assert db.revisions() == {"0001"}
    else:
        db.upgrade()
        assert look(database_url, difference) == []
    names = text("SELECT name, size FROM anchor_sets")
    assert look(database_url, lambda conn: conn.execute(names).all()) == [("a", 2)]
    db.close()
