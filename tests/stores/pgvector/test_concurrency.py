"""Clients that write while a migration runs: afterwards every row is right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.stores.pgvector.tables import (
    NEW_DIM,
    TAG,
    Table,
    sweep,
    translate,
    translate_back,
)
from tests.waiting import until


def rows_of(table: Table) -> dict[int, tuple[str, np.ndarray]]:
    return {
        each: (body, np.array([float(number) for number in vector.strip("[]").split(",")]))
        for each, body, vector in table.execute("SELECT id, body, embedding::text FROM {t}")
    }


def test_changes_that_another_process_has_applied_are_not_written_again(table: Table) -> None:
    first, second = (table.store().migration(TAG, NEW_DIM) for _ in range(2))
    sweep(table.store(), first)
    for each in (3, 4):
        table.execute("UPDATE {t} SET embedding = '[1,2,3,4]' WHERE id = %s", [each])
    stale = first.changes(10)
    table.execute("UPDATE {t} SET embedding = '[4,3,2,1]' WHERE id = 3")
    head = second.changes(1)  # also the first entry of the queue: its row was written since
    assert head.ids == [3]
    assert head.vectors.tolist() == [[4, 3, 2, 1]]
    second.apply(head, translate(None, head.vectors))
    first.apply(stale, translate(None, stale.vectors))
    new = table.store().fetch([3, 4], "new").vectors
    assert np.allclose(new[0], translate(None, np.array([[4, 3, 2, 1]], np.float32)))
    left = first.changes(10)
    assert sorted(left.ids) == [3, 4]
    first.apply(left, translate(None, left.vectors))
    assert len(first.changes(10)) == 0
    first.cutover(translate)
    found = rows_of(table)
    for each, vector in ((3, [4, 3, 2, 1]), (4, [1, 2, 3, 4])):
        expected = translate(None, np.array([vector], np.float32))[0]
        assert np.allclose(found[each][1], expected, atol=1e-5)


def test_unique_values_that_were_free_after_a_truncation_are_copied(table: Table) -> None:
    """The row that had the value before is still in the hidden table, and nothing else waits."""
    table.execute("CREATE UNIQUE INDEX ON {t} (body)")
    store = table.store()
    beside = store.migration(TAG, NEW_DIM)
    sweep(store, beside)
    table.execute("INSERT INTO {t} VALUES (76, 'first', '[1,2,3,4]')")
    table.execute("TRUNCATE {t}")
    table.execute("INSERT INTO {t} VALUES (76, 'body 5', '[1,2,3,4]')")
    while len(changes := beside.changes(1)):
        beside.apply(changes, translate(changes.ids, changes.vectors))
    assert beside.count() == 1
    beside.cutover(translate)
    assert list(rows_of(table)) == [76]


def test_a_condition_that_no_longer_holds_deletes_nothing_after_a_cutover(table: Table) -> None:
    """Another client renews the row while the DELETE waits for its lock."""
    store = table.store()
    beside = store.migration(TAG, NEW_DIM)
    sweep(store, beside)
    beside.cutover(translate)
    with table.connect() as renewing, ThreadPoolExecutor(1) as others:
        renewing.execute("BEGIN")
        table.on(renewing, "UPDATE {t} SET body = 'renewed' WHERE id = 5")
        deleting = others.submit(table.execute, "DELETE FROM {t} WHERE body = 'body 5' RETURNING 1")
        until(lambda: table.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))
        renewing.execute("COMMIT")
        assert deleting.result() == []
    beside.rollback(translate_back)
    assert table.execute("SELECT body FROM {t} WHERE id = 5") == [("renewed",)]


def test_an_idle_transaction_of_a_client_keeps_nobody_waiting_after_a_cutover(
    table: Table,
) -> None:
    """Its row waits for it, also to be followed; other rows are written and followed."""
    store = table.store()
    beside = store.migration(TAG, NEW_DIM)
    sweep(store, beside)
    beside.cutover(translate)
    with table.connect() as idle:
        idle.execute("BEGIN")
        table.on(idle, "UPDATE {t} SET body = 'held' WHERE id = 1")
        # what another client has committed, and waits to be followed
        table.execute("UPDATE {t} SET body = 'late' WHERE id IN (2, 3)")
        changes = beside.changes(10)
        beside.apply(changes, translate_back(changes.ids, changes.vectors))
        with table.connect() as other:
            other.execute("SET statement_timeout = '1s'")
            table.on(other, "UPDATE {t} SET body = 'other' WHERE id = 3")
        idle.execute("COMMIT")
    beside.rollback(translate_back)
    rows = table.execute("SELECT body FROM {t} WHERE id IN (1, 2, 3) ORDER BY id")
    assert rows == [("held",), ("late",), ("other",)]
