"""Clients that write, and dumps that are taken, while a migration runs: every row is right.

The torture also restores dumps, and goes on with the migrations in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import numpy as np

from tests.stores.pgvector.tables import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    Table,
    begin,
    translate,
    translate_back,
)
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


def test_a_rewrite_waits_for_no_client_and_keeps_what_a_trigger_of_theirs_writes(
    table: Table,
) -> None:
    store, migration = begin(table, cut_over=True)
    seen, old = store.fetch([1, 2], "new"), store.fetch([1, 2]).vectors
    with table.connect() as client:
        client.execute("BEGIN")
        table.on(client, "UPDATE {t} SET body = 'held' WHERE id = 1")
        assert migration.rewrite(seen, -seen.vectors) == [2]
        client.execute("COMMIT")
    table.execute(
        "CREATE FUNCTION {s}.touch() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.body = 'touched'; RETURN NEW; END $$"
    )
    table.execute("CREATE TRIGGER touch BEFORE UPDATE ON {t} FOR ROW EXECUTE FUNCTION {s}.touch()")
    assert migration.rewrite(seen, -seen.vectors) == [1]
    assert np.allclose(store.fetch([1, 2], "new").vectors, -seen.vectors)
    migration.rollback(translate_back)
    assert table.execute("SELECT body FROM {t} WHERE id = 1") == [("touched",)]
    assert np.allclose(store.fetch([1, 2]).vectors, old)


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
