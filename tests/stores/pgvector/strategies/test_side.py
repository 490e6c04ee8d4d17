"""Strategy `side`: what continues to work on the view, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import numpy as np
import psycopg
import pytest

from app.errors import StoreUnsupported, WrongState
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

NEW = text(np.arange(NEW_DIM))
OLD = text(translate_back(None, np.arange(NEW_DIM, dtype=np.float32)[None])[0])


@pytest.fixture
def moved(table: Table):
    """A table after a cutover."""
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    sweep(store, beside)
    beside.cutover(translate)
    return table, store, beside


def test_statements_of_clients_continue_to_work(moved) -> None:
    table, _, _ = moved
    assert table.execute("INSERT INTO {t} VALUES (100, 'new', %s) RETURNING id, body", [NEW]) == [
        (100, "new")
    ]
    [nearest] = table.execute(
        "SELECT id, body FROM {t} ORDER BY embedding <-> %s::vector LIMIT 1", [NEW]
    )
    assert nearest == (100, "new")
    assert table.execute("UPDATE {t} SET body = 'b' WHERE id = 100 RETURNING body") == [("b",)]
    assert table.execute("SELECT body FROM {t} WHERE id = 100 FOR UPDATE") == [("b",)]
    assert table.execute("DELETE FROM {t} WHERE id = 100 RETURNING id") == [(100,)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        table.execute("INSERT INTO {t} VALUES (1, 'double', %s)", [NEW])
    with pytest.raises(psycopg.errors.NotNullViolation):
        table.execute("INSERT INTO {t} VALUES (101, 'no vector', NULL)")
    with pytest.raises(psycopg.Error, match="dimensions"):
        table.execute("INSERT INTO {t} VALUES (101, 'old vector', '[1,2,3,4]')")
    with (
        table.connect() as connection,
        connection.cursor().copy(f"COPY {table.full} FROM STDIN") as copy,
    ):
        copy.write_row((102, "copied", NEW))
    assert table.execute("SELECT count(*) FROM {t}") == [(31,)]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {t} VALUES (1, 'x', '[1,2,3,4,5,6]') ON CONFLICT (id) DO NOTHING",
        "TRUNCATE {t}",
        "CREATE TABLE {s}.child (doc bigint REFERENCES {t})",
        "CREATE INDEX ON {t} (body)",
    ],
)
def test_what_a_view_does_not_do_is_an_error_and_noted(moved, statement: str) -> None:
    table, store, beside = moved
    before = store.checksum()
    with pytest.raises(psycopg.Error):
        table.execute(statement)
    assert store.checksum() == before
    beside.rollback(translate_back)
    [note] = [each for each in store.facts().notes if each.code == "view-after-cutover"]
    assert "ON CONFLICT" in note.detail


def test_a_lost_update_is_an_error(moved) -> None:
    table, _, _ = moved
    with table.connect() as first, table.connect() as second:
        first.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        table.on(first, "UPDATE {t} SET body = body || '1' WHERE id = 1")
        table.on(second, "UPDATE {t} SET body = body || '2' WHERE id = 2")
        second.execute("SET lock_timeout = '5s'")
        errors: list[Exception] = []

        def other() -> None:
            try:
                table.on(second, "UPDATE {t} SET body = body || '2' WHERE id = 1")
            except psycopg.Error as error:
                errors.append(error)

        thread = Thread(target=other)
        thread.start()
        with table.connect() as watcher:
            while not watcher.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                assert thread.is_alive()
        first.execute("COMMIT")
        thread.join()
    assert [type(each) for each in errors] == [psycopg.errors.SerializationFailure]
    assert table.execute("SELECT body FROM {t} WHERE id = 1") == [("body 11",)]


def test_not_null_and_the_old_index_are_back_after_a_rollback(moved) -> None:
    table, store, beside = moved
    table.execute("INSERT INTO {t} VALUES (100, 'new', %s)", [NEW])
    beside.rollback(translate_back)
    with pytest.raises(psycopg.errors.NotNullViolation):
        table.execute("INSERT INTO {t} VALUES (101, 'no vector', NULL)")
    [[vector]] = table.execute("SELECT embedding::text FROM {t} WHERE id = 100")
    assert np.allclose(
        np.fromstring(vector.strip("[]"), sep=","),
        np.fromstring(OLD.strip("[]"), sep=","),
        atol=1e-5,
    )
    beside.abandon()
    assert table.traces() == []
    assert store.facts().indexed


def test_rows_without_a_vector_stay_visible(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.execute("CREATE TABLE {t} (id int PRIMARY KEY, body text, embedding vector(4))")
    for each, vector in enumerate(vectors_of(6)):
        table.execute(
            "INSERT INTO {t} VALUES (%s, 'b', %s)", [each, None if each < 2 else text(vector)]
        )
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    sweep(store, beside)
    table.execute("UPDATE {t} SET embedding = NULL WHERE id = 5")
    table.execute("INSERT INTO {t} VALUES (6, 'c', NULL)")
    beside.cutover(translate)
    assert table.execute("SELECT id, embedding IS NULL FROM {t} ORDER BY id") == [
        (each, each in (0, 1, 5, 6)) for each in range(7)
    ]
    table.execute("UPDATE {t} SET embedding = NULL WHERE id = 4")
    table.execute("UPDATE {t} SET embedding = %s WHERE id = 6", [NEW])
    beside.rollback(translate_back)
    assert table.execute("SELECT id, embedding IS NULL FROM {t} ORDER BY id") == [
        (each, each in (0, 1, 4, 5)) for each in range(7)
    ]


@pytest.mark.parametrize("not_null", [True, False])
def test_rows_that_were_not_translated_stay_visible(table: Table, not_null: bool) -> None:
    if not not_null:
        table.execute("ALTER TABLE {t} ALTER COLUMN embedding DROP NOT NULL")
    table.execute("UPDATE {t} SET embedding = '[0,0,0,0]' WHERE id = 5")
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    beside.prepare()
    page = store.scroll(None, 100)
    kept = [place for place, each in enumerate(page.ids) if each != 5]
    vectors = translate(None, page.vectors[kept])
    beside.write([page.ids[place] for place in kept], vectors)
    beside.build_index()
    read = "SELECT embedding::text FROM {t} WHERE id = 5"
    empty = text([0] * NEW_DIM).replace(".0", "") if not_null else None
    for _ in range(2):
        beside.cutover(translate)
        assert table.execute("SELECT count(*) FROM {t}") == [(30,)]
        assert table.execute(read) == [(empty,)]
        beside.rollback(translate_back)
        assert table.execute(read) == [("[0,0,0,0]",)]
    beside.cutover(translate)
    beside.finish()
    assert table.execute("SELECT count(*) FROM {t}") == [(30,)]
    table.execute("UPDATE {t} SET embedding = %s WHERE id = 5", [NEW])
    assert table.execute(read) == [(NEW.replace(".0", ""),)]


def test_truncate_reaches_the_new_vectors(table: Table) -> None:
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    sweep(store, beside)
    table.execute("TRUNCATE {t}")
    table.execute("INSERT INTO {t} VALUES (1, 'again', %s)", [text(vectors_of(1, 5)[0])])
    beside.cutover(translate)
    assert table.execute("SELECT id FROM {t}") == [(1,)]
    assert beside.count() == 1


def test_views_grants_row_security_triggers_and_foreign_keys(
    new_table: Callable[..., Table],
) -> None:
    table = new_table()
    table.fill(columns="id bigint GENERATED BY DEFAULT AS IDENTITY (START WITH 500) PRIMARY KEY, "
               "tenant text NOT NULL DEFAULT 'a', body text, at int NOT NULL DEFAULT 0, "
               "double text GENERATED ALWAYS AS (body || body) STORED")  # fmt: skip
    role = f"reader_{table.schema}"
    try:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT USAGE ON SCHEMA {{s}} TO {role}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {{t}} TO {role}",
            "UPDATE {t} SET tenant = 'b' WHERE id % 2 = 0",
            "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY own ON {{t}} TO {role} USING (tenant = 'a')",
            "CREATE VIEW {s}.a WITH (security_invoker) AS SELECT id, body FROM {t} WHERE id < 10",
            "CREATE VIEW {s}.b WITH (security_barrier, security_invoker) AS SELECT * FROM {s}.a",
            f"GRANT SELECT ON {{s}}.a, {{s}}.b TO {role}",
            "CREATE TABLE {s}.child (doc bigint REFERENCES {t} ON DELETE CASCADE)",
            "CREATE FUNCTION {s}.touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "NEW.at = NEW.at + 1; RETURN NEW; END $$",
            "CREATE TRIGGER touch BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.touch()",
            "COMMENT ON TABLE {t} IS 'their comment'",
        ):
            table.execute(statement)
        store = table.store()
        checksum = store.checksum()
        beside = store.beside(TAG, NEW_DIM)
        sweep(store, beside)
        beside.cutover(translate)
        assert store.checksum() == checksum
        with psycopg.connect(table.server.url_of(role), autocommit=True) as reader:
            ids = [row[0] for row in table.on(reader, "SELECT id FROM {t}")]
            assert ids
            assert all(each % 2 for each in ids)
            [[new]] = table.on(
                reader,
                "INSERT INTO {t} (body, embedding) VALUES ('mine', %s) RETURNING id",
                [NEW],
            )
            assert new >= 500
            assert table.on(
                reader, "SELECT tenant, double, embedding::text FROM {t} WHERE id = %s", [new]
            ).fetchall() == [("a", "minemine", NEW.replace(".0", ""))]
            with pytest.raises(psycopg.Error):
                table.on(
                    reader,
                    "INSERT INTO {t} (tenant, body, embedding) VALUES ('b', 'x', %s)",
                    [NEW],
                )
            new_vectors = "TABLE {s}.anchorage_" + TAG + "_new"
            assert len(table.on(reader, new_vectors).fetchall()) == len(ids) + 1
            assert len(table.on(reader, "SELECT * FROM {s}.b").fetchall()) == 5
        table.execute("UPDATE {t} SET embedding = %s WHERE id = 1", [NEW])
        assert table.execute("SELECT at FROM {t} WHERE id = 1") == [(1,)]
        table.execute("INSERT INTO {s}.child VALUES (3)")
        table.execute("DELETE FROM {t} WHERE id = 3")
        assert table.execute("SELECT * FROM {s}.child") == []
        beside.rollback(translate_back)
        assert table.execute("SELECT at FROM {t} WHERE id = 1") == [(1,)]
        assert table.execute("SELECT count(*) FROM {s}.b") == [(9,)]
        assert table.execute("SELECT obj_description('{t}'::regclass)") == [("their comment",)]
        beside.cutover(translate)
        beside.finish()
        assert table.traces() == []
        assert table.execute("SELECT count(*) FROM {s}.b") == [(9,)]
        with psycopg.connect(table.server.url_of(role), autocommit=True) as reader:
            table.on(reader, "UPDATE {t} SET embedding = %s WHERE id = 5", [NEW])
        assert table.execute("SELECT at FROM {t} WHERE id = 5") == [(1,)]
    finally:
        table.execute(f"DROP OWNED BY {role} CASCADE")
        table.execute(f"DROP ROLE {role}")


def test_a_view_of_an_earlier_reindexing_can_be_reindexed_again(moved) -> None:
    table, store, beside = moved
    beside.finish()
    assert table.traces() == []
    checksum = store.checksum()
    tag = "00112233"
    again = store.beside(tag, 3)
    narrow = np.eye(NEW_DIM, 3, dtype=np.float32)
    again.prepare()
    page = store.scroll(None, 1000)
    again.write(page.ids, page.vectors @ narrow)
    again.build_index()
    table.execute("INSERT INTO {t} VALUES (200, 'late', %s)", [NEW])
    table.execute("DELETE FROM {t} WHERE id = 0")
    again.cutover(lambda ids, vectors: vectors @ narrow)
    assert store.facts().dim == 3
    table.execute("INSERT INTO {t} VALUES (201, 'later', '[1,2,3]')")
    again.rollback(lambda ids, vectors: np.ascontiguousarray(vectors @ narrow.T))
    assert store.facts().dim == NEW_DIM
    assert store.facts().rows == 31
    [[vector]] = table.execute("SELECT embedding::text FROM {t} WHERE id = 201")
    assert vector == "[1,2,3,0,0,0]"
    table.execute("DELETE FROM {t} WHERE id > 100")
    table.execute("INSERT INTO {t} VALUES (0, 'body 0', %s)", [NEW])
    again.cutover(lambda ids, vectors: vectors @ narrow)
    again.finish()
    assert table.traces(tag) == []
    assert store.facts().dim == 3
    assert store.facts().indexed
    assert store.checksum() == checksum


def test_steps_in_the_wrong_state_are_refused(table: Table) -> None:
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    sweep(store, beside)
    with pytest.raises(WrongState):
        beside.finish()
    beside.cutover(translate)
    with pytest.raises(WrongState):
        beside.abandon()


def test_a_view_with_its_owners_rights_is_an_obstacle(table: Table) -> None:
    role = f"reader_{table.schema}"
    table.execute(f"CREATE ROLE {role}")
    try:
        table.execute("CREATE VIEW {s}.v AS SELECT id FROM {t}")
        store = table.store()
        assert store.facts().strategies[0] == "side"
        table.execute(f"GRANT SELECT ON {{s}}.v TO {role}")
        assert "definer-views" in {each.code for each in store.facts().notes}
        assert "side" not in store.facts().strategies
    finally:
        table.execute(f"DROP OWNED BY {role} CASCADE")
        table.execute(f"DROP ROLE {role}")


def test_tables_that_cannot_become_a_view_are_refused(table: Table) -> None:
    table.execute("CREATE MATERIALIZED VIEW {s}.m AS SELECT * FROM {t}")
    store = table.store()
    facts = store.facts()
    assert facts.strategies == ()
    assert "materialized-views" in {each.code for each in facts.notes}
    with pytest.raises(StoreUnsupported, match="materialized view"):
        store.beside(TAG, NEW_DIM).prepare()
    assert table.traces() == []


@pytest.mark.parametrize("kind", ["ALWAYS", "BY DEFAULT"])
def test_identities_and_serials_continue(new_table: Callable[..., Table], kind: str) -> None:
    table = new_table()
    table.execute(
        f"CREATE TABLE {{t}} (id int GENERATED {kind} AS IDENTITY PRIMARY KEY, n serial, "
        "embedding vector(4))"
    )
    for vector in vectors_of(3):
        table.execute("INSERT INTO {t} (embedding) VALUES (%s)", [text(vector)])
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    sweep(store, beside)
    beside.cutover(translate)
    insert = "INSERT INTO {t} (embedding) VALUES (%s) RETURNING id, n"
    assert table.execute(insert, [NEW]) == [(4, 4)]
    assert table.execute("UPDATE {t} SET n = 9 WHERE id = 4 RETURNING id, n") == [(4, 9)]
    beside.rollback(translate_back)
    insert = "INSERT INTO {t} (embedding) VALUES ('[1,2,3,4]') RETURNING id, n"
    assert table.execute(insert) == [(5, 5)]
