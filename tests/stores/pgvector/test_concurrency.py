"""Writers and kills while a reindexing runs: afterwards every row is right."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic, sleep

import numpy as np
import psycopg
import pytest

from app.stores.pgvector import PgvectorStore
from tests.stores.pgvector.tables import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    Table,
    run_with_kills,
    sweep,
    text,
    translate,
    translate_back,
)


def rows_of(table: Table) -> dict[int, tuple[str, np.ndarray]]:
    return {
        each: (body, np.array([float(number) for number in vector.strip("[]").split(",")]))
        for each, body, vector in table.execute("SELECT id, body, embedding::text FROM {t}")
    }


class Storm:
    """Writers of random statements, who remember what they have committed.

    Each owns the keys of one remainder, and knows which vectors the table takes by its errors.
    """

    def __init__(self, table: Table, count: int, seed: int) -> None:
        self.table, self.count = table, count
        self.expected: dict[int, tuple[str, np.ndarray]] = {}
        self.longest = 0.0
        self.statements = 0
        self.stop = threading.Event()
        self.errors: list[Exception] = []
        self.threads = [
            threading.Thread(target=self._write, args=[number, seed + number])
            for number in range(count)
        ]

    def __enter__(self) -> Storm:
        for each in self.threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for each in self.threads:
            each.join()

    def _write(self, number: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        dim, own = OLD_DIM, {}
        keys = [key for key in rows_of(self.table) if key % self.count == number]
        own = dict.fromkeys(keys)
        try:
            with self.table.connect() as connection:
                while not self.stop.is_set():
                    sleep(0.05)  # so that the sweep has its share of the processor
                    dim = self._one(connection, random, own, number, dim)
        except Exception as error:
            self.errors.append(error)

    def _one(self, connection, random, own, number: int, dim: int) -> int:
        key = int(random.integers(0, 200)) * self.count + number
        body, vector = f"b {random.integers(1000)}", random.normal(size=dim).astype(np.float32)
        deletes = key in own and random.random() < 0.3
        if deletes:
            statement, values = "DELETE FROM {t} WHERE id = %s", [key]
        elif key in own:
            statement = "UPDATE {t} SET body = %s, embedding = %s WHERE id = %s"
            values = [body, text(vector), key]
        else:
            statement = "INSERT INTO {t} (body, embedding, id) VALUES (%s, %s, %s)"
            values = [body, text(vector), key]
        began = monotonic()
        try:
            done = self.table.on(connection, statement, values)
        except psycopg.errors.DataException:
            return NEW_DIM if dim == OLD_DIM else OLD_DIM
        self.longest = max(self.longest, monotonic() - began)
        self.statements += 1
        assert done.rowcount == 1, statement
        own.pop(key, None)
        self.expected.pop(key, None)
        if not deletes:
            own[key] = None
            self.expected[key] = (body, vector)
        else:
            self.expected[key] = ("deleted", vector)
        return dim


def check(table: Table, storm: Storm, dim: int) -> None:
    assert storm.errors == []
    found = rows_of(table)
    for key, (body, vector) in storm.expected.items():
        if body == "deleted":
            assert key not in found
            continue
        assert found[key][0] == body
        if len(vector) == dim:
            expected = vector
        elif dim == NEW_DIM:
            expected = translate(None, vector[None])[0]
        else:
            expected = translate_back(None, vector[None])[0]
        assert np.allclose(found[key][1], expected, atol=1e-5), key


def test_changes_that_another_process_has_applied_are_not_written_again(table: Table) -> None:
    first, second = (table.store().beside(TAG, NEW_DIM) for _ in range(2))
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


def test_writes_behind_a_truncation_are_seen(table: Table) -> None:
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    sweep(store, beside)
    table.execute("TRUNCATE {t}")
    table.execute("INSERT INTO {t} VALUES (77, 'b', '[1,2,3,4]')")
    sizes = []
    while size := len(changes := beside.changes(1)):
        sizes.append(size)
        beside.apply(changes, translate(changes.ids, changes.vectors))
    assert sizes == [1, 1]
    assert beside.count() == 1
    beside.cutover(translate)
    assert list(rows_of(table)) == [77]


@contextmanager
def alterations(table: Table) -> Iterator[None]:
    """Statements that a switch must keep, one after the other, and open transactions between."""
    statements = (
        "CREATE INDEX own ON {t} (body)",
        "ALTER TABLE {t} ALTER body TYPE text USING body || ''",
        "COMMENT ON COLUMN {t}.body IS 'words'",
        "BEGIN; SELECT FROM {t} LIMIT 1; SELECT pg_sleep(0.3); COMMIT",
        "DROP INDEX {s}.own",
        "VACUUM FULL {t}",
    )
    stop = threading.Event()

    def alter() -> None:
        for each in itertools.cycle(statements):
            if stop.wait(0.1):
                return
            table.execute(each)

    thread = threading.Thread(target=alter)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.parametrize("altered", [False, True])
def test_a_storm_of_writes_during_sweep_cutover_and_rollback(
    new_table: Callable[..., Table], altered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table().fill(120)
    untouched = rows_of(table)
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    with alterations(table) if altered else nullcontext(), Storm(table, 2, 1) as storm:
        sweep(store, beside, limit=7)
        pauses = [beside.cutover(translate).pause_s]
        at_cutover = storm.statements
        while storm.statements < at_cutover + 60 and not storm.errors:
            sleep(0.01)
        pauses.append(beside.rollback(translate_back).pause_s)
        at_rollback = storm.statements
        while storm.statements < at_rollback + 60 and not storm.errors:
            sleep(0.01)
        pauses.append(beside.cutover(translate).pause_s)
    with capsys.disabled():
        print(
            f"\n{storm.statements} statements; pauses {[round(each, 3) for each in pauses]} s; "
            f"longest statement {storm.longest:.3f} s"
        )
    check(table, storm, NEW_DIM)
    found = rows_of(table)
    for key, (body, vector) in untouched.items():
        if key not in storm.expected:
            assert found[key][0] == body
            assert np.allclose(found[key][1], translate(None, vector[None])[0], atol=1e-5)
    assert set(found) == {key for key, entry in storm.expected.items() if entry[0] != "deleted"} | {
        key for key in untouched if key not in storm.expected
    }
    assert beside.count() == len(found)
    beside.rollback(translate_back)
    check(table, storm, OLD_DIM)
    beside.abandon()
    assert table.traces() == []


RUN = """
import sys
from app.stores.base import StoreLocation
from app.stores.pgvector import PgvectorStore
from tests.stores.pgvector.tables import NEW_DIM, TAG, sweep
store = PgvectorStore(StoreLocation("pgvector", sys.argv[1], sys.argv[2]))
print("starts", flush=True)
sweep(store, store.beside(TAG, NEW_DIM), limit=3)
print("done", flush=True)
"""


def test_a_run_killed_at_any_moment_continues(new_table: Callable[..., Table]) -> None:
    table = new_table().fill(150)
    run_with_kills(RUN, table, kills=5, longest_s=0.4, seed=4)
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    page, old = store.scroll(None, 1000, "new"), store.scroll(None, 1000)
    assert page.ids == old.ids == list(range(150))
    assert np.array_equal(page.vectors, translate(None, old.vectors).astype(np.float32))
    beside.cutover(translate)
    assert isinstance(store, PgvectorStore)
    assert store.facts().indexed
