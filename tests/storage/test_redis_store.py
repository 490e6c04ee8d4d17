"""The cache that processes share, in a real Redis."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from redis import Redis
from torch import Tensor

from app.maths import graded, methods
from app.maths.space import fit_space
from app.services.shared import DECODER, MATRIX, SPACE, TRANSLATOR
from app.storage import cache as cache_module
from app.storage.cache import DIGEST_BYTES, MAGIC, Cache, Corrupt, RedisStore, Shared, pack, unpack


@pytest.fixture
def client(connect: Callable[[str], Redis], redis_url: str) -> Redis:
    return connect(redis_url)


@pytest.fixture
def store(client: Redis, redis_prefix: str) -> RedisStore:
    return RedisStore(client, redis_prefix, 1_000_000)


def ask(store: RedisStore, name: str, value: Tensor, made: list[str] | None = None, kind: str = "test") -> Tensor:
    def make() -> Tensor:
        if made is not None:
            made.append(name)
        return value

    return store.get_or_make(kind, name.encode(), make, MATRIX)


def counted(kind: str) -> dict[str, float]:
    """What has been counted so far, by outcome."""
    counts = dict.fromkeys(("memory", "redis", "made", "corrupt", "away"), 0.0)
    for family in REGISTRY.restricted_registry(["anchorage_cache_total"]).collect():
        counts |= {sample.labels["outcome"]: sample.value for sample in family.samples if sample.labels["kind"] == kind}
    return counts


def since(before: dict[str, float], kind: str) -> dict[str, float]:
    return {outcome: count - before[outcome] for outcome, count in counted(kind).items() if count != before[outcome]}


def entries(client: Redis, prefix: str) -> list[bytes]:
    return sorted(client.scan_iter(f"{prefix}:cache:*"))


def book(client: Redis, prefix: str) -> tuple[int, set[str], set[str], set[str]]:
    """The bytes the books speak of, and the names of entries by the books of use, of sizes, and in truth."""
    used = {name.decode() for name in client.zrange(f"{prefix}:cache-used", 0, -1)}
    sizes = {name.decode(): int(size) for name, size in client.hgetall(f"{prefix}:cache-sizes").items()}
    total = sizes.pop("total", 0)
    assert total == sum(sizes.values())
    return total, used, set(sizes), {key.decode().removeprefix(f"{prefix}:cache:") for key in entries(client, prefix)}


# --- what travels comes back bit for bit ----------------------------------------------------------------------------------


def equal(first, second) -> bool:
    """The same values, bit for bit, of the same types."""
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and first.shape == second.shape and first.numpy().tobytes() == second.numpy().tobytes()
    if hasattr(first, "__dataclass_fields__"):
        return type(first) is type(second) and all(
            equal(getattr(first, n), getattr(second, n)) for n in first.__dataclass_fields__
        )
    return type(first) is type(second) and repr(first) == repr(second)


def some(k: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed + d))


SOURCE, TARGET = fit_space(some(30, 5)), fit_space(1e3 * some(30, 4) + 7)
RESOLVED = {method: methods.resolve(method, {}, anchors=30) for method in methods.METHODS}
CASES = {
    "space": (SPACE, TARGET),
    "matrix": (MATRIX, graded.projector(SOURCE.unit, power=0.5, ridge=1.0).float()),
    "transposed matrix": (MATRIX, some(4, 6).T),
    **{f"translator {m}": (TRANSLATOR, methods.fit(m, SOURCE, TARGET, RESOLVED[m])) for m in methods.METHODS},
    **{f"translator {m} to itself": (TRANSLATOR, methods.fit(m, TARGET, TARGET, RESOLVED[m])) for m in methods.METHODS},
    **{
        f"decoder {m}": (DECODER, methods.fit_decoder(m, TARGET, RESOLVED[m]))
        for m in methods.METHODS
        if methods.METHODS[m].independent
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_travels_comes_back_bit_for_bit(client, redis_prefix, case):
    shared, value = CASES[case]
    kind = f"round trip {case}"
    before = counted(kind)
    first, second = (RedisStore(client, redis_prefix, 1_000_000) for _ in range(2))
    assert first.get_or_make(kind, b"key", lambda: value, shared) is value
    back = second.get_or_make(kind, b"key", lambda: pytest.fail("it is there"), shared)
    assert equal(back, value)
    assert since(before, kind) == {"made": 1, "redis": 1}


@pytest.mark.parametrize("number", [0.0, -0.0, 5e-324, 1 / 3, 2.0**100, 1.7976931348623157e308])
def test_numbers_travel_as_float64(number):
    space = type(SOURCE)(SOURCE.mean, number, SOURCE.unit, SOURCE.norms)
    assert repr(SPACE.load(unpack(b"k", pack(b"k", SPACE.dump(space)))).scale) == repr(number)


def test_nothing_is_ever_unpickled(store, client, redis_prefix, tmp_path):
    """Not even what somebody who may write to Redis puts there."""
    touched = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (touched,))

    ask(store, "a", torch.ones(3))
    (name,) = entries(client, redis_prefix)
    payload = pickle.dumps(Bomb())
    for data in (payload, MAGIC + cache_module._digest(b"a", payload) + payload):
        client.set(name, data)
        assert torch.equal(ask(store, "a", torch.ones(3)), torch.ones(3))
    assert not touched.exists()


# --- damage ---------------------------------------------------------------------------------------------------------------

HEAD = len(MAGIC) + DIGEST_BYTES

DAMAGES = {
    "empty": lambda data: b"",
    "only its head": lambda data: data[:HEAD],
    "half a head": lambda data: data[: HEAD // 2],
    "a byte short": lambda data: data[:-1],
    "a byte long": lambda data: data + b"\0",
    "another magic": lambda data: b"ANCHOR2\n" + data[len(MAGIC) :],
    "a bit of the magic": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a bit of the digest": lambda data: data[: len(MAGIC)] + bytes([data[len(MAGIC)] ^ 1]) + data[len(MAGIC) + 1 :],
    "a bit of the payload": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "no safetensors": lambda data: MAGIC + cache_module._digest(b"a", b"rubbish") + b"rubbish",
    "other tensors": lambda data: pack(b"a", {"other": torch.ones(3)}),
    "another key's": lambda data: pack(b"b", {"matrix": torch.zeros(3)}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_anew_and_overwritten_with_a_good_one(client, redis_prefix, damage):
    kind = f"damage {damage}"
    store, made = RedisStore(client, redis_prefix, 1_000_000), []
    ask(store, "a", torch.ones(3), made, kind)
    (name,) = entries(client, redis_prefix)
    client.set(name, DAMAGES[damage](client.get(name)))
    before = counted(kind)
    assert torch.equal(ask(store, "a", torch.ones(3), made, kind), torch.ones(3))
    assert made == ["a", "a"]
    found = since(before, kind)
    assert found["made"] == 1
    assert found["corrupt"] >= 1
    assert "redis" not in found
    before = counted(kind)
    assert torch.equal(ask(store, "a", torch.ones(3), made, kind), torch.ones(3))
    assert since(before, kind) == {"redis": 1}
    assert book(client, redis_prefix)[0] == client.strlen(name)


def test_one_damaged_entry_is_counted_once(client, redis_prefix):
    store = RedisStore(client, redis_prefix, 1_000_000)
    ask(store, "a", torch.ones(3), kind="once")
    client.set(entries(client, redis_prefix)[0], b"rubbish")
    before = counted("once")
    ask(store, "a", torch.ones(3), kind="once")
    assert since(before, "once") == {"corrupt": 1, "made": 1}


def test_entries_swapped_in_redis_are_noticed(store, client, redis_prefix):
    made: list[str] = []
    for name, value in (("a", 1.0), ("b", 2.0)):
        ask(store, name, torch.tensor([value]), made)
    first, second = entries(client, redis_prefix)
    one, other = client.get(first), client.get(second)
    client.set(first, other)
    client.set(second, one)
    assert ask(store, "a", torch.tensor([1.0]), made).item() == 1.0
    assert ask(store, "b", torch.tensor([2.0]), made).item() == 2.0
    assert made == ["a", "b", "a", "b"]


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_flipped_byte_goes_unnoticed(place, flip):
    data = bytearray(pack(b"key", {"matrix": torch.arange(50.0)}))
    data[place % len(data)] ^= flip
    with pytest.raises(Corrupt):
        unpack(b"key", bytes(data))


@given(st.binary(max_size=300))
def test_no_bytes_of_a_stranger_are_taken_for_an_entry(data):
    for candidate in (data, MAGIC + data):
        with pytest.raises(Corrupt):
            unpack(b"key", candidate)


# --- bounded --------------------------------------------------------------------------------------------------------------

ENTRY = len(pack(b"", {"matrix": torch.zeros(16)}))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.integers(1, 5))
def test_the_least_recently_used_go_first_and_the_books_are_right(client, redis_prefix, keys, places):
    for key in client.scan_iter(f"{redis_prefix}:*"):
        client.delete(key)
    store = RedisStore(client, redis_prefix, places * ENTRY)
    kept: list[str] = []
    for key in keys:
        made: list[str] = []
        ask(store, key, torch.zeros(16), made)
        assert (made == []) == (key in kept)
        kept = ([name for name in kept if name != key] + [key])[-places:]
        total, *names = book(client, redis_prefix)
        assert total == len(kept) * ENTRY
        assert names[0] == names[1] == names[2]
        assert len(names[0]) == len(kept)


def test_an_entry_above_the_bound_is_served_and_not_kept(client, redis_prefix):
    store, made = RedisStore(client, redis_prefix, ENTRY), []
    ask(store, "small", torch.zeros(16), made)
    for _ in range(2):
        assert len(ask(store, "large", torch.zeros(1000), made)) == 1000
    ask(store, "small", torch.zeros(16), made)
    assert made == ["small", "large", "large"]


def test_a_larger_entry_pushes_out_as_many_as_it_needs(client, redis_prefix):
    store = RedisStore(client, redis_prefix, 4 * ENTRY)
    for name in "abcd":
        ask(store, name, torch.zeros(16))
    ask(store, "large", torch.zeros(16 + 2 * ENTRY // 4))
    total, used, sizes, there = book(client, redis_prefix)
    assert used == sizes == there
    assert total == sum(client.strlen(key) for key in entries(client, redis_prefix)) <= 4 * ENTRY
    made: list[str] = []
    ask(store, "d", torch.zeros(16), made)
    ask(store, "large", torch.zeros(16 + 2 * ENTRY // 4), made)
    assert made == []


def test_entries_that_redis_dropped_leave_the_books(store, client, redis_prefix):
    made: list[str] = []
    for name in "abc":
        ask(store, name, torch.zeros(16), made)
    client.delete(*entries(client, redis_prefix)[:2])
    for name in "abc":
        ask(store, name, torch.zeros(16), made)
    assert len(made) == 5
    total, used, sizes, there = book(client, redis_prefix)
    assert total == 3 * ENTRY
    assert used == sizes == there


@pytest.mark.parametrize("lost", [["cache-used", "cache-sizes", "entries"], ["cache-used"], ["cache-sizes"], ["entries"]])
@pytest.mark.parametrize("full", [True, False], ids=["full", "half full"])
def test_whatever_part_redis_forgets_the_cache_works_on(client, redis_prefix, lost, full):
    store = RedisStore(client, redis_prefix, 4 * ENTRY)
    for name in "abcd" if full else "ab":
        ask(store, name, torch.zeros(16))
    for part in lost:
        client.delete(*(entries(client, redis_prefix) if part == "entries" else [f"{redis_prefix}:{part}"]))
    made: list[str] = []
    for name in "efgh" * 3:
        ask(store, name, torch.zeros(16), made)
    assert made == list("efgh")


def test_redis_without_memory_of_the_scripts_learns_them_again(store, client):
    ask(store, "a", torch.zeros(16))
    client.script_flush()
    made: list[str] = []
    ask(store, "a", torch.zeros(16), made)
    assert made == []


# --- one maker ------------------------------------------------------------------------------------------------------------


def test_threads_of_two_processes_worth_of_caches_make_a_value_once(connect, redis_url, redis_prefix):
    together, made = threading.Barrier(8), []

    def make() -> Tensor:
        made.append(1)
        time.sleep(0.2)
        return torch.arange(5.0)

    caches = [Cache(1_000, RedisStore(connect(redis_url), redis_prefix, 1_000_000)) for _ in range(2)]

    def take(number: int) -> Tensor:
        together.wait()
        return caches[number % 2].get_or_make(("matrix", "k"), make, lambda tensor: tensor.nbytes, shared=MATRIX)

    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(take, range(8)))
    assert made == [1]
    assert all(torch.equal(value, torch.arange(5.0)) for value in values)


def test_a_maker_that_fails_lets_the_next_one_make_it(store):
    with pytest.raises(ZeroDivisionError):
        store.get_or_make("test", b"a", lambda: 1 / 0, Shared(lambda value: {}, lambda tensors: 1))
    made: list[str] = []
    ask(store, "a", torch.ones(1), made)
    assert made == ["a"]


def test_a_maker_that_died_is_waited_for_and_then_replaced(store, client, redis_prefix, monkeypatch):
    monkeypatch.setattr(cache_module, "MAKING_S", 1)
    with ThreadPoolExecutor(1) as pool:

        def die() -> Tensor:
            """Its lock stays behind, as when its process is killed, and ends by itself."""
            for key in client.scan_iter(f"{redis_prefix}:making:*"):
                client.set(key, b"of a dead process", px=1000)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.get_or_make("test", b"a", die, MATRIX)
        assert client.exists(*client.scan_iter(f"{redis_prefix}:making:*"))
        assert torch.equal(pool.submit(ask, store, "a", torch.ones(1)).result(timeout=20), torch.ones(1))


def test_what_has_no_codec_stays_in_its_process(client, redis_prefix):
    cache = Cache(1_000, RedisStore(client, redis_prefix, 1_000_000))
    assert cache.get_or_make(("ids", 1), lambda: "an id", lambda _: 10) == "an id"
    assert entries(client, redis_prefix) == []


def test_memory_is_asked_before_redis_and_redis_before_the_maker(connect, redis_url, redis_prefix):
    first, second = (Cache(1_000, RedisStore(connect(redis_url), redis_prefix, 1_000_000)) for _ in range(2))
    before, made = counted("order"), []

    def take(cache: Cache) -> Tensor:
        return cache.get_or_make(("order", "k"), lambda: made.append(1) or torch.ones(2), lambda t: t.nbytes, shared=MATRIX)

    for cache in (first, first, second, second):
        take(cache)
    assert made == [1]
    assert since(before, "order") == {"made": 1, "redis": 1, "memory": 2}


# --- Redis away -----------------------------------------------------------------------------------------------------------


def test_without_a_server_every_value_is_still_made_and_the_first_failure_counts(connect):
    store, made, before = RedisStore(connect("redis://127.0.0.1:1/0"), "p", 1_000_000), [], counted("nobody")
    for name in "aab":
        assert torch.equal(ask(store, name, torch.ones(2), made, "nobody"), torch.ones(2))
    assert made == ["a", "a", "b"]
    found = since(before, "nobody")
    assert found["made"] == 3
    assert found["away"] >= 1


def test_a_server_that_is_killed_and_comes_back_empty_is_used_again(connect, redis_server, monkeypatch):
    monkeypatch.setattr(cache_module, "AWAY_S", 0.1)
    store, made, before = RedisStore(connect(redis_server.url), "p", 1_000_000), [], counted("killed")
    ask(store, "a", torch.ones(2), made, "killed")
    redis_server.kill()
    for _ in range(2):
        assert torch.equal(ask(store, "a", torch.ones(2), made, "killed"), torch.ones(2))
        time.sleep(0.15)
    assert since(before, "killed")["away"] == 2
    redis_server.start()
    for _ in range(3):
        ask(store, "a", torch.ones(2), made, "killed")
    assert made == ["a"] * 4
    assert since(before, "killed")["redis"] == 2


def test_a_server_killed_while_a_value_is_made_costs_nothing_but_the_entry(connect, redis_server):
    store = RedisStore(connect(redis_server.url), "p", 1_000_000)

    def make() -> Tensor:
        redis_server.kill()
        return torch.ones(2)

    assert torch.equal(store.get_or_make("test", b"a", make, MATRIX), torch.ones(2))


def test_a_full_server_only_means_slower(connect, redis_server):
    with Redis.from_url(redis_server.url) as admin:
        admin.config_set("maxmemory", "1")
        admin.config_set("maxmemory-policy", "noeviction")
    store, made = RedisStore(connect(redis_server.url), "p", 1_000_000), []
    for _ in range(2):
        assert torch.equal(ask(store, "a", torch.ones(2), made), torch.ones(2))
    assert made == ["a", "a"]
