"""What PostgreSQL has beside a table: it is named before a migration, or moves with it."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import StoreUnsupported
from tests.stores.pgvector.tables import NEW_DIM, OLD_DIM, TAG, Table, begin, translate_back


def test_views_functions_and_triggers_that_mention_the_vectors_are_named(table: Table) -> None:
    assert table.store().facts().notes == ()
    table.execute(
        f"CREATE VIEW {{s}}.near AS SELECT id FROM {{t}} WHERE embedding <=> "  # noqa: S608
        f"'[1,2,3,4]'::vector({OLD_DIM}) < 1"
    )
    table.execute(
        "CREATE FUNCTION {s}.match_docs(q vector) RETURNS SETOF bigint LANGUAGE sql AS "
        "$$ SELECT id FROM {t} ORDER BY embedding <=> q LIMIT 3 $$"
    )
    table.execute(
        "CREATE FUNCTION {s}.fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"NEW.embedding = '[1,2,3,4]'::vector({OLD_DIM}); RETURN NEW; END $$"
    )
    table.execute(
        "CREATE TRIGGER fills BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.fill()"
    )
    table.execute(
        'CREATE FUNCTION {s}."made (up)"() RETURNS vector LANGUAGE sql AS '
        f"$$ SELECT '[1,2,3,4]'::vector({OLD_DIM}) $$"
    )
    table.execute(
        "CREATE FUNCTION {s}.calls() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        'NEW.embedding = {s}."made (up)"(); RETURN NEW; END $$'
    )
    table.execute(
        "CREATE TRIGGER calls BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.calls()"
    )
    table.execute(
        f"CREATE POLICY near ON {{t}} USING (embedding <> '[1,2,3,4]'::vector({OLD_DIM}))"
    )
    facts = table.store().facts()
    found = {note.detail.split(" names")[0]: note.code for note in facts.notes}
    assert found == {
        f"The view {table.schema}.near": "mentions-vectors",
        f"The function {table.schema}.match_docs(vector)": "mentions-table",
        f"The trigger fills, which runs {table.schema}.fill()": "old-size-trigger",
        f"The trigger calls, which runs {table.schema}.calls()": "old-size-trigger",
        "The policy near": "mentions-vectors",
    }
    assert facts.can_migrate
    table.execute("ALTER TABLE {t} DISABLE TRIGGER fills")
    table.execute("DROP TRIGGER calls ON {t}")
    assert "old-size-trigger" not in {note.code for note in table.store().facts().notes}


def test_a_publication_is_refused_by_name(table: Table) -> None:
    table.execute("CREATE PUBLICATION sends_{s} FOR TABLE {t}")
    facts = table.store().facts()
    assert not facts.can_migrate
    assert f"sends_{table.schema}" in facts.notes[0].detail
    table.execute("DROP PUBLICATION sends_{s}")


def test_a_column_that_is_generated_when_it_is_read_moves(new_table: Any) -> None:
    columns = "id bigint PRIMARY KEY, body text, mark uuid DEFAULT uuidv7(), "
    columns += "loud text GENERATED ALWAYS AS (upper(body)) VIRTUAL"
    table = new_table().fill(columns=columns)
    store, migration = begin(table, cut_over=True)
    assert store.facts().dim == NEW_DIM
    migration.rollback(translate_back)
    migration.abandon()
    assert table.execute("SELECT loud FROM {t} WHERE id = 3") == [("BODY 3",)]


@pytest.mark.parametrize(
    "constraint",
    [
        "UNIQUE (part, valid WITHOUT OVERLAPS)",
        "EXCLUDE USING gist (valid WITH &&)",
        "CHECK (id > 0) NOT ENFORCED",
    ],
)
def test_a_constraint_that_cannot_move_is_refused_by_name(new_table: Any, constraint: str) -> None:
    columns = "id bigint UNIQUE NOT NULL, body text, part int4range DEFAULT '[0,9)', "
    columns += f"valid int4range DEFAULT '[0,9)', CONSTRAINT spans {constraint}"
    table = new_table().fill(1, columns=columns)
    assert not table.store().facts().can_migrate
    with pytest.raises(StoreUnsupported, match="spans"):
        table.store().migration(TAG, NEW_DIM).prepare()


def test_a_partitioned_table_and_its_parts_get_a_sentence_that_is_true(new_table: Any) -> None:
    table: Table = new_table()
    table.execute(
        f"CREATE TABLE {{t}} (id bigint PRIMARY KEY, embedding vector({OLD_DIM})) "
        "PARTITION BY RANGE (id)"
    )
    table.execute("CREATE TABLE {s}.part PARTITION OF {t} FOR VALUES FROM (0) TO (9)")
    table.execute("INSERT INTO {t} VALUES (1, '[1,2,3,4]')")
    note, *_ = table.store().facts().notes
    assert "copy its rows into one table" in note.detail
