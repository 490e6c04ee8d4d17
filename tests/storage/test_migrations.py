"""The migrations, run on real databases of both kinds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, create_engine, inspect, select, text

from app.storage import tables
from app.storage.db import Database, SchemaOutdated, alembic_config

#: the advisory lock that migrations/env.py takes
LOCK = 4_126_077_329
ROOT = Path(__file__).parents[2]
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


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


def names(connection: Connection) -> list[str]:
    return sorted(inspect(connection).get_table_names())


def test_the_newest_schema_is_what_the_tables_say(database_url):
    command.upgrade(alembic_config(database_url), "head")
    assert look(database_url, difference) == []
    assert {table.name for table in tables.Base.metadata.sorted_tables} <= set(
        look(database_url, names)
    )


def test_every_constraint_and_index_has_the_name_the_tables_give_it(database_url):
    command.upgrade(alembic_config(database_url), "head")

    def constraints(connection):
        inspector = inspect(connection)
        return {
            table: {key["name"] for key in inspector.get_foreign_keys(table)}
            | {key["name"] for key in inspector.get_unique_constraints(table)}
            | {inspector.get_pk_constraint(table)["name"]}
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }

    found = look(database_url, constraints)
    indices = look(
        database_url, lambda c: {t: {i["name"] for i in inspect(c).get_indexes(t)} for t in found}
    )
    for table in tables.Base.metadata.sorted_tables:
        assert len(found[table.name]) == len(table.constraints), table.name
        assert None not in found[table.name]
        assert {index.name for index in table.indexes} <= indices[table.name]


def test_each_step_down_and_up_again_ends_at_the_same_schema_with_the_same_jobs(database_url):
    config = alembic_config(database_url)
    command.upgrade(config, "head")
    before, db = look(database_url, names), Database(database_url)
    with db.transaction() as session:
        session.add(
            tables.JobRow(
                id="a", kind="bootstrap", state="queued", arguments={"x": 1}, lease="b" * 32
            )
        )
    db.close()
    for revision in ScriptDirectory.from_config(config).walk_revisions():
        command.downgrade(config, str(revision.down_revision or "base"))
        if revision.down_revision is None:
            assert look(database_url, names) == ["alembic_version"]
        else:
            assert look(
                database_url, lambda c: c.execute(text("SELECT id, state FROM jobs")).all()
            ) == [("a", "queued")]
        command.upgrade(config, "head")
        assert look(database_url, difference) == []
        assert look(database_url, names) == before


def put_old_heads(connection: Connection) -> None:
    columns = "id, project, name, kind, dim, classes, outputs, settings, blob, created_at"
    for name, settings in HEADS.items():
        values = (
            f"'{name}', 'default', '{name}', 'linear', 2, '[]', 2, "
            f"'{settings}', 'b', '2026-01-01 00:00:00'"
        )
        connection.execute(text(f"INSERT INTO heads ({columns}) VALUES ({values})"))  # noqa: S608


HEADS = {
    "native": "{}",
    "plain": '{"encode_power": 0.0, "ridge": null}',
    "whitened": '{"encode_power": 0.5, "ridge": null}',
    "told": '{"encode_power": 0.5, "ridge": 0.2}',
}


def test_a_relative_head_of_before_goes_on_reading_vectors_of_the_ridge_that_it_was_trained_with(
    database_url,
):
    command.upgrade(alembic_config(database_url), "0003")
    look(database_url, put_old_heads)
    db = Database(database_url)
    db.migrate()
    with db.transaction() as session:
        settings = {row.name: row.settings for row in session.scalars(select(tables.HeadRow))}
    db.close()
    assert {name: each.get("ridge") for name, each in settings.items()} == {
        "native": None,
        "plain": None,
        "whitened": 1.0,
        "told": 0.2,
    }


def put_old_jobs(connection: Connection) -> None:
    """A row of each state as revision 0001 had it."""
    schema = MetaData()
    schema.reflect(connection)
    common = {"project": "default", "kind": "bootstrap", "arguments": {"name": "s"}, "attempts": 2}
    common |= {"progress": {"done": 3, "total": 9}, "created_at": MOMENT}
    for state in ("queued", "running", "succeeded", "failed", "cancelled"):
        own = {"id": state, "state": state, "cancel_requested": state == "cancelled"}
        connection.execute(schema.tables["jobs"].insert(), {**common, **own})


def test_jobs_of_the_first_version_are_taken_along_in_every_state(database_url):
    command.upgrade(alembic_config(database_url), "0001")
    look(database_url, put_old_jobs)
    db = Database(database_url)
    db.migrate()
    with db.transaction() as session:
        rows = {row.id: row for row in session.scalars(select(tables.JobRow))}
    db.close()
    states = {job_id: row.state for job_id, row in rows.items()}
    # No lease holds the running one: its worker is one of before.
    assert states == {**{state: state for state in states}, "running": "queued"}
    assert len(rows) == 5
    for row in rows.values():
        assert (row.version, row.lease, row.lease_until, row.attempts) == (0, None, None, 2)
        assert row.due_at == row.created_at
        assert (row.arguments, row.progress) == ({"name": "s"}, {"done": 3, "total": 9})
    assert rows["queued"].created_at == MOMENT
    assert rows["cancelled"].cancel_requested is True


def test_migrating_twice_changes_nothing_and_keeps_rows(empty):
    with empty.transaction() as session:
        session.add(tables.EncoderRow(name="e", kind="external", dim=2, modality="text"))
    empty.migrate()
    with empty.transaction() as session:
        assert session.scalars(select(tables.EncoderRow.name)).all() == ["e"]


def test_of_two_migrations_at_the_same_moment_one_waits_for_the_other(postgres_url):
    script = "import sys; from app.storage.db import Database; Database(sys.argv[1]).migrate()"
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
        for _ in range(600):
            found = gate.execute(waiting, (LOCK & 0xFFFFFFFF,))
            if found.fetchone() == (2,):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("they never waited for each other")
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert look(postgres_url, difference) == []


@pytest.mark.parametrize("revision", ["base", "0001"])
def test_an_outdated_schema_is_refused_with_what_to_do(database_url, revision):
    db = Database(database_url)
    if revision != "base":
        command.upgrade(alembic_config(database_url), revision)
    with pytest.raises(SchemaOutdated, match="anchorage db upgrade"):
        db.require_schema()
    db.migrate()
    db.require_schema()
    db.close()


def put_old_translator(connection: Connection) -> None:
    """A set with two spaces, a translator and a contract, as revision 0007 had them."""
    schema = MetaData()
    schema.reflect(connection)
    common = {"project": "default", "created_at": MOMENT}

    def put(table: str, **values: Any) -> None:
        connection.execute(schema.tables[table].insert(), {**common, **values})

    for name in ("a", "b"):
        put("encoders", id=name, name=name, kind="external", dim=2, modality="text", options={})
    put("anchor_sets", id="s", name="s", size=3)
    for name in ("a", "b"):
        put("spaces", id=name, anchor_set_id="s", encoder_id=name, blob=name, health={})
    pair = {"source_id": "a", "target_id": "b"}
    put("translators", id="t", content="tr", method="ridge", options={}, used_at=MOMENT, **pair)
    put("contracts", id="c", min_quality={"recall": 0.5}, **pair)


def test_the_copy_of_a_table_keeps_the_rows_that_refer_to_it(database_url):
    """SQLite copies `spaces` to change its constraint, and would delete translators with it."""
    config = alembic_config(database_url)
    command.upgrade(config, "0007")
    look(database_url, put_old_translator)

    def rows(connection: Connection) -> list[str]:
        found = []
        for table in ("spaces", "translators", "contracts"):
            found += [table + row.id for row in connection.execute(text(f"SELECT id FROM {table}"))]  # noqa: S608
        return sorted(found)

    before = look(database_url, rows)
    assert len(before) == 4
    command.upgrade(config, "head")
    assert look(database_url, rows) == before
    db = Database(database_url)
    with db.transaction() as session:
        old = session.get_one(tables.SpaceRow, "a")
        assert (old.version, old.sample, old.anchor_set.version) == (1, None, 1)
        session.add(
            tables.SpaceRow(
                id="a2", anchor_set_id="s", encoder_id="a", version=2, blob="a2", health={}
            )
        )
        session.add(
            tables.SpaceRow(
                id="b2", anchor_set_id="s", encoder_id="b", version=2, blob="b2", health={}
            )
        )
        session.get_one(tables.AnchorSetRow, "s").version = 2
    db.close()
    command.downgrade(config, "0007")  # which has one version: the newest
    assert look(database_url, rows) == ["spacesa2", "spacesb2"]
    command.upgrade(config, "head")
    assert look(database_url, difference) == []
