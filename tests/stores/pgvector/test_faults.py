"""Faults of the server, of rights and of the table: clear stops, nothing half done, a way out."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from app.errors import (
    AnchorageError,
    DimensionMismatch,
    NonFinite,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
    WrongState,
)
from app.stores.pgvector import PgvectorStore
from app.stores.port import Search, StoreLocation
from tests.pgvector_server import PgvectorServer
from tests.stores.pgvector.tables import (
    NEW_DIM,
    TAG,
    Table,
    begin,
    text,
    translate,
    translate_back,
    vectors_of,
)
from tests.waiting import slack, until

QUEUE = f"{{s}}.anchorage_{TAG}_queue"


def test_a_fault_within_a_write_or_a_cutover_leaves_nothing_half_written(table: Table) -> None:
    store, migration = begin(table)
    page, number = store.scroll(None, 10), migration.count()
    for fault_of_server, error in (
        ("PERFORM pg_terminate_backend(pg_backend_pid())", StoreUnavailable),
        ("RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'no'", StoreFull),
    ):
        table.execute(
            "CREATE OR REPLACE FUNCTION {s}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.id = 7 THEN {fault_of_server}; END IF; RETURN NEW; END $$"
        )
        table.execute(
            f"CREATE OR REPLACE TRIGGER fail AFTER INSERT OR UPDATE ON {{s}}.anchorage_{TAG}_new "
            "FOR EACH ROW EXECUTE FUNCTION {s}.fail()"
        )
        table.execute("UPDATE {t} SET embedding = '[1,2,3,4]' WHERE id IN (3, 7)")
        with pytest.raises(error):
            migration.write(page.ids, translate(page.ids, page.vectors) + 1, replace=True)
        with pytest.raises(error):
            migration.cutover(translate)
        assert (store.facts().dim, migration.count()) == (4, number)
        assert np.allclose(migration.read([1]).vectors, translate([1], vectors_of(30)[[1]]))
        assert len(migration.changes(10).ids) == 2
    table.execute(f"DROP TRIGGER fail ON {{s}}.anchorage_{TAG}_new")
    migration.cutover(translate)
    assert store.facts().dim == NEW_DIM


def test_a_dropped_connection_is_made_again_and_a_frozen_server_is_unavailable_within_seconds(
    own_pgvector: PgvectorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.stores.pgvector.connections.SILENCE_S", 1.0)
    table = Table(own_pgvector).fill()
    store = table.store()
    page = store.scroll(None, 10)
    ours = "FROM pg_stat_activity WHERE application_name = 'anchorage'"
    table.execute(f"SELECT pg_terminate_backend(pid) {ours}")
    until(lambda: not table.execute(f"SELECT {ours}"))
    assert store.scroll(page.cursor, 10).ids == list(range(10, 20))
    own_pgvector.freeze()
    began = monotonic()
    with pytest.raises(StoreUnavailable):
        store.scroll(page.cursor, 10)
    with pytest.raises(StoreUnavailable):
        store.facts()  # a new connection
    assert monotonic() - began < slack() * 20
    own_pgvector.thaw()
    assert store.scroll(page.cursor, 10).ids == list(range(10, 20))
    table.drop()


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("postgresql://postgres@/none?host=HOST", StoreRefused, 'database "none" does not exist'),
        ("postgresql://u:hidden@/x?host=HOST", StoreRefused, 'role "u" does not exist. Check the'),
        ("postgresql://u:hidden@127.0.0.1:9/x", StoreUnavailable, "port 9 failed: Connection refu"),
        ("postgresql://u:hidden@nowhere.invalid/x", StoreUnavailable, "failed to resolve host"),
        ("postgresql://u:hidden@/x?host=/nowhere-at-all", StoreUnavailable, "No such file"),
        ("postgresql://u:hidden@/x?bad_option=1", StoreUnsupported, "not one of PostgreSQL"),
        ("/srv/nowhere", StoreUnsupported, "not one of PostgreSQL"),
    ],
)
def test_addresses_that_lead_nowhere_are_not_shown(
    pgvector_server: PgvectorServer, url: str, error: type[AnchorageError], words: str
) -> None:
    home = str(pgvector_server.home)
    location = StoreLocation("pgvector", url.replace("HOST", home), "docs")
    with pytest.raises(error, match=words) as caught:
        PgvectorStore(location).facts()
    for word in ("hidden", "nowhere", "127.0.0.1", home):
        assert word not in str(caught.value) + repr(caught.value) + repr(location)
    assert caught.value.__cause__ is None


def test_a_database_without_the_extension(own_pgvector: PgvectorServer) -> None:
    own_pgvector.execute("CREATE DATABASE bare")
    url = own_pgvector.url.replace("/postgres?", "/bare?")
    with pytest.raises(StoreUnsupported, match="CREATE EXTENSION"):
        PgvectorStore(StoreLocation("pgvector", url, "docs")).facts()


def test_missing_rights_are_named(table: Table, role: str) -> None:
    store = table.store(url=table.server.url_of(role))
    with pytest.raises((StoreRefused, StoreChanged)):
        store.facts()
    for statement, words in (
        (f"GRANT USAGE ON SCHEMA {{s}} TO {role}", "permission denied for table docs"),
        (f"GRANT SELECT, TRIGGER ON {{t}} TO {role}", "permission denied for schema"),
        (f"GRANT CREATE ON SCHEMA {{s}} TO {role}", "must be able to SET ROLE"),
    ):
        table.execute(statement)
        with pytest.raises(StoreRefused, match=words):
            store.migration(TAG, NEW_DIM).prepare()
        assert table.traces() == []
    table.execute(f"ALTER TABLE {{t}} OWNER TO {role}")
    _, migration = begin(table, url=table.server.url_of(role))
    for switch, by in (
        (migration.cutover, translate),
        (migration.rollback, translate_back),
        (migration.cutover, translate),
    ):
        switch(by)
    migration.finish()
    assert store.facts().dim == NEW_DIM


def test_row_level_security_that_hides_rows_is_refused(table: Table, role: str) -> None:
    for statement in (
        f"GRANT USAGE ON SCHEMA {{s}} TO {role}",
        f"GRANT SELECT ON {{t}} TO {role}",
        "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY few ON {{t}} TO {role} USING (id < 10)",
    ):
        table.execute(statement)
    store = table.store(url=table.server.url_of(role))
    with pytest.raises(StoreRefused, match="row-level security"):
        store.scroll(None, 100)
    [hits] = store.search(Search(vectors_of(1), 100))
    assert sorted(hits.ids) == list(range(10))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (
            "DROP TRIGGER anchorage_capture_update ON {t}; DROP TRIGGER anchorage_capture_rows "
            "ON {t}; ALTER TABLE {t} ALTER COLUMN embedding TYPE halfvec(4)",
            "missing or disabled",
        ),
        ("ALTER TABLE {t} RENAME COLUMN embedding TO vector", "vector"),
        ("DROP TABLE {t}", "no table"),
    ],
)
def test_a_table_that_changed_meanwhile(table: Table, change: str, word: str) -> None:
    store, migration = begin(table)
    page = store.scroll(None, 5)
    table.execute("DROP INDEX {s}.docs_embedding_idx")
    table.execute(change)
    for step in (
        migration.prepare,
        lambda: migration.write(page.ids, translate(page.ids, page.vectors)),
        lambda: migration.cutover(translate),
    ):
        with pytest.raises((StoreChanged, StoreUnsupported), match=word):
            step()
    migration.abandon()
    assert table.traces() == []


def test_two_preparers_at_once(table: Table) -> None:
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(table.store().migration(TAG, NEW_DIM).prepare) for _ in range(2)]:
            each.result()
    with pytest.raises(StoreRefused, match=TAG):
        table.store().migration("0badcafe", NEW_DIM).prepare()
    with pytest.raises(StoreChanged, match="not for 9"):
        table.store().migration(TAG, 9).prepare()


def test_foreign_keys_that_a_killed_rollback_left_unvalidated_are_valid_after_abandon(
    table: Table,
) -> None:
    key = "ALTER TABLE {s}.child ADD CONSTRAINT child_doc FOREIGN KEY (doc) REFERENCES {t}"
    table.execute("CREATE TABLE {s}.child (doc bigint); " + key)
    _, migration = begin(table, cut_over=True)
    migration.rollback(translate_back)
    # The state of a dump that began after the rollback and before the validation.
    table.execute("ALTER TABLE {s}.child DROP CONSTRAINT child_doc; " + key + " NOT VALID")
    migration.abandon()
    assert table.execute(
        "SELECT convalidated FROM pg_constraint WHERE conrelid = '{s}.child'::regclass"
    ) == [(True,)]


def test_vectors_that_the_column_cannot_hold(table: Table) -> None:
    migration = table.store(options={"type": "halfvec"}).migration(TAG, NEW_DIM)
    migration.prepare()
    new = translate([1], vectors_of(1))
    for bad, error in ((new[:, :3], DimensionMismatch), (new * float("nan"), NonFinite),
                       (new * 1e9, NonFinite)):  # fmt: skip
        with pytest.raises(error):
            migration.write([1], bad)
    assert migration.count() == 0
    migration.abandon()
    with pytest.raises(StoreUnsupported, match="halfvec"):
        table.store().migration(TAG, 2001).prepare()


# --- no dead ends: whatever clients drop or disable, a named step leads out, and leaves nothing ---


@pytest.mark.parametrize(
    "damage",
    [
        f"DROP TABLE {QUEUE}",
        f"COMMENT ON TABLE {QUEUE} IS '{{\"anchorage\": oops'",
        f"DROP TABLE {{s}}.anchorage_{TAG}_HIDDEN",
        "ALTER TABLE {t} DISABLE TRIGGER ALL",
        f"DROP FUNCTION {{s}}.anchorage_{TAG}_capture() CASCADE",
    ],
)
@pytest.mark.parametrize("cut_over", [False, True])
def test_each_damage_names_a_way_out(table: Table, damage: str, cut_over: bool) -> None:
    store, migration = begin(table, cut_over=cut_over)
    table.execute(damage.replace("HIDDEN", "old" if cut_over else "new"))
    out, wrong = migration.abandon, migration.finish
    if cut_over:
        out, wrong = wrong, out
    switch = migration.rollback if cut_over else migration.cutover
    for step in (migration.prepare, lambda: switch(translate)):
        with pytest.raises(StoreChanged, match=f"`{out.__name__}`"):
            step()
    if "HIDDEN" not in damage:  # then nothing is left that the wrong step could delete
        with pytest.raises(WrongState):
            wrong()
    out()
    assert table.traces() == []
    assert store.facts().dim == (NEW_DIM if cut_over else 4)
    table.execute("UPDATE {t} SET embedding = %s", [text(np.ones(NEW_DIM if cut_over else 4))])
    out()


@pytest.mark.parametrize("cut_over", [False, True])
def test_the_script_of_the_page_removes_everything(table: Table, cut_over: bool) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/pgvector.md").read_text()
    [script] = re.findall(r"```text\n(DO .anchorage_uninstall.*?)```", page, re.DOTALL)
    store, _ = begin(table, cut_over=cut_over)
    assert len(table.traces()) > 5
    with table.connect() as connection:
        connection.execute(f'SET search_path = "{table.schema}", public')
        connection.execute(script.replace("public", table.schema))
    assert table.traces() == []
    assert store.facts().dim == (NEW_DIM if cut_over else 4)
    table.execute("UPDATE {t} SET body = 'x'")
