"""What every connector estimates (app/stores/port.py), on real stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from app.errors import MigrationActive, StoreChanged, StoreRefused, StoreUnsupported, WrongState
from app.stores.port import Migration, Search, Side, Store, StoreLocation
from app.stores.registry import open_store
from tests.stores.cases.all_cases import CASES, EMBEDDED, LIVE
from tests.stores.cases.base import Rows, StoreCase
from tests.stores.cases.pgvector import PgvectorCase
from tests.stores.moving import (
    NEW_DIM,
    OLD_DIM,
    OTHER_TAG,
    TAG,
    drain,
    every,
    fill_migration,
    numbers_of,
    rows,
    run_until_killed,
    same,
    translate,
    translate_back,
)


def slow_ones_long(cases: Sequence[StoreCase]) -> list:
    """Run the tests of a store that starts slowly only with `make test-long`."""
    return [pytest.param(each, marks=pytest.mark.long) if each.is_slow else each for each in cases]


@pytest.fixture(scope="module", params=slow_ones_long(CASES), ids=lambda case: case.kind)
def case(request) -> StoreCase:
    return request.param


@pytest.fixture(scope="module")
def store(case: StoreCase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that tests only read."""
    location = case.fill(tmp_path_factory.mktemp(case.kind), rows(case, 50))
    opened = open_store(location)
    yield opened
    opened.close()
    case.remove(location)


# --- reading --------------------------------------------------------------------------------------


def test_facts(store: Store) -> None:
    facts = store.facts()
    assert (facts.rows, facts.dim, facts.metric) == (50, OLD_DIM, "cosine")
    assert facts.can_migrate


def test_a_scroll_returns_each_row_once(case: StoreCase, store: Store) -> None:
    expected = rows(case, 50)
    for limit in (7, 50, 1000):
        ids, vectors = every(store, limit=limit)
        assert sorted(ids) == sorted(expected.ids)
        assert np.allclose(vectors[np.argsort(numbers_of(ids))], expected.vectors, atol=1e-3)


def test_fetch_keeps_the_order_and_leaves_out_what_is_missing(
    case: StoreCase, store: Store
) -> None:
    page = store.fetch(case.ids(30, 4000, 2, 11))
    assert list(page.ids) == case.ids(30, 2, 11)
    assert np.allclose(page.vectors, rows(case, 50).vectors[[30, 2, 11]], atol=1e-3)
    assert len(store.fetch([]).ids) == 0


def test_a_sample_has_different_rows_of_the_store(case: StoreCase, store: Store) -> None:
    page = store.sample(20)
    assert len(page.ids) == len(set(page.ids)) == 20
    assert np.allclose(page.vectors, rows(case, 50).vectors[numbers_of(page.ids)], atol=1e-3)
    assert len(store.sample(1000).ids) == 50


