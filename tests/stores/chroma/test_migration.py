"""What differs in Chroma: deletions during a scroll, settings, late writes, and two renames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.stores.chroma import ChromaStore
from tests.stores.cases.base import Rows
from tests.stores.cases.chroma import ChromaFolderCase, open_client
from tests.stores.moving import (
    NEW_DIM,
    TAG,
    every,
    fill_migration,
    rows,
    same,
    translate,
    translate_back,
)


@pytest.fixture
def folder(tmp_path: Path):
    case = ChromaFolderCase()
    location = case.fill(tmp_path, rows(case, 50))
    store = ChromaStore(location)
    yield case, location, store
    store.close()


@pytest.mark.parametrize("gone", [range(5, 25), [19], range(20)])
def test_deletions_during_a_scroll_hide_no_row(folder, gone):
    case, location, store = folder
    page = store.scroll(None, 20)
    case.delete(location, case.ids(*gone))
    case.insert(location, rows(case, 3, 50))
    seen = list(page.ids)
    while page.cursor is not None:
        page = store.scroll(page.cursor, 7)
        seen += page.ids
    assert set(seen) == set(case.ids(*range(20), *({*range(20, 53)} - {*gone})))
    if {*range(12, 20)} - {*gone}:  # else the scroll begins again: no row of its cursor is left
        assert len(seen) == len(set(seen))


def test_metadata_documents_and_settings_move_along(folder):
    case, location, store = folder
    with open_client(location.url) as client:
        items = client.get_collection(location.collection, embedding_function=None)
        items.add(
            ids=["bare", "full"],
            embeddings=rows(case, 2, 90).vectors,
            documents=[None, "a document"],
            metadatas=[None, {"n": 1, "x": 1.5, "yes": True, "list": [1, 2]}],
            uris=["file:///a.png", None],
        )
        include = ["metadatas", "documents", "uris"]
        before = items.get(include=include)
        settings = items.configuration_json["hnsw"]
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration)
        migration.cutover(translate)
        migration.finish()
        items = client.get_collection(location.collection, embedding_function=None)
        assert items.get(include=include) == before
        assert items.metadata == {"made": "by a test"}
        assert items.configuration_json["hnsw"] == settings
        assert [each.name for each in client.list_collections()] == [location.collection]


@pytest.mark.parametrize("next_call", ["cutover", "rollback", "abandon"])
def test_a_crash_between_the_renames_is_completed(folder, next_call):
    case, location, store = folder
    before = case.read(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    with open_client(location.url) as client:
        client.get_collection(location.collection, embedding_function=None).modify(
            name=f"{location.collection}.anchorage-{TAG}.old"
        )
    other = ChromaStore(location)  # another process
    again = other.migration(TAG, NEW_DIM)
    assert len(every(other)[0]) == 50
    assert again.count() == 50
    if next_call == "cutover":
        again.cutover(translate)
        first = rows(case, 50)
        expected = Rows(first.ids, translate(None, first.vectors), first.payloads)
        assert same(case.read(location), expected)
    else:
        _ = again.rollback(translate_back) if next_call == "rollback" else again.abandon()
        after = case.read(location)
        assert set(after) == set(before)
        assert all(np.array_equal(after[each][0], before[each][0]) for each in before)
    other.close()
