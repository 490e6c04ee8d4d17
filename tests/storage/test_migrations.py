"""The migrations, run on a real file."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, select

from app.storage import tables
from app.storage.db import Database, alembic_config


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'test.db'}"


def look(url, function):
    engine = create_engine(url)
    with engine.connect() as connection:
        found = function(connection)
    engine.dispose()
    return found


def test_the_newest_schema_is_what_the_tables_say(url):
    command.upgrade(alembic_config(url), "head")

    def difference(connection):
        return compare_metadata(
            MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True}),
            tables.Base.metadata,
        )

    assert look(url, difference) == []
    assert {table.name for table in tables.Base.metadata.sorted_tables} <= set(look(url, lambda c: inspect(c).get_table_names()))


def test_every_constraint_has_the_name_the_tables_give_it(url):
    command.upgrade(alembic_config(url), "head")

    def constraints(connection):
        inspector = inspect(connection)
        return {
            table: {key["name"] for key in inspector.get_foreign_keys(table)}
            | {key["name"] for key in inspector.get_unique_constraints(table)}
            | {inspector.get_pk_constraint(table)["name"]}
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }

    found = look(url, constraints)
    for table in tables.Base.metadata.sorted_tables:
        assert len(found[table.name]) == len(table.constraints), table.name
        assert None not in found[table.name]


def test_down_to_nothing_and_up_again(url):
    config = alembic_config(url)
    command.upgrade(config, "head")
    before = look(url, lambda c: sorted(inspect(c).get_table_names()))
    command.downgrade(config, "base")
    assert look(url, lambda c: inspect(c).get_table_names()) == ["alembic_version"]
    command.upgrade(config, "head")
    assert look(url, lambda c: sorted(inspect(c).get_table_names())) == before


def test_migrating_twice_changes_nothing_and_keeps_rows(url):
    db = Database(url)
    db.migrate()
    with db.transaction() as session:
        session.add(tables.Encoder(name="e", kind="external", dim=2, modality="text"))
    db.migrate()
    with db.transaction() as session:
        assert session.scalars(select(tables.Encoder.name)).all() == ["e"]
    db.close()


def test_the_revisions_are_one_line(url):
    script = ScriptDirectory.from_config(alembic_config(url))
    assert len(script.get_heads()) == 1
    assert len(script.get_bases()) == 1