def test_texts_of_a_field_and_of_a_template(
    case: StoreCase, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not case.has_payloads:
        with pytest.raises(StoreUnsupported, match="without `text_field`"):
            store.texts(case.ids(3))
        return
    assert list(store.texts(case.ids(3, 49, 5))) == ["item 3 é", "item 49 é", "item 5 é"]
    template = f"passage: {{{'text' if case.kind == 'chroma' else store.location.text_field}:4}}."
    monkeypatch.setattr(store, "location", replace(store.location, text_field=template))
    assert list(store.texts(case.ids(3, 49))) == ["passage: item."] * 2


def test_texts_are_scrolled_in_the_order_of_the_rows(case: StoreCase, store: Store) -> None:
    if not case.has_payloads:
        return
    ids, texts, cursor = [], [], None
    while True:
        page = store.scroll_texts(cursor, 7)
        assert len(page.ids) == len(page.texts) <= 7
        ids, texts, cursor = [*ids, *page.ids], [*texts, *page.texts], page.cursor
        if cursor is None:
            break
    assert ids == every(store)[0]
    assert texts == [f"item {each} é" for each in numbers_of(ids)]


def test_searches_find_the_nearest_rows(case: StoreCase, store: Store) -> None:
    queries = rows(case, 50).vectors[[8, 21]]
    [first, second] = store.search(
        Search(queries, 5, exact=store.capabilities.exact_search, vectors=True, payload=True)
    )
    assert [first.ids[0], second.ids[0]] == case.ids(8, 21)
    assert list(first.scores) == sorted(first.scores, reverse=True)
    assert first.vectors is not None
    assert first.payloads is not None
    assert np.allclose(first.vectors[0], queries[0], atol=1e-3)
    assert first.payloads[0].get("text") == ("item 8 é" if case.has_payloads else None)
    cosines = rows(case, 50).vectors @ queries[0]
    assert numbers_of(first.ids) == np.argsort(-cosines, kind="stable")[:5].tolist()
    [few] = store.search(Search(queries[:1], 1000))
    assert len(few.ids) == 50


# --- a migration ---------------------------------------------------------------------------------


Moving = tuple[StoreCase, StoreLocation, Store, Migration]


@contextmanager
def moved(case: StoreCase, folder: Path) -> Iterator[Moving]:
    location = case.fill(folder, rows(case, 50))
    store = open_store(location)
    yield case, location, store, store.migration(TAG, NEW_DIM)
    store.close()
    case.remove(location)


@pytest.fixture(params=slow_ones_long(CASES), ids=lambda case: case.kind)
def filling(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Moving]:
    """A migration of each kind of store, with or without a cutover."""
    with moved(request.param, tmp_path) as found:
        yield found


@pytest.fixture(params=slow_ones_long(LIVE), ids=lambda case: case.kind)
def moving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Moving]:
    with moved(request.param, tmp_path) as found:
        yield found


def is_unchanged(case: StoreCase, location: StoreLocation, before: dict) -> bool:
    """Whether rows are as before; Qdrant rounds the last bit when it opens a folder again."""
    after = case.read(location)
    return set(after) == set(before) and all(
        np.allclose(after[each][0], vector, rtol=0, atol=1e-6) and after[each][1] == payload
        for each, (vector, payload) in before.items()
    )


def vectors_by_number(store: Store, side: Side) -> np.ndarray:
    ids, vectors = every(store, side)
    return vectors[np.argsort(numbers_of(ids))]


def test_a_migration_loses_nothing_in_any_step(moving) -> None:
    """Each step can be repeated, and one at the wrong time is refused."""
    case, location, store, migration = moving
    before, first = case.read(location), rows(case, 50)
    new = translate(None, first.vectors)
    assert migration.count() == 0
    fill_migration(store, migration)
    migration.build_index()
    assert migration.count() == 50
    assert np.allclose(vectors_by_number(store, "old"), first.vectors, atol=1e-3)
    assert np.allclose(vectors_by_number(store, "new"), new, atol=1e-3)
    [hits] = store.search(Search(new[[8]], 3, side="new"))
    assert [hits.ids[0]] == case.ids(8)
    with pytest.raises(WrongState):
        migration.finish()
    assert is_unchanged(case, location, before)
    for _ in range(2):
        migration.cutover(translate)
    with pytest.raises(WrongState):
        migration.abandon()
    other = open_store(location)
    for each in (store, other):
        with pytest.raises((MigrationActive, StoreRefused)):
            each.migration(OTHER_TAG, NEW_DIM).prepare()
    other.close()
    assert same(case.read(location), Rows(first.ids, new, first.payloads))
    assert migration.is_cut_over()
    for _ in range(2):
        migration.rollback(translate_back)
    assert not migration.is_cut_over()
    assert is_unchanged(case, location, before)
    migration.cutover(translate)
    for _ in range(2):
        migration.finish()
    assert same(case.read(location), Rows(first.ids, new, first.payloads))
    assert not any(TAG in name for name in case.read(location)[first.ids[0]][1])
    assert store.facts().dim == NEW_DIM


def test_writes_can_be_repeated(filling) -> None:
    _, _, store, migration = filling
    migration.prepare()
    page = store.sample(10)
    new = translate(page.ids, page.vectors)
    migration.write(page.ids, new)
    migration.prepare()
    migration.write(page.ids, new)
    assert migration.count() == 10
    migration.write(page.ids, -new, replace=True)
    assert migration.count() == 10
    assert np.allclose(migration.read(page.ids).vectors, -new, atol=1e-3)


