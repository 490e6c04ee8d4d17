"""No dead ends: whatever clients drop or disable, a named step leads out and leaves nothing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from app.errors import StoreChanged, WrongState
from tests.stores.pgvector.tables import (
    NEW_DIM,
    TAG,
    Table,
    sweep,
    text,
    translate,
    translate_back,
)

QUEUE = f"{{s}}.anchorage_{TAG}_queue"


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
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    if cut_over:
        migration.cutover(translate)
    table.execute(damage.replace("HIDDEN", "old" if cut_over else "new"))
    out, wrong = (
        (migration.finish, migration.abandon) if cut_over else (migration.abandon, migration.finish)
    )
    switch = migration.rollback if cut_over else migration.cutover
    for step in (migration.prepare, lambda: switch(translate)):
        with pytest.raises(StoreChanged, match="`finish`" if cut_over else "`abandon`"):
            step()
    with pytest.raises(WrongState):
        wrong()
    out()
    assert table.traces() == []
    assert store.facts().dim == (NEW_DIM if cut_over else 4)
    vector = text(np.ones(NEW_DIM if cut_over else 4))
    table.execute("UPDATE {t} SET embedding = %s", [vector])
    out()


def test_a_disabled_trigger_that_is_enabled_again_allows_a_rollback(table: Table) -> None:
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    migration.cutover(translate)
    table.execute("ALTER TABLE {t} DISABLE TRIGGER anchorage_capture_rows")
    table.execute("UPDATE {t} SET body = 'unseen' WHERE id < 3")
    with pytest.raises(StoreChanged, match="ENABLE ALWAYS TRIGGER"):
        migration.rollback(translate_back)
    table.execute("ALTER TABLE {t} ENABLE ALWAYS TRIGGER anchorage_capture_rows")
    assert migration.requeue_different() == 3
    migration.rollback(translate_back)
    assert table.execute("SELECT count(*) FROM {t} WHERE body = 'unseen'") == [(3,)]


def test_abandon_after_the_schema_got_another_name(table: Table) -> None:
    migration = table.store().migration(TAG, NEW_DIM)
    sweep(table.store(), migration)
    table.execute("ALTER SCHEMA {s} RENAME TO {s}_moved")
    migration.abandon()
    table.schema += "_moved"
    assert table.traces() == []


def test_comments_of_others_are_no_states(table: Table) -> None:
    table.execute("COMMENT ON TABLE {t} IS '{\"anchorage\": oops'")
    table.execute("CREATE TABLE {s}.anchorage_00000000_queue (key int)")
    table.execute("COMMENT ON TABLE {s}.anchorage_00000000_queue IS '{\"anchorage\": 1}'")
    migration = table.store().migration(TAG, NEW_DIM)
    migration.prepare()
    migration.abandon()


@pytest.mark.parametrize("cut_over", [False, True])
def test_the_script_of_the_page_removes_everything(table: Table, cut_over: bool) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/pgvector.md").read_text()
    [script] = re.findall(r"```text\n(DO .anchorage_uninstall.*?)```", page, re.DOTALL)
    store = table.store()
    migration = store.migration(TAG, NEW_DIM)
    sweep(store, migration)
    if cut_over:
        migration.cutover(translate)
    with table.connect() as connection:
        connection.execute(f'SET search_path = "{table.schema}", public')
        connection.execute(script.replace("public", table.schema))
        left = connection.execute("SELECT 1 FROM pg_proc WHERE proname = 'anchorage_uninstall'")
        assert left.fetchall() == []
    assert table.traces() == []
    assert store.facts().dim == (NEW_DIM if cut_over else 4)
    table.execute("UPDATE {t} SET body = 'x'")
