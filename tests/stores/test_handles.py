"""What the handles of stores raise: faults of a store are not those of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.db import tables
from app.errors import AddressNotListed, StoreChanged, StoreUnavailable
from app.stores.handles import StoreAddress, StoreHandles, find_address
from app.stores.hidden_urls import ConnectorFault
from app.stores.port import Store, StoreLocation
from app.stores.registry import CONNECTORS


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return StoreLocation(kind="sqlite-vec", url=str(tmp_path), collection="items")


@pytest.fixture
def handles() -> Iterator[StoreHandles]:
    handles = StoreHandles()
    yield handles
    handles.close()


def test_a_fault_of_the_service_is_not_called_one_of_the_store(
    handles: StoreHandles, location: StoreLocation
) -> None:
    def missing_key(store: Store) -> Any:
        return {}[store.location.url]

    with pytest.raises(ConnectorFault) as raised:
        handles.call(location, missing_key)
    text = str(raised.value)
    assert "in missing_key" in text  # the log of a 500 says where it was
    assert location.url not in text
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


def missing_file(store: Store) -> Any:
    return Path(store.location.url, "none").read_bytes()


class Panic(BaseException):
    """As a library in Rust raises."""


def panics(store: Store) -> Any:
    raise Panic(store.location.url)


@pytest.mark.parametrize("call", [missing_file, panics])
def test_what_the_system_raises_and_a_panic_is_a_fault_of_the_store(
    handles: StoreHandles,
    location: StoreLocation,
    call: Callable[[Store], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(StoreUnavailable, match="Check it") as raised,
    ):
        handles.call(location, call)
    assert location.url not in raised.value.detail
    assert call.__name__ in caplog.text  # the trace says which call it was
    assert location.url not in caplog.text


def test_errors_of_connectors_pass_without_the_url(
    handles: StoreHandles, location: StoreLocation
) -> None:
    def refuse(store: Store) -> None:
        raise StoreChanged(f"There is nothing at {store.location.url}.") from KeyError("x")

    with pytest.raises(StoreChanged, match=r"nothing at \*\*\*") as raised:
        handles.call(location, refuse)
    assert raised.value.__cause__ is None


def test_the_import_of_a_connector_takes_nothing_from_the_time_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_connector.py").write_text(
        "import time\ntime.sleep(1.5)\nfrom app.stores.sqlite_vec import SqliteVecStore\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CONNECTORS, "slow", ("slow_connector", "SqliteVecStore", "slow"))
    handles = StoreHandles({"main": StoreAddress(str(tmp_path))})
    row = tables.StoreRow(kind="slow", address="main", collection="items", options={})
    row.project = "default"
    assert asyncio.run(handles.ask(row, lambda store: store.location.kind, within_s=1)) == "slow"
    handles.close()


LISTED = {"main": StoreAddress("/srv/stores", frozenset({"p"})), "open": StoreAddress("/srv")}


def test_an_address_is_found_by_its_projects() -> None:
    assert find_address(LISTED, "main", "p")[1].url == "/srv/stores"
    assert find_address(LISTED, "open", "default")[1].url == "/srv"
    for name, project in (("main", "other"), ("open", "shop")):
        with pytest.raises(AddressNotListed, match=f"`address` is '{name}', and"):
            find_address(LISTED, name, project)
