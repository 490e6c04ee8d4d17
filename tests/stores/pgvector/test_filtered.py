"""Stores of some rows of a table: the others are neither seen nor touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest

from app import errors
from app.stores.pgvector.store import CHEAP_COST
from app.stores.port import Search
from tests.stores.pgvector.tables import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    Table,
    sweep,
    text,
    translate,
    translate_back,
    vectors_of,
)
from tests.waiting import until

MINE = {"tenant": 7, "kind": "it's"}


@pytest.fixture
def shared(new_table: Any) -> Table:
    """A table without a declared size: 30 rows of one tenant, and 20 longer ones of another."""
    table: Table = new_table()
    table.execute(
        "CREATE TABLE {t} (id bigint PRIMARY KEY, body text, tenant int, kind text, "
        "touched int DEFAULT 0, embedding vector NOT NULL)"
    )
    table.execute(
        "CREATE FUNCTION {s}.touch() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.touched = OLD.touched + 1; RETURN NEW; END $$"
    )
    table.execute(
        "CREATE TRIGGER touch BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.touch()"
    )
    for each, vector in enumerate(vectors_of(30)):
        add(table, each, 7, "it's", vector)
    for each in range(100, 120):
        add(table, each, 8, "it's", np.arange(9) + each)
    add(table, 200, 7, "other", np.ones(5))
    return table


def add(table: Table, id: int, tenant: int, kind: str, vector: Any) -> None:
    table.execute(
        "INSERT INTO {t} (id, body, tenant, kind, embedding) VALUES (%s, %s, %s, %s, %s)",
        [id, f"body {id}", tenant, kind, text(vector)],
    )


def others(table: Table) -> list[Any]:
    return table.execute(
        "SELECT t::text, xmin::text FROM {t} t WHERE tenant = 8 OR kind = 'other' ORDER BY id"
    )


def test_a_store_sees_and_moves_only_its_rows(shared: Table) -> None:
    before, written = others(shared), vectors_of(30)
    store = shared.store(options={"where": MINE}, text_field="body")
    facts = store.facts()
    assert (facts.rows, facts.dim, facts.can_migrate) == (30, OLD_DIM, True)
    assert len(store.sample(50).ids) == 30
    assert store.fetch([5, 100, 200]).ids == [5]
    assert list(store.texts([5, 100])) == ["body 5", None]
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    assert migration.count() == 30
    wanted = Search(translate(None, written[:1]), 3, side="new", filter={"id": {"$gte": 0}})
    assert store.search(wanted)[0].ids[0] == 0
    add(shared, 31, 7, "it's", written[3])  # and clients write meanwhile
    shared.execute("UPDATE {t} SET embedding = %s WHERE id = 4", [text(written[5])])
    shared.execute("DELETE FROM {t} WHERE id = 6")
    contents = shared.contents()
    migration.cutover(translate)
    assert shared.contents() == contents  # a client's trigger has touched nothing
    page = store.scroll(None, 100, "new")
    found = dict(zip(page.ids, page.vectors, strict=True))
    assert found.keys() == {*range(30), 31} - {6}
    for id, vector in ((0, written[0]), (4, written[5]), (31, written[3])):
        assert np.allclose(found[id], translate(None, vector), atol=1e-5)
    assert store.search(Search(translate(None, written[:1]), 1, side="new"))[0].ids == [0]
    theirs = shared.store(options={"where": {"tenant": 8}})  # which is not cut over
    assert (theirs.facts().rows, len(theirs.scroll(None, 50).ids)) == (20, 20)
    with pytest.raises(errors.StoreRefused, match=f"{TAG}, is in progress on the table"):
        theirs.migration("0decade5", 12).prepare()
    add(shared, 32, 7, "it's", translate(None, written[8]))
    migration.rollback(translate_back)
    page = store.scroll(None, 100, "old")
    found = dict(zip(page.ids, page.vectors, strict=True))
    assert np.allclose(found[32], written[8], atol=1e-5)
    assert np.array_equal(found[0], written[0])
    migration.cutover(translate)
    migration.finish()
    assert (store.facts().rows, store.facts().dim) == (31, NEW_DIM)
    assert others(shared) == before
    assert shared.traces() == []
    shared.execute("UPDATE {t} SET body = 'x' WHERE id = 0 AND touched = 0")
    assert shared.execute("SELECT touched FROM {t} WHERE id = 0") == [(1,)]


def test_vectors_of_before_a_switch_are_refused_in_rows_of_the_store_alone(shared: Table) -> None:
    store = shared.store(options={"where": MINE})
    sweep(store, migration := store.migration(TAG, NEW_DIM))
    old, update = vectors_of(1)[0], "UPDATE {t} SET tenant = %s, embedding = %s WHERE id = %s"
    new = translate(None, old[None])[0]

    def write(right: np.ndarray, wrong: np.ndarray) -> None:
        message = rf"expected {len(right)} dim.*\nHINT:  Embed the text again"
        refused = pytest.raises(psycopg.errors.DataException, match=message)
        with refused:
            add(shared, 33, 7, "it's", wrong)
        with shared.connect() as connection, refused:
            shared.on(connection, "SET session_replication_role = replica")
            shared.on(connection, update, [7, text(wrong), 100])
        shared.execute(update, [7, text(right), 5])
        shared.execute(update, [8, text(wrong), 100])

    migration.cutover(translate)
    write(new, old)
    triggers = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = '{t}'::regclass"
    assert "tenant = 7" in str(shared.execute(triggers))  # which no setting of a client changes
    migration.rollback(translate_back)
    write(old, new)
    migration.cutover(translate)
    shared.execute("ALTER TABLE {t} DISABLE TRIGGER anchorage_capture_size")
    add(shared, 33, 7, "it's", old)
    for refused in (migration.finish, lambda: migration.rollback(translate_back)):
        with pytest.raises(errors.DimensionMismatch, match=rf"than {NEW_DIM}: 33 \(4\)") as caught:
            refused()
    statement = str(caught.value).partition("All of them: ")[2]
    assert shared.execute(statement.replace("{", "{{")) == [(33, OLD_DIM)]
    shared.execute("DELETE FROM {t} WHERE id = 33")
    migration.finish()
    assert shared.traces() == []


def test_after_a_rollback_a_column_without_a_size_refuses_new_vectors(new_table: Any) -> None:
    table: Table = new_table()
    table.execute("CREATE TABLE {t} (id bigint PRIMARY KEY, body text, embedding vector)")
    table.insert([(1, "old", text(vectors_of(1)[0]))])
    sweep(store := table.store(), migration := store.migration(TAG, NEW_DIM))
    for _ in range(2):
        migration.cutover(translate)
        migration.rollback(translate_back)
        with pytest.raises(psycopg.errors.DataException, match=f"expected {OLD_DIM} dimensions"):
            table.insert([(2, "new", text(translate(None, vectors_of(1))[0]))])
    migration.abandon()
    assert table.traces() == []


def test_an_abandoned_migration_of_some_rows_leaves_the_table_as_it_was(shared: Table) -> None:
    dump = "SELECT t::text, xmin::text FROM {t} t ORDER BY id"
    before = shared.execute(dump)
    store = shared.store(options={"where": MINE})
    (migration := store.migration(TAG, NEW_DIM)).prepare()
    assert store.fetch([1], "new").ids == []  # a search asks before the first row is written
    sweep(store, migration)
    migration.abandon()
    assert shared.execute(dump) == before
    assert shared.traces() == []


def test_a_filtered_migration_is_refused_where_the_column_or_an_index_has_a_size(
    shared: Table, table: Table
) -> None:
    shared.execute(
        f"CREATE INDEX sized ON {{t}} USING hnsw ((embedding::vector({OLD_DIM})) vector_cosine_ops)"
        " WHERE tenant = 7 AND kind = 'it''s'"
    )
    with pytest.raises(errors.StoreUnsupported, match="sized"):
        shared.store(options={"where": MINE}).migration(TAG, NEW_DIM).prepare()
    declared = table.store(options={"where": {"body": "body 3"}})
    assert declared.facts().rows == 1
    with pytest.raises(errors.StoreUnsupported, match=f"declares {OLD_DIM} dimensions"):
        declared.migration(TAG, NEW_DIM).prepare()
    with pytest.raises(errors.StoreUnsupported, match=f"declares {OLD_DIM} dimensions"):
        declared.require_dim(NEW_DIM)  # which a plan asks
    assert table.traces() == shared.traces() == []


@pytest.mark.parametrize(
    "where",
    [{"no": 1}, {"id": "%"}, {"embedding": "[1]"}, ["id"], {"id": [7]}, {"id": None}, {"id": "1;"}],
)
def test_a_filter_that_compares_no_column_with_a_value_is_refused(shared: Any, where: Any) -> None:
    read = where == {"id": "1;"}  # by PostgreSQL, as a value and not as SQL
    error = errors.InvalidFilter if read else errors.InvalidOption
    with pytest.raises(error, match="22P02" if read else "tenant, kind"):
        shared.store(options={"where": where}).facts()


def test_a_column_with_vectors_of_several_sizes_names_them(shared: Table) -> None:
    with pytest.raises(errors.StoreUnsupported, match=r"dimensions: 30 of 4, 20 of 9, 1 of 5\."):
        shared.store().facts()


@pytest.mark.parametrize(
    ("expression", "operators"),
    [
        (f"(embedding::halfvec({OLD_DIM}))", "halfvec_ip_ops"),
        (f"(binary_quantize(embedding)::bit({OLD_DIM}))", "bit_hamming_ops"),
    ],
)
def test_an_index_of_an_expression_is_searched_and_moved(
    new_table: Any, expression: str, operators: str
) -> None:
    table: Table = new_table().fill(3000)
    table.execute("DROP INDEX {s}.docs_embedding_idx")
    table.execute(f"CREATE INDEX one ON {{t}} USING hnsw ({expression} {operators})")
    table.execute("ANALYZE {t}")
    url = f"{table.url}&options=-c%20enable_seqscan%3Doff"  # so few rows need no index
    store = table.store(options={"ef_search": 400}, url=url)
    assert (store.facts().indexed, store.facts().can_migrate) == (True, True)

    def scans_and_finds(queries: np.ndarray, side: Any) -> None:
        scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelid = '{s}.one'::regclass"
        before = table.execute(scans)
        exact = store.search(Search(queries, 40, side=side, exact=True))[0]
        found = store.search(Search(queries, 40, side=side))[0]
        assert len({*exact.ids} & {*found.ids}) > 8  # four signs tell few rows apart
        assert found.scores == sorted(found.scores, reverse=True)
        store.close()  # a session counts its scans when it ends
        until(lambda: table.execute(scans) != before, 15)

    scans_and_finds(vectors_of(1), "old")
    sweep(store, migration := store.migration(TAG, NEW_DIM), 1000)
    migration.cutover(translate)
    [(definition,)] = table.execute("SELECT pg_get_indexdef('{s}.one'::regclass)")
    assert f"({NEW_DIM})" in definition
    scans_and_finds(translate(None, vectors_of(1)), "new")
    migration.rollback(translate_back)
    migration.abandon()
    assert str(OLD_DIM) in table.execute("SELECT pg_get_indexdef('{s}.one'::regclass)")[0][0]


@pytest.mark.parametrize("cheap_cost", [CHEAP_COST, 0])
def test_a_filter_finds_k_rows_far_from_the_query(
    new_table: Any, cheap_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.stores.pgvector.store.CHEAP_COST", cheap_cost)
    table: Table = new_table().fill()
    near = np.tile([1, 0, 0, 0], (3000, 1)) + np.random.default_rng(2).normal(size=(3000, 4)) / 20
    table.insert((1000 + each, "near", text(row)) for each, row in enumerate(near))
    table.insert((5000 + each, "far", text([-1, 0, 0.01 * each, 0])) for each in range(12))
    store = table.store()
    hits = store.search(Search(np.array([[1, 0, 0, 0]], np.float32), 10, filter={"body": "far"}))[0]
    assert list(hits.ids) == list(range(5011, 5001, -1))