def test_a_row_without_a_new_vector_stays_visible(moving) -> None:
    case, location, store, migration = moving
    migration.prepare()
    page = store.scroll(None, 50)
    migration.write(page.ids[1:], translate(page.ids[1:], page.vectors[1:]))
    migration.build_index()
    before = case.contents(location)
    migration.cutover(translate)
    assert case.contents(location) == before
    migration.finish()
    assert case.contents(location) == before


def test_an_abandoned_migration_leaves_the_store_as_it_was(filling) -> None:
    case, location, store, migration = filling
    before, facts = case.read(location), store.facts()
    fill_migration(store, migration)
    migration.abandon()
    assert is_unchanged(case, location, before)
    assert store.facts() == facts
    assert migration.count() == 0
    migration.abandon()


def test_writes_of_clients_reach_the_other_side(moving) -> None:
    case, location, store, migration = moving
    migration.prepare()
    case.insert(location, rows(case, 5, 50))
    case.delete(location, case.ids(3, 4))
    fill_migration(store, migration)
    tenth = rows(case, 1, 10)
    changed = Rows(tenth.ids, -tenth.vectors, [{**tenth.payloads[0], "number": 1000}])
    case.insert(location, changed)
    case.delete(location, case.ids(11))
    case.insert(location, rows(case, 1, 60))
    migration.cutover(translate)
    expected = {}
    for written in (rows(case, 50), rows(case, 5, 50), changed, rows(case, 1, 60)):
        expected |= dict(zip(written.ids, written.vectors, strict=True))
    for gone in case.ids(3, 4, 11):
        del expected[gone]
    found = case.read(location)
    assert set(found) == set(expected)
    assert found[tenth.ids[0]][1] == changed.payloads[0]
    for each, vector in expected.items():
        assert np.allclose(found[each][0], translate(None, vector[None])[0], atol=1e-3)
    assert migration.count() == len(expected)

    later = rows(case, 1, 70)
    [seventy, twelve] = case.ids(70, 12)
    new = translate(None, later.vectors)
    case.insert(location, Rows(later.ids, new, later.payloads))
    case.delete(location, case.ids(12))
    drain(migration, translate_back)
    migration.rollback(translate_back)
    back = case.read(location)
    # without captured writes, nothing is deleted that clients had before the migration
    assert set(back) - {twelve} == (set(expected) | {seventy}) - {twelve}
    assert (twelve in back) == (not store.capabilities.captures_writes)
    assert np.allclose(back[seventy][0], translate_back(None, new)[0], atol=1e-3)
    assert back[seventy][1] == later.payloads[0]


def test_a_synchronisation_finds_the_changes_of_clients(moving) -> None:
    case, location, store, migration = moving
    fill_migration(store, migration)
    assert len(migration.changes(100)) == 0
    again = store.migration(TAG, NEW_DIM)  # of another process
    case.insert(location, rows(case, 30, 50))
    case.delete(location, case.ids(3, 4))
    if not store.capabilities.captures_writes:  # a look at the changes does not take them
        assert len(again.changes(1)) >= 1
    seen = 0
    while len(changes := again.changes(10)):
        again.apply(changes, translate(changes.ids, changes.vectors))
        seen += len(changes.ids)
    assert seen == 30
    assert again.count() == len(case.read(location)) == 78
    assert len(again.changes(10)) == 0


def test_rows_that_differ_on_both_sides_are_counted(moving) -> None:
    case, location, store, migration = moving
    fill_migration(store, migration)
    migration.build_index()
    waits = store.capabilities.captures_writes  # what waits in a queue is no difference
    for by, number in ((translate, 8), (translate_back, 9)):
        assert migration.count_different(print, list) == 0
        case.change_text(location, case.ids(number)[0], "another")
        assert migration.count_different(print, list) == (not waits)
        apply = partial(drain, store.migration(TAG, NEW_DIM), by)
        assert migration.count_different(print, apply) == 0
        migration.cutover(translate)


