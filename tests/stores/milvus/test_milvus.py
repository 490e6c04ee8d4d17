"""Milvus beyond the contract: keys of text, settings, forms that are refused, and faults."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import replace

import numpy as np
import pytest
from pymilvus import DataType, MilvusClient

from app.errors import (
    InvalidFilter,
    InvalidRequest,
    StoreChanged,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.milvus import MilvusStore
from app.stores.milvus import client as milvus_client
from app.stores.milvus import store as milvus
from app.stores.port import Search, StoreLocation
from tests.stores.cases.milvus import MilvusCase, client_of, make_collection
from tests.stores.cases.milvus_server import server_of_process, shared_server
from tests.stores.moving import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    every,
    fill_migration,
    rows,
    translate,
    translate_back,
)
from tests.waiting import slack

#: a Milvus server takes long to start
pytestmark = pytest.mark.long

CASE = MilvusCase()
VECTOR = {"datatype": DataType.FLOAT_VECTOR, "dim": OLD_DIM}
INT_KEY = {"datatype": DataType.INT64, "is_primary": True}
KEYS = ["", "a", 'b"q', "b'q", "back\\slash", "new\nline", "\x01", "é", "😀", "\\n", "{x}", "z" * 9]


@pytest.fixture(scope="module")
def client() -> MilvusClient:
    return client_of(shared_server())


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store that tests only read."""
    location = CASE.fill(tmp_path_factory.mktemp("milvus"), rows(CASE, 50))
    store = MilvusStore(location)
    yield store
    store.close()
    CASE.remove(location)


@pytest.fixture
def moving(tmp_path):
    location = CASE.fill(tmp_path, rows(CASE, 20))
    store = MilvusStore(location)
    yield location, store, store.migration(TAG, NEW_DIM)
    store.close()
    CASE.remove(location)


def test_text_keys_partition_keys_and_settings_move_along(client) -> None:
    fields = {
        "key": {"datatype": DataType.VARCHAR, "is_primary": True, "max_length": 200},
        "topic": {"datatype": DataType.VARCHAR, "max_length": 50, "is_partition_key": True},
        "numbers": {"datatype": DataType.ARRAY, "element_type": DataType.FLOAT, "max_capacity": 4},
        "document": {"datatype": DataType.JSON},
    }
    name = make_collection(client, **fields, vector=VECTOR)
    client.create_alias(name, alias := f"clients_{name}")
    vectors = rows(CASE, len(KEYS)).vectors
    documents = ["null", {"a": "123"}, {"b": None}]
    common = {"text": "é", "numbers": [0.1], "extra": {"x": 1.5, "big": 2**60, "none": None}}
    client.upsert(
        alias,
        [
            common | {"key": key, "topic": f"t{at}", "document": documents[at % 3], "vector": each}
            for at, (key, each) in enumerate(zip(KEYS, vectors, strict=True))
        ],
    )
    before = sorted(client.query(alias, limit=99), key=lambda row: row["key"])
    form, index = client.describe_collection(alias), client.describe_index(alias, "vector")
    store = MilvusStore(StoreLocation("milvus", shared_server(), alias))
    assert list(every(store, limit=5)[0]) == sorted(KEYS, key=str.encode)
    assert list(store.fetch([*reversed(KEYS), 3, "none"]).ids) == KEYS[::-1]
    place = store.find_sides().visible
    written = [place.written(field, "123") for field in ("document", "text", "more")]
    assert written == ['"123"', "123", "123"]  # a newer server stores a text in a JSON field
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    client.delete(alias, filter="key like 'b%'")
    migration.cutover(translate)
    migration.finish()
    migration.finish()
    migration.abandon()  # again, by somebody who missed its end
    found = sorted(client.query(alias, limit=99), key=lambda row: row["key"])
    kept = [row for row in before if not row["key"].startswith("b")]
    for row, there in zip(found, kept, strict=True):
        new = translate(None, np.float32([there.pop("vector")]))
        assert np.allclose(row.pop("vector"), new, atol=1e-5)
        assert row == there
    now = client.describe_collection(alias)
    for each in ("description", "num_shards", "num_partitions", "consistency_level", "aliases"):
        assert now[each] == form[each]
    form["fields"][-1]["params"]["dim"] = NEW_DIM
    assert now["fields"] == form["fields"]
    assert client.describe_index(alias, "vector") | {"total_rows": 0, "indexed_rows": 0} == index
    assert not client.has_collection(name)
    client.drop_collection(now["collection_name"])
    store.close()


def test_rows_are_found_by_their_partition_key(client, monkeypatch) -> None:
    tenant = {"datatype": DataType.VARCHAR, "max_length": 50, "is_partition_key": True}
    name = make_collection(client, id=INT_KEY, tenant=tenant, vector=VECTOR)
    client.create_alias(name, alias := f"clients_{name}")
    made = [
        {"id": at, "tenant": f't"{at % 9}', "text": "", "vector": vector}
        for at, vector in enumerate(rows(CASE, 200).vectors)
    ]
    client.insert(alias, made)
    store = MilvusStore(StoreLocation("milvus", shared_server(), alias))
    migration = store.migration(TAG, NEW_DIM)

    def found() -> list[int]:
        wanted = [json.dumps(f't"{at}') for at in range(9)]
        ids = [client.query(alias, f"tenant == {each}", output_fields=["id"]) for each in wanted]
        return sorted(row["id"] for tenant in ids for row in tenant)

    fill_migration(store, migration)
    client.delete(alias, ids=[0])
    client.insert(alias, [made[0] | {"text": "changed"}])
    migration.cutover(translate)
    assert found() == list(range(200))
    page = migration.read(list(range(20)))
    assert len(migration.rewrite(page, -page.vectors)) == 20
    assert np.array_equal(migration.read(list(range(20))).vectors, page.vectors)  # no row at risk
    assert found() == list(range(200))
    migration.rollback(translate_back)
    assert found() == list(range(200))
    assert migration.count() == 200
    monkeypatch.setattr(milvus, "partition_key", lambda form: None)  # writes as in a plain one
    migration.write(list(range(50)), translate(None, rows(CASE, 50).vectors), replace=True)
    monkeypatch.undo()
    assert 150 <= migration.count() < 200
    assert migration.count_old() == 200
    migration.abandon()
    client.drop_alias(alias)
    client.drop_collection(name)
    store.close()


