"""Clients that write, and dumps that are taken, while a migration runs: every row is right."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from app.stores.pgvector.connections import StoreConnection
from tests.pgvector_server import PgvectorServer
from tests.stores.pgvector.tables import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    Table,
    begin,
    sweep,
    text,
    translate,
    translate_back,
    vectors_of,
)
from tests.stores.pgvector.test_migration import furnish, shape
from tests.waiting import until

IS_HELD = "SELECT 1 FROM pg_locks WHERE relation='{t}'::regclass AND granted AND mode ~ '^AccessE'"

#: how long a server waits for a lock before it looks for a deadlock; and the switches beside a dump
DEADLOCK_S, SWITCHES = 0.5, 8


def test_changes_that_another_process_has_applied_are_not_written_again(table: Table) -> None:
    (store, first), (_, second) = begin(table), begin(table)
    for each in (3, 4):
        table.execute("UPDATE {t} SET embedding = '[1,2,3,4]' WHERE id = %s", [each])
    stale = first.changes(10)
    table.execute("UPDATE {t} SET embedding = '[4,3,2,1]' WHERE id = 3")
    head = second.changes(1)  # also the first entry of the queue: its row was written since
    assert (head.ids, head.vectors.tolist()) == ([3], [[4, 3, 2, 1]])
    second.apply(head, translate(None, head.vectors))
    first.apply(stale, translate(None, stale.vectors))
    wanted = translate(None, np.array([[4, 3, 2, 1], [1, 2, 3, 4]], np.float32))
    assert np.allclose(store.fetch([3], "new").vectors, wanted[:1])
    left = first.changes(10)
    assert sorted(left.ids) == [3, 4]
    first.apply(left, translate(None, left.vectors))
    assert len(first.changes(10)) == 0
    first.cutover(translate)
    assert np.allclose(store.fetch([3, 4], "new").vectors, wanted, atol=1e-5)


def test_unique_values_that_were_free_after_a_truncation_are_copied(table: Table) -> None:
    """The row that had the value before is still in the hidden table, and nothing else waits."""
    table.execute("CREATE UNIQUE INDEX ON {t} (body)")
    _, migration = begin(table)
    table.execute("INSERT INTO {t} VALUES (76, 'first', '[1,2,3,4]')")
    table.execute("TRUNCATE {t}")
    table.execute("INSERT INTO {t} VALUES (76, 'body 5', '[1,2,3,4]')")
    while len(changes := migration.changes(1)):
        migration.apply(changes, translate(changes.ids, changes.vectors))
    assert migration.count() == 1
    migration.cutover(translate)
    assert table.execute("SELECT id FROM {t}") == [(76,)]


def test_a_condition_that_no_longer_holds_deletes_nothing_after_a_cutover(table: Table) -> None:
    """Another client renews the row while the DELETE waits for its lock."""
    _, migration = begin(table, cut_over=True)
    with table.connect() as renewing, ThreadPoolExecutor(1) as others:
        renewing.execute("BEGIN")
        table.on(renewing, "UPDATE {t} SET body = 'renewed' WHERE id = 5")
        deleting = others.submit(table.execute, "DELETE FROM {t} WHERE body = 'body 5' RETURNING 1")
        until(lambda: table.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))
        renewing.execute("COMMIT")
        assert deleting.result() == []
    migration.rollback(translate_back)
    assert table.execute("SELECT body FROM {t} WHERE id = 5") == [("renewed",)]


def test_an_idle_transaction_of_a_client_keeps_nobody_waiting_after_a_cutover(
    table: Table,
) -> None:
    """Its row waits for it, also to be followed; other rows are written and followed."""
    _, migration = begin(table, cut_over=True)
    with table.connect() as idle:
        idle.execute("BEGIN")
        table.on(idle, "UPDATE {t} SET body = 'held' WHERE id = 1")
        # what another client has committed, and waits to be followed
        table.execute("UPDATE {t} SET body = 'late' WHERE id IN (2, 3)")
        changes = migration.changes(10)
        migration.apply(changes, translate_back(changes.ids, changes.vectors))
        with table.connect() as other:
            other.execute("SET statement_timeout = '1s'")
            table.on(other, "UPDATE {t} SET body = 'other' WHERE id = 3")
        idle.execute("COMMIT")
    migration.rollback(translate_back)
    rows = table.execute("SELECT body FROM {t} WHERE id IN (1, 2, 3) ORDER BY id")
    assert rows == [("held",), ("late",), ("other",)]


@pytest.fixture
def restore(
    pgvector_server: PgvectorServer, tmp_path: Path, role: str
) -> Iterator[Callable[[Table, str], Table]]:
    """Dumps the schema of a table, and restores it in a new database."""
    binaries = Path(pgvector_server._initdb).parent
    made: list[str] = []

    def run(table: Table, moment: str) -> Table:
        name, dump = f"restored_{table.schema}_{moment}", str(tmp_path / moment)
        pgvector_server.execute(f"CREATE DATABASE {name}")
        made.append(name)
        restored = copy(table)  # its schema comes with the dump
        restored.url, restored.opened = table.url.replace("/postgres?", f"/{name}?"), []
        restored.execute("CREATE EXTENSION vector")
        subprocess.run(
            [binaries / "pg_dump", "-Fc", "-n", table.schema, "-f", dump, table.url], check=True
        )
        subprocess.run([binaries / "pg_restore", "-1", "-e", "-d", restored.url, dump], check=True)
        return restored

    yield run
    for each in made:
        pgvector_server.execute(f"DROP DATABASE {each} WITH (FORCE)")


def test_a_dump_of_each_moment_goes_on(
    new_table: Callable[..., Table], role: str, restore: Callable[[Table, str], Table]
) -> None:
    furnish(table := new_table(), role)
    table.execute("ALTER TABLE {t} ADD COLUMN gone int")  # its number is free in a dump
    table.execute("ALTER TABLE {t} DROP COLUMN gone")
    before, new = shape(table), text(np.arange(NEW_DIM))
    migration = (store := table.store()).migration(TAG, NEW_DIM)
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
    assert np.array_equal(*(np.delete(each, [4, 5], 0) for each in (old, vectors_of(30))))
    assert shape(after) == before

    migration.rollback(translate_back)
    rolled = restore(table, "rolled")
    rolled.store().migration(TAG, NEW_DIM).abandon()
    assert (rolled.traces(), shape(rolled)) == ([], before)
    for each in (filling, after, rolled):
        for opened in each.opened:
            opened.close()


def test_a_switch_over_a_slow_link(
    new_table: Callable[..., Table], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(table := new_table(), role)
    before, wait = shape(table), StoreConnection.wait
    _, migration = begin(table)
    monkeypatch.setattr(StoreConnection, "wait", lambda *a: time.sleep(0.015) or wait(*a))
    migration.cutover(translate)
    assert shape(table) == before


def test_a_dump_beside_a_switch_is_no_victim_of_a_deadlock(table: Table) -> None:
    """A dump locks all tables one by one, and a switch needs the same ones, in another order."""
    table.execute("CREATE TABLE {s}.parent (id int PRIMARY KEY); INSERT INTO {s}.parent VALUES (1)")
    table.execute("ALTER TABLE {t} ADD COLUMN parent int DEFAULT 1 REFERENCES {s}.parent")
    table.execute("CREATE TABLE {s}.child (doc bigint REFERENCES {t})")
    url = f"{table.url}&options=-cdeadlock_timeout%3D{DEADLOCK_S}s"
    store, migration = begin(table, url=url)
    write = "UPDATE {t} SET embedding = array_fill(1, ARRAY[%s])::vector WHERE id = 3"
    for number in range(SWITCHES):
        is_back = bool(number % 2)
        translation, dim = (translate_back, NEW_DIM) if is_back else (translate, OLD_DIM)
        table.execute(write, [dim])
        share, calls = number / SWITCHES, count()

        def slowly(ids, vectors, share=share, calls=calls, by=translation, dim=dim):
            if next(calls) == 0:
                table.execute(write, [dim])  # the switch finds it when it holds the table
            else:
                time.sleep(share * DEADLOCK_S)
            return by(ids, vectors)

        hidden = f"anchorage_{TAG}_{'old' if is_back else 'new'}"
        first, last = ("parent", "child") if number % 4 < 2 else ("child", "parent")
        switch = migration.rollback if is_back else migration.cutover
        with ThreadPoolExecutor(1) as pool, dumping(table, first) as lock:
            switching = pool.submit(switch, slowly)
            until(lambda: table.execute(IS_HELD))
            for each in (table.name, hidden, last):
                lock(each)
        switching.result(60)
        assert store.facts().dim == (OLD_DIM if is_back else NEW_DIM)
    with ThreadPoolExecutor(1) as pool, dumping(table, f"anchorage_{TAG}_new") as lock:
        abandoned = pool.submit(migration.abandon)
        lock(table.name)
    abandoned.result(60)
    assert table.traces() == []


@contextmanager
def dumping(table: Table, first: str) -> Iterator[Callable[[str], object]]:
    """A transaction that locks tables as pg_dump does, and is ended before the pool is."""
    with table.connect() as connection, connection.transaction():
        connection.execute(f"SET LOCAL deadlock_timeout = '{DEADLOCK_S}s'")

        def lock(name: str) -> object:
            return table.on(connection, f'LOCK TABLE {{s}}."{name}" IN ACCESS SHARE MODE')

        lock(first)
        yield lock
