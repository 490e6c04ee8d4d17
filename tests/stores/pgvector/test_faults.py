"""Faults of the server, of rights and of the table: clear stops, with nothing half-switched."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from time import monotonic

import psycopg
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
)
from app.stores.pgvector import PgvectorStore
from app.stores.port import Search, StoreLocation
from tests.pgvector_server import PgvectorServer
from tests.stores.pgvector.tables import (
    NEW_DIM,
    TAG,
    Table,
    sweep,
    translate,
    translate_back,
    vectors_of,
)
from tests.waiting import slack


def test_a_dropped_connection_is_made_again(table: Table) -> None:
    store = table.store()
    page = store.scroll(None, 10)
    table.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'anchorage' AND pid <> pg_backend_pid()"
    )
    while table.execute("SELECT FROM pg_stat_activity WHERE application_name = 'anchorage'"):
        pass  # the server ends them when they are next scheduled
    assert store.scroll(page.cursor, 10).ids == list(range(10, 20))


def test_a_connection_dropped_within_a_write_leaves_nothing_half_written(table: Table) -> None:
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll(None, 10)
    table.execute(
        "CREATE FUNCTION {s}.cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.id = 7 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; "
        "RETURN NEW; END $$"
    )
    table.execute(
        f"CREATE TRIGGER cut AFTER INSERT ON {{s}}.anchorage_{TAG}_new "
        "FOR EACH ROW EXECUTE FUNCTION {s}.cut()"
    )
    with pytest.raises(StoreUnavailable) as caught:
        migration.write(page.ids, translate(page.ids, page.vectors))
    assert caught.value.retry_after_s is not None
    assert migration.count() == 0
    table.execute(f"DROP TRIGGER cut ON {{s}}.anchorage_{TAG}_new")
    migration.write(page.ids, translate(page.ids, page.vectors))
    assert migration.count() == 10


CONDITIONS = {
    "disk_full": StoreFull,
    "too_many_connections": StoreUnavailable,
    "insufficient_privilege": StoreRefused,
    "read_only_sql_transaction": StoreRefused,
    "admin_shutdown": StoreUnavailable,
}


def test_conditions_of_the_server(table: Table) -> None:
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    fail = (
        "CREATE OR REPLACE FUNCTION {s}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION USING ERRCODE = 'CONDITION', MESSAGE = 'no'; END $$"
    )
    table.execute(fail)
    table.execute(
        f"CREATE TRIGGER fail BEFORE UPDATE ON {{s}}.anchorage_{TAG}_new "
        "FOR EACH ROW EXECUTE FUNCTION {s}.fail()"
    )
    page = store.scroll(None, 5)
    table.execute("UPDATE {t} SET embedding = '[1,2,3,4]' WHERE id = 3")
    for condition, error in CONDITIONS.items():
        table.execute(fail.replace("CONDITION", condition))
        with pytest.raises(error):
            migration.write(page.ids, translate(page.ids, page.vectors), replace=True)
        with pytest.raises(error):
            migration.cutover(translate)
        assert store.facts().dim == 4
        assert len(migration.changes(10)) == 1
    table.execute(f"DROP TRIGGER fail ON {{s}}.anchorage_{TAG}_new")
    migration.cutover(translate)
    assert store.facts().dim == NEW_DIM


def test_a_frozen_server_is_unavailable_within_seconds(
    own_pgvector: PgvectorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.stores.pgvector.connections.SILENCE_S", 1.0)
    table = Table(own_pgvector).fill()
    store = table.store()
    page = store.scroll(None, 10)
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
        (
            "postgresql://HOME@/none?host=HOST",
            StoreRefused,
            'database "none" does not exist',
        ),
        ("postgresql://u:hidden@/x?host=HOST", StoreRefused, 'role "u" does not exist.*Ask the op'),
        (
            "postgresql://u:hidden@127.0.0.1:9/x",
            StoreUnavailable,
            "port 9 failed: Connection refused",
        ),
        ("postgresql://u:hidden@nowhere.invalid/x", StoreUnavailable, "failed to resolve host"),
        ("postgresql://u:hidden@/x?host=/nowhere-at-all", StoreUnavailable, "No such file"),
        ("postgresql://u:hidden@/x?bad_option=1", StoreUnsupported, "not one of PostgreSQL"),
        ("/srv/nowhere", StoreUnsupported, "not one of PostgreSQL"),
        ("http://nowhere:6333", StoreUnsupported, "not one of PostgreSQL"),
    ],
)
def test_addresses_that_lead_nowhere_are_not_shown(
    pgvector_server: PgvectorServer, url: str, error: type[AnchorageError], words: str
) -> None:
    home = str(pgvector_server.home)
    url = url.replace("HOME", "postgres").replace("HOST", home)
    location = StoreLocation("pgvector", url, "docs")
    with pytest.raises(error, match=words) as caught:
        PgvectorStore(location).facts()
    for word in ("hidden", "nowhere", "127.0.0.1", home):
        assert word not in str(caught.value) + repr(caught.value) + repr(location)
    assert caught.value.__cause__ is None


def test_missing_rights_are_named(table: Table) -> None:
    role = f"poor_{table.schema}"
    grants = (
        (f'GRANT USAGE ON SCHEMA "{{s}}" TO {role}', StoreRefused, "membership in the owner"),
        (f"GRANT SELECT ON {{t}} TO {role}", StoreRefused, "membership in the owner"),
        (f"ALTER TABLE {{t}} OWNER TO {role}", StoreRefused, "GRANT CREATE ON SCHEMA"),
        (f'GRANT CREATE ON SCHEMA "{{s}}" TO {role}', None, ""),
    )
    table.execute(f"CREATE ROLE {role} LOGIN")
    try:
        store = table.store(url=table.server.url_of(role))
        with pytest.raises((StoreRefused, StoreChanged)):
            store.facts()
        for statement, error, words in grants:
            table.execute(statement)
            if error is None:
                break
            with pytest.raises(error, match=words):
                store.migration(TAG, NEW_DIM).prepare()
            assert table.traces() == []
        migration = store.migration(TAG, NEW_DIM)
        sweep(store, migration)
        migration.cutover(translate)
        migration.rollback(translate_back)
        migration.cutover(translate)
        migration.finish()
        assert store.facts().dim == NEW_DIM
    finally:
        table.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        table.execute(f"DROP OWNED BY {role}")
        table.execute(f"DROP ROLE {role}")


def test_row_level_security_that_hides_rows_is_refused(table: Table) -> None:
    role = f"blind_{table.schema}"
    table.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for statement in (
            f'GRANT USAGE ON SCHEMA "{{s}}" TO {role}',
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
    finally:
        table.execute(f"DROP OWNED BY {role}")
        table.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("ALTER TABLE {t} ALTER COLUMN id TYPE numeric", "numeric"),
        ("ALTER TABLE {t} DROP COLUMN embedding", "none"),
        ("ALTER TABLE {t} ALTER COLUMN embedding TYPE halfvec(4)", "missing or disabled"),
        ("ALTER TABLE {t} RENAME COLUMN embedding TO vector", "vector"),
        ("DROP TABLE {t}", "no table"),
    ],
)
def test_a_table_that_changed_meanwhile(table: Table, change: str, word: str) -> None:
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    page = store.scroll(None, 5)
    table.execute("DROP INDEX {s}.docs_embedding_idx")
    if " TYPE " in change or "DROP COLUMN" in change:
        with pytest.raises(psycopg.Error, match="trigger"):
            table.execute(change)  # PostgreSQL protects what the triggers read
        for name in ("update", "rows"):
            table.execute(f"DROP TRIGGER anchorage_capture_{name} ON {{t}}")
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
    stores = [table.store(), table.store()]
    besides = [each.migration(tag, NEW_DIM) for each, tag in zip(stores, (TAG, TAG), strict=True)]
    barrier, errors = Barrier(2), []

    def prepare(migration) -> None:
        barrier.wait()
        try:
            migration.prepare()
        except AnchorageError as error:
            errors.append(error)

    threads = [Thread(target=prepare, args=[each]) for each in besides]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    with pytest.raises(StoreRefused, match=TAG):
        table.store().migration("0badcafe", NEW_DIM).prepare()
    with pytest.raises(StoreChanged, match="not for 9"):
        table.store().migration(TAG, 9).prepare()


def test_a_busy_table_is_tried_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.stores.pgvector.locks.LOCK_PATIENCE_S", 0.5)
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    with table.connect() as reader:
        reader.execute("BEGIN")
        table.on(reader, "SELECT 1 FROM {s}.docs LIMIT 1")
        with pytest.raises(StoreUnavailable, match="hold the table"):
            migration.cutover(translate)
        assert store.facts().dim == 4
        reader.execute("COMMIT")
        migration.cutover(translate)
    assert store.facts().dim == NEW_DIM


def test_foreign_keys_that_a_killed_rollback_left_unvalidated_are_valid_after_abandon(
    table: Table,
) -> None:
    key = "child ADD CONSTRAINT child_doc FOREIGN KEY (doc) REFERENCES {t}"
    table.execute("CREATE TABLE {s}.child (doc bigint)")
    table.execute("ALTER TABLE {s}." + key)
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    migration.cutover(translate)
    migration.rollback(translate_back)
    # The state of a dump that began after the rollback and before the validation.
    table.execute("ALTER TABLE {s}.child DROP CONSTRAINT child_doc")
    table.execute("ALTER TABLE {s}." + key + " NOT VALID")
    migration.abandon()
    assert table.execute(
        "SELECT convalidated FROM pg_constraint WHERE conname = 'child_doc' "
        "AND conrelid = '{s}.child'::regclass"
    ) == [(True,)]


def test_vectors_that_the_column_cannot_hold(table: Table) -> None:
    store = table.store(options={"type": "halfvec"})
    migration = store.migration(TAG, NEW_DIM)
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


@pytest.mark.parametrize("make", ["NOT a name", "a.b.c.d", 'x"; DROP TABLE y'])
def test_names_that_are_none(new_table: Callable[..., Table], pgvector_url: str, make: str) -> None:
    store = PgvectorStore(StoreLocation("pgvector", pgvector_url, make))
    with pytest.raises((StoreUnsupported, StoreChanged)):
        store.facts()
    store.close()


def test_no_extension(own_pgvector: PgvectorServer) -> None:
    own_pgvector.execute("CREATE DATABASE bare")
    url = own_pgvector.url.replace("/postgres?", "/bare?")
    with pytest.raises(StoreUnsupported, match="CREATE EXTENSION"):
        PgvectorStore(StoreLocation("pgvector", url, "docs")).facts()
