"""Faults of Chroma, each as one clear error."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from chromadb.errors import InternalError

from app.errors import (
    InvalidFilter,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.chroma import ChromaStore, connection
from app.stores.port import Search, StoreLocation
from tests.stores.cases.chroma import ChromaFolderCase, ChromaServerCase, open_client
from tests.stores.cases.chroma_server import ChromaServer
from tests.stores.moving import rows
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


class OwnServerCase(ChromaServerCase):
    def __init__(self, server: ChromaServer) -> None:
        self._server = server

    def server(self) -> ChromaServer:
        return self._server


def test_a_server_that_is_frozen_or_gone_is_unavailable_within_seconds(
    own_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    case = OwnServerCase(own_server)
    location = case.fill(tmp_path, rows(case, 20))
    store, fresh = ChromaStore(location), ChromaStore(location)
    assert store.facts().rows == 20
    os.kill(own_server.process.pid, signal.SIGSTOP)
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
    location = case.fill(tmp_path, rows(case, 30))
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
    with pytest.raises(StoreChanged, match="no collection"):
        ChromaStore(StoreLocation("chroma", location.url, "other")).facts()
    near = location.collection + "x"
    with pytest.raises(StoreChanged, match=f"Did you mean '{location.collection}'"):
        ChromaStore(StoreLocation("chroma", location.url, near)).facts()
    with open_client(location.url) as client:
        client.create_collection("empty", embedding_function=None)
        with pytest.raises(StoreUnsupported, match="empty"):
            ChromaStore(StoreLocation("chroma", location.url, "empty")).facts()
        assert store.facts().rows == 30
        client.delete_collection(location.collection)
        with pytest.raises(StoreChanged):
            store.scroll(None, 10)


def test_a_folder_that_another_process_changed_asks_for_a_restart():
    with pytest.raises(StoreUnavailable, match="Restart the service"), connection.faults():
        raise InternalError("Error executing plan: Internal error: Error finding id")


def test_filters(folder):
    case, _, store = folder
    query = rows(case, 30).vectors[:1]
    [hits] = store.search(Search(query, 30, filter={"number": {"$lt": 5}}))
    assert sorted(hits.ids) == ["0", "1", "2", "3", "4"]
    [hits] = store.search(Search(query, 3, filter={"where_document": {"$contains": "item 7"}}))
    assert list(hits.ids) == ["7"]
    for wrong in ({"$bad": 1}, {"number": {"$between": 3}}, "text"):
        with pytest.raises(InvalidFilter):
            store.search(Search(query, 3, filter=wrong))
