"""Stores that cannot be connected as they are described: each says what to correct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from app.context import Services
from app.errors import InvalidOption, StoreUnsupported
from app.stores import service as stores
from app.stores.handles import StoreAddress
from app.stores.port import StoreLocation
from app.stores.schemas import NewStore
from tests.helpers import CONTEXT, PROJECT, create_encoder
from tests.stores.cases.base import StoreCase
from tests.stores.cases.lancedb import LancedbCase, open_table
from tests.stores.cases.pgvector import PgvectorCase
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.stores.moving import OLD_DIM, rows

ROWS = 50
Connect = Callable[..., object]


@pytest.fixture
def connect(services: Services) -> Connect:
    create_encoder(services, "old", OLD_DIM)

    def connect(location: StoreLocation, **changes: object) -> object:
        listed = {"main": StoreAddress(location.url, frozenset({PROJECT}))}
        new = {
            "name": "docs",
            "kind": location.kind,
            "address": "main",
            "collection": location.collection,
            "encoder": "old",
            "vector_field": location.vector_field,
        }
        services.stores.addresses = listed
        return stores.create_store(services, CONTEXT, NewStore(**new | changes))

    return connect


@pytest.mark.parametrize(
    "case",
    [LancedbCase(), LocalQdrantCase()],
    ids=lambda case: case.kind,
)
def test_a_collection_that_is_missing(connect: Connect, tmp_path: Path, case: StoreCase) -> None:
    location = case.fill(tmp_path, rows(case, ROWS))
    with pytest.raises(StoreUnsupported, match=r"has no collection .nowhere.*Correct") as caught:
        connect(location, collection="nowhere")
    assert caught.value.field == "collection"
    assert str(tmp_path) not in caught.value.detail


@pytest.mark.parametrize("case", [LancedbCase(), PgvectorCase()], ids=lambda case: case.kind)
def test_a_second_column_of_vectors_changes_nothing(
    connect: Connect, services: Services, tmp_path: Path, case: StoreCase
) -> None:
    location = case.fill(tmp_path, rows(case, ROWS))
    connect(replace(location, vector_field=None))
    row = stores.find_store(services, PROJECT, "docs")
    if case.kind == "lancedb":
        table = open_table(location)
        table.add_columns(pa.field("second", pa.list_(pa.float32(), 3)))
    else:
        with psycopg.connect(location.url, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {location.collection} ADD COLUMN second vector(3)")
    assert stores.call_row(services, row, lambda store: store.facts()).rows == ROWS
    case.remove(location)


@pytest.mark.parametrize("case", [LancedbCase(), LocalQdrantCase()], ids=lambda case: case.kind)
def test_what_a_collection_does_not_have(connect: Connect, tmp_path: Path, case: StoreCase) -> None:
    location = case.fill(tmp_path, rows(case, ROWS))
    for field in ("number", "nope"):
        with pytest.raises(StoreUnsupported) as caught:
            connect(location, text_field=field)
        assert caught.value.field == "text_field"
    with pytest.raises(InvalidOption, match="'dsn'"):
        connect(location, options={"dsn": "x"})
    connect(location, text_field="text")