def test_forms_that_a_copy_would_change_are_not_migrated(client) -> None:
    plain = {"id": INT_KEY, "vector": VECTOR}
    bits = {"datatype": DataType.BINARY_VECTOR, "dim": 8}
    expected = {"": plain, "auto-id": {"id": INT_KEY | {"auto_id": True}, "vector": VECTOR}}
    expected |= {"partitions": plain, "ttl": plain, "no-alias": plain}
    for code, fields in expected.items():
        name = make_collection(client, loaded=False, **fields)
        if code == "partitions":
            client.create_partition(name, "2026")
        if code == "ttl":
            client.alter_collection_properties(name, {"collection.ttl.seconds": 60})
        place = milvus.MilvusPlace(client.describe_collection(name), "vector")
        problem = milvus.copy_problem(place, name if code == "no-alias" else "alias")
        assert (problem.code if problem else "") == code
        client.drop_collection(name)
    place.form["fields"].append({"name": "bits", "type": bits["datatype"], "params": {}})
    assert milvus.copy_problem(place, "alias").code == "fields"


def test_filters(filled) -> None:
    query = rows(CASE, 50).vectors[:1]
    [hits] = filled.search(Search(query, 50, filter="number < 5 and text like 'item%'"))
    assert sorted(hits.ids) == [0, 1, 2, 3, 4]
    for wrong in ("number <", "text > 3", "1", "x" * 5000, {"number": 3}, 7):
        with pytest.raises(InvalidFilter) as caught:
            filled.search(Search(query, 3, filter=wrong))
        assert len(str(caught.value)) < 500
    with pytest.raises(StoreUnsupported, match="exact"):
        filled.search(Search(query, 3, exact=True))


def test_repeated_ids_do_not_end_a_scan(moving, client) -> None:
    location, store, migration = moving
    again = rows(CASE, 20)
    repeated = [
        {**again.payloads[at], "id": at, "vector": again.vectors[at]} for at in (0, 0, 3, 5)
    ]
    client.insert(location.collection, repeated)
    assert every(store, limit=5)[0] == list(range(20))
    fill_migration(store, migration, limit=5)
    client.insert(location.collection, [{**repeated[0], "id": 99, "text": "late"}])
    migration.cutover(translate)
    assert sorted(CASE.read(location)) == [*range(20), 99]


def test_a_crash_while_the_copy_is_made_or_dropped(moving, client) -> None:
    location, store, migration = moving
    fill_migration(store, migration)
    name = store.find_sides().old.name
    mark = f"anchorage_{TAG}_{name}"
    client.drop_alias(mark)
    again = MilvusStore(location).migration(TAG, NEW_DIM)
    with pytest.raises(StoreChanged):
        again.cutover(translate)
    again.prepare()
    assert again.count() == 20
    client.drop_alias(mark)
    again.abandon()
    assert not client.has_collection(f"{name}_{TAG}")
    assert store.facts().rows == 20


def test_a_collection_that_clients_still_use_by_another_alias_is_kept(moving, client) -> None:
    location, store, migration = moving
    fill_migration(store, migration)
    old = store.find_sides().old.name
    client.create_alias(old, f"{location.collection}_too")
    migration.cutover(translate)
    with pytest.raises(StoreRefused, match="_too"):
        migration.finish()
    migration.rollback(translate_back)
    assert store.facts().dim == OLD_DIM
    migration.cutover(translate)
    client.drop_alias(f"{location.collection}_too")
    migration.finish()
    assert not client.has_collection(old)


def test_a_missing_collection_and_vectors_that_are_not_clear(filled) -> None:
    near = replace(filled.location, collection=filled.location.collection + "x")
    with pytest.raises(StoreChanged, match=f"Did you mean '{filled.location.collection}'"):
        MilvusStore(near).facts()
    with pytest.raises(InvalidRequest, match="Send the name"):
        MilvusStore(replace(filled.location, collection="no-name")).facts()
    with pytest.raises(StoreUnsupported, match="'vector'"):
        MilvusStore(replace(filled.location, vector_field="text")).facts()


def test_a_frozen_server_is_unavailable_within_seconds(filled) -> None:
    server = server_of_process().server_proc.pid
    begun = time.monotonic()
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="DEADLINE_EXCEEDED"):
            filled._call("list_aliases", within_s=1.0)
    finally:
        os.kill(server, signal.SIGCONT)
    assert time.monotonic() - begun < 10 * slack()
    assert filled.facts().rows == 50


def test_addresses_without_a_server_are_unavailable_and_hidden(monkeypatch) -> None:
    monkeypatch.setattr(milvus_client, "CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in (
            f"http://:SECRET@127.0.0.1:{silent.getsockname()[1]}",
            "unix:/SECRET",
            "x.db",
            "http://h:no",
            "http://[::1",
            "http://[::1]:19530",
        ):
            with pytest.raises(StoreUnavailable) as caught:
                MilvusStore(StoreLocation("milvus", url, "items")).facts()
            assert "SECRET" not in str(caught.value)