def test_a_changed_text_is_told_from_other_changes(moving) -> None:
    case, location, store, migration = moving
    migration.prepare()
    vectors = dict(zip(*every(store), strict=True))
    page = store.scroll_texts(None, 50)
    [late, text, other] = case.ids(7, 8, 9)
    case.change_text(location, late, "another text")  # after it was read
    migration.write(page.ids, translate(None, np.stack([vectors[each] for each in page.ids])))
    migration.build_index()
    case.change_text(location, text, "another text")
    number = {**rows(case, 1, 9).payloads[0], "number": 1000}
    case.insert(location, Rows([other], vectors[other][None], [number]))
    changes = migration.changes(100)
    assert (set(changes.ids), set(changes.same_text)) == ({late, text, other}, {other})
    assert set(store.texts(changes.ids)) == {"another text", "item 9 é"}
    migration.apply(changes, translate(None, -changes.vectors))
    assert len(migration.changes(100)) == 0
    expected = translate(None, -np.stack([vectors[late], vectors[text]]))
    assert np.allclose(migration.read([late, text]).vectors, expected, atol=1e-3)
    migration.cutover(translate)
    with pytest.raises((WrongState, StoreChanged)):
        migration.write([late], expected[:1], replace=True)
    case.change_text(location, text, "a third text")
    changes = migration.changes(100)
    assert (list(changes.ids), list(changes.same_text)) == ([text], [])
    migration.apply(changes, vectors[late][None])
    assert np.allclose(store.fetch([text]).vectors, vectors[late], atol=1e-3)


def test_a_rewritten_vector_is_no_change_and_loses_to_a_newer_write(moving) -> None:
    case, location, store, migration = moving
    fill_migration(store, migration)
    wanted = rows(case, 3, 70)
    visible: list[tuple[Side, Side]] = [("new", "old"), ("old", "new")]
    for number, (side, hidden) in enumerate(visible):
        (migration.cutover if side == "new" else migration.rollback)(
            translate if side == "new" else translate_back
        )
        ids = case.ids(1, 2, 3)
        seen, before = store.fetch(ids, side), store.fetch(ids, hidden).vectors
        payload = {**rows(case, 1, 2).payloads[0], "number": 1000 + number}
        case.insert(location, Rows(ids[1:2], -seen.vectors[1:2], [payload]))
        vectors = translate(None, wanted.vectors) if side == "new" else wanted.vectors
        payloads = {id: payload for id, (_, payload) in case.read(location).items()}
        assert sorted(migration.rewrite(seen, vectors)) == sorted([ids[0], ids[2]])
        expected = np.stack([vectors[0], -seen.vectors[1], vectors[2]])
        assert np.allclose(store.fetch(ids, side).vectors, expected, atol=1e-3)
        assert {id: payload for id, (_, payload) in case.read(location).items()} == payloads
        changes = migration.changes(100)
        assert ids[1] in changes.ids
        assert set(changes.ids) - {ids[1]} <= set(changes.same_text) <= {*ids}
        drain(migration, translate_back if side == "new" else translate)
        assert np.allclose(store.fetch([ids[0], ids[2]], hidden).vectors, before[[0, 2]], atol=1e-3)
        assert migration.rewrite(seen, vectors) == []


def test_a_row_without_a_direction_is_reported_once(tmp_path: Path) -> None:
    """The caller puts a row that it cannot translate among the deleted ones."""
    with moved(PgvectorCase(), tmp_path) as found:  # others never report it
        case, location, store, migration = found
        fill_migration(store, migration)
        case.insert(location, rows(case, 3, 60))
        changes = migration.changes(10)
        assert sorted(changes.ids) == case.ids(60, 61, 62)
        kept, [lost, other] = changes.ids[:1], changes.ids[1:]
        first = replace(changes, ids=kept, vectors=changes.vectors[:1], deleted=[lost, other])
        migration.apply(first, translate(kept, first.vectors))
        assert len(migration.changes(10)) == 0
        assert migration.count() == 51
        case.insert(location, rows(case, 1, int(lost), seed=1))
        assert list(migration.changes(10).ids) == [lost]
        drain(migration)
        assert migration.count() == 52


