"""Chroma beyond the contract: faults, scrolls, filters, settings, and two renames."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from chromadb.errors import InternalError

from app.errors import InvalidFilter, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.chroma import ChromaStore, connection
from app.stores.port import Search, StoreLocation
from tests.stores.cases.base import Rows
from tests.stores.cases.chroma import ChromaFolderCase, ChromaServerCase, open_client
from tests.stores.cases.chroma_server import ChromaServer
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
from tests.waiting import Stopwatch, until


@pytest.fixture
def own_server(tmp_path: Path):
    server = ChromaServer(tmp_path)
    yield server
    server.stop()


def answers(store: ChromaStore) -> bool:
    """Whether the store answers. A server that was frozen answers earlier questions first."""
    with suppress(StoreUnavailable):
        return store.facts().rows > 0
    return False


def test_a_server_that_is_frozen_or_gone_is_unavailable_within_seconds(
    own_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    case = ChromaServerCase(own_server)
    location = case.fill(tmp_path, rows(case, 20))
    store, fresh = ChromaStore(location), ChromaStore(location)
    assert store.facts().rows == 20
    os.kill(own_server.process.pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{own_server.process.pid}/task").glob("*/stat"))
    until(lambda: all(") T " in each.read_text() for each in threads))  # a busy core stops late
    watch = Stopwatch()
    for each in (store, fresh):
        with pytest.raises(StoreUnavailable):
            each.facts()
    assert watch.seconds < 20, "the client's own limit is longer"
    os.kill(own_server.process.pid, signal.SIGCONT)
    until(lambda: answers(store))
    assert store.facts().rows == 20
    own_server.stop()
    for each in (store, fresh):
        with pytest.raises(StoreUnavailable):
            each.scroll(None, 10)
    own_server.start()
    assert fresh.facts().rows == 20
    store.close()
    fresh.close()


@pytest.fixture
def folder(tmp_path: Path):
    case = ChromaFolderCase()
    location = case.fill(tmp_path, rows(case, 50))
    store = ChromaStore(location)
    yield case, location, store
    store.close()


def test_a_folder_without_a_database_is_unavailable(tmp_path):
    store = ChromaStore(StoreLocation("chroma", str(tmp_path / "none"), "items"))
    with pytest.raises(StoreUnavailable, match="no Chroma database"):
        store.facts()
    assert not (tmp_path / "none").exists()


def test_a_missing_an_empty_and_a_deleted_collection(folder):
    _, location, store = folder
    with pytest.raises(StoreChanged, match="There are: "):
        ChromaStore(StoreLocation("chroma", location.url, "other")).facts()
    with pytest.raises(StoreChanged, match=f"Did you mean '{location.collection}'"):
        ChromaStore(StoreLocation("chroma", location.url, location.collection + "x")).facts()
    with open_client(location.url) as client:
        client.create_collection("empty", embedding_function=None)
        with pytest.raises(StoreUnsupported, match="empty"):
            ChromaStore(StoreLocation("chroma", location.url, "empty")).facts()
        assert store.facts().rows == 50
        client.delete_collection(location.collection)
        with pytest.raises(StoreChanged):
            store.scroll(None, 10)


def test_a_folder_that_another_process_changed_asks_for_a_restart():
    with pytest.raises(StoreUnavailable, match="Restart the service"), connection.faults():
        raise InternalError("Error executing plan: Internal error: Error finding id")


def test_filters(folder):
    case, _, store = folder
    query = rows(case, 50).vectors[:1]
    [hits] = store.search(Search(query, 30, filter={"number": {"$lt": 5}}))
    assert sorted(hits.ids) == ["0", "1", "2", "3", "4"]
    [hits] = store.search(Search(query, 3, filter={"where_document": {"$contains": "item 7"}}))
    assert list(hits.ids) == ["7"]
    for wrong in ({"$bad": 1}, {"number": {"$between": 3}}, "text"):
        with pytest.raises(InvalidFilter):
            store.search(Search(query, 3, filter=wrong))


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
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration)
        migration.cutover(translate)
        migration.finish()
        items = client.get_collection(location.collection, embedding_function=None)
        assert items.get(include=include) == before
        assert items.metadata == {"made": "by a test"}
        assert [each.name for each in client.list_collections()] == [location.collection]


@pytest.mark.parametrize(
    "made",
    [
        {"metadata": {"hnsw:space": "ip", "hnsw:construction_ef": 60}},
        {"configuration": {"hnsw": {"space": "ip", "ef_search": 70}}},
    ],
)
def test_the_configuration_stays_as_it_was(folder, made):
    case, location, _ = folder
    with open_client(location.url) as client:
        items = client.create_collection("items", embedding_function=None, **made)
        items.add(ids=case.ids(*range(50)), embeddings=rows(case, 50).vectors)
        store = ChromaStore(StoreLocation("chroma", location.url, "items"))
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration)
        for switch in (migration.cutover, migration.rollback):
            switch(translate if switch == migration.cutover else translate_back)
            after = client.get_collection("items", embedding_function=None)
            assert after.configuration_json == items.configuration_json
        migration.abandon()
        assert {each.name for each in client.list_collections()} == {location.collection, "items"}
        store.close()


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
