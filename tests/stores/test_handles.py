"""What the handles of stores raise: faults of a store are not those of the service."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.errors import AnchorageError, StoreChanged, StoreUnavailable
from app.stores.base import Store, StoreLocation
from app.stores.handles import StoreAddress, StoreHandles
from app.stores.hidden_urls import ConnectorFault
from app.stores.registry import CONNECTORS


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return StoreLocation(kind="lancedb", url=str(tmp_path), collection="items")


@pytest.fixture
def handles() -> Iterator[StoreHandles]:
    handles = StoreHandles()
    yield handles
    handles.close()


def missing_key(store: Store) -> Any:
    return {}[store.location.url]


def wrong_type(store: Store) -> Any:
    return store.location.url + 1  # type: ignore[operator]


def wrong_shape(store: Store) -> Any:
    return np.zeros((2, 3)) @ np.zeros((2, 3))


def wrong_value(store: Store) -> Any:
    return int(store.location.url)


@pytest.mark.parametrize("bug", [missing_key, wrong_type, wrong_shape, wrong_value])
def test_a_fault_of_the_service_is_not_called_one_of_the_store(
    handles: StoreHandles, location: StoreLocation, bug: Callable[[Store], Any]
) -> None:
    with pytest.raises(ConnectorFault) as raised:
        handles.submit(location, bug).result(30)
    text = str(raised.value)
    assert f"in {bug.__name__}" in text  # the log of a 500 says where it was
    assert location.url not in text
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


def missing_file(store: Store) -> Any:
    return Path(store.location.url, "none").read_bytes()


def damaged_database(store: Store) -> Any:
    file = Path(store.location.url, "database")
    file.write_bytes(b"nonsense" * 1000)
    connection = sqlite3.connect(file)
    try:
        return connection.execute("SELECT * FROM sqlite_master").fetchall()
    finally:
        connection.close()


def refused_connection(store: Store) -> Any:
    return httpx.get("http://127.0.0.1:1/")


@pytest.mark.parametrize("call", [missing_file, damaged_database, refused_connection])
def test_what_the_system_and_libraries_raise_is_a_fault_of_the_store(
    handles: StoreHandles,
    location: StoreLocation,
    call: Callable[[Store], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(StoreUnavailable, match="Check it") as raised,
    ):
        handles.submit(location, call).result(30)
    assert location.url not in raised.value.detail
    assert call.__name__ in caplog.text  # the trace says which call it was
    assert location.url not in caplog.text


def test_errors_of_connectors_pass_without_the_url(
    handles: StoreHandles, location: StoreLocation
) -> None:
    def refuse(store: Store) -> None:
        raise StoreChanged(f"There is nothing at {store.location.url}.") from KeyError("x")

    with pytest.raises(StoreChanged, match=r"nothing at \*\*\*") as raised:
        handles.submit(location, refuse).result(30)
    assert raised.value.__cause__ is None


#: answers that no store of these kinds gives
NONSENSE = [b"", b"{}", b"[]", b"null", b'{"result": 7}', b'"x"', b"<html>", b"\xff\xfe", b"[1, 2]"]


@pytest.fixture
def nonsense() -> Iterator[tuple[str, list[bytes]]]:
    """The URL of a server that gives the last of these answers to every request."""
    answers: list[bytes] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answers[-1])))
            self.end_headers()
            self.wfile.write(answers[-1])

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["qdrant", "chroma"])
def test_a_server_that_answers_nonsense_is_no_fault_of_the_service(
    handles: StoreHandles, nonsense: tuple[str, list[bytes]], kind: str
) -> None:
    url, answers = nonsense
    wrong = []
    for each in NONSENSE:
        answers.append(each)
        location = StoreLocation(kind=kind, url=url, collection="items")
        for call in (lambda store: store.facts(), lambda store: store.scroll(None, 10)):
            error = handles.submit(location, call).exception(60)
            if not isinstance(error, AnchorageError) or url in error.detail:
                wrong.append((each, str(error)[-600:]))
        handles.forget(location)
    assert wrong == []


@dataclass(frozen=True)
class Row:
    kind: str
    address: str
    project: str = "default"
    collection: str = "items"
    options: dict[str, Any] = field(default_factory=dict)


def test_the_import_of_a_connector_takes_nothing_from_the_time_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_connector.py").write_text(
        "import time\ntime.sleep(1.5)\nfrom app.stores.sqlite_vec import SqliteVecStore\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for kind in ("slow", "slower"):
        monkeypatch.setitem(CONNECTORS, kind, ("slow_connector", "SqliteVecStore", "slow"))
    handles = StoreHandles({"main": StoreAddress(str(tmp_path))})
    row = Row("slow", "main")
    assert asyncio.run(handles.ask(row, lambda store: store.location.kind, within_s=1)) == "slow"
    monkeypatch.delitem(sys.modules, "slow_connector")
    assert handles.wait(Row("slower", "main"), lambda store: 1, within_s=1) == 1
    handles.close()