def test_a_row_that_cannot_be_translated_back_keeps_its_old_vector(moving) -> None:
    case, location, store, migration = moving
    if location.kind == "pgvector":
        return  # the caller decides: it puts such a row among the deleted ones
    before = case.read(location)
    fill_migration(store, migration)
    migration.cutover(translate)
    written = rows(case, 1, 10, seed=1)
    [lost] = written.ids
    changed = [{**written.payloads[0], "number": 1000}]
    case.insert(location, Rows(written.ids, translate(None, written.vectors), changed))

    def without_direction(ids, vectors: np.ndarray) -> np.ndarray:
        unknown = np.array([each == lost for each in ids])
        return np.where(unknown[:, None], 0, translate_back(ids, vectors)).astype(np.float32)

    migration.rollback(without_direction)
    assert np.allclose(case.read(location)[lost][0], before[lost][0], atol=1e-6)


def test_a_handle_remembers_no_migration_that_another_one_ended(moving) -> None:
    case, location, store, migration = moving
    fill_migration(store, migration)
    migration.abandon()
    other = open_store(location)
    again = other.migration(OTHER_TAG, NEW_DIM)
    fill_migration(other, again)
    again.cutover(translate)
    first = rows(case, 50)
    for each in (store, other):
        assert np.allclose(vectors_by_number(each, "old"), first.vectors, atol=1e-3)
        new = each.fetch(first.ids, "new").vectors
        assert np.allclose(new, translate(None, first.vectors), atol=1e-3)
    again.finish()
    assert store.fetch(first.ids).vectors.shape == (50, NEW_DIM)
    other.close()


def test_a_run_that_was_killed_is_resumed_with_the_same_rows(filling) -> None:
    case, location, store, migration = filling
    store.close()
    run_until_killed(location, 5, 4)
    fill_migration(store, migration)
    first = rows(case, 50)
    assert migration.count() == 50
    assert np.allclose(migration.read(first.ids).vectors, translate(None, first.vectors), atol=1e-3)


# --- a migration without a cutover ----------------------------------------------------------------


@pytest.fixture(params=EMBEDDED, ids=lambda case: case.kind)
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Moving]:
    with moved(request.param, tmp_path) as found:
        yield found


def opened_anew(location: StoreLocation) -> StoreLocation:
    """Where the application finds the new vectors, as the page of these stores says."""
    if location.kind == "lancedb":
        return replace(location, vector_field=f"vector_anchorage_{TAG}")
    end = f"_anchorage_{TAG}" if location.kind == "sqlite-vec" else f".anchorage-{TAG}-new"
    return replace(location, collection=location.collection + end)


def test_a_checksum_ignores_vectors_and_sees_everything_else(embedded) -> None:
    """Of stores without a cutover; elsewhere both sides are compared."""
    case, location, _, migration = embedded
    before, base = migration.checksum(print), rows(case, 1, 7)
    case.insert(location, Rows(base.ids, -base.vectors, base.payloads))
    assert migration.checksum(print) == before
    changed = [{**base.payloads[0], "number": 8}]
    case.insert(location, Rows(base.ids if case.has_payloads else [50], base.vectors, changed))
    assert migration.checksum(print) != before


def test_a_second_run_fills_missing_rows_and_the_application_opens_the_new_vectors(
    embedded,
) -> None:
    case, location, store, migration = embedded
    fill_migration(store, migration)
    assert migration.count() == 50
    case.delete(location, case.ids(3, 4))
    if case.kind != "lancedb":  # whose clients must also write the new column, or null
        case.insert(location, rows(case, 5, 50))
    before = case.read(location)
    fill_migration(store, migration)
    kept, old = every(store)
    assert migration.count() == len(kept)
    for _ in range(2):
        migration.finish()
    assert is_unchanged(case, location, before)
    new, expected = open_store(opened_anew(location)), translate(None, old)
    found = new.fetch(kept)
    assert list(found.ids) == list(kept)
    assert np.allclose(found.vectors, expected, atol=1e-3)
    [hits] = new.search(Search(expected[[8]], 3))
    assert hits.ids[0] == kept[8]
    new.close()
