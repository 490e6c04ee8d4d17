"""The cache that processes share, in a real Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, is_dataclass

import pytest
import torch
from prometheus_client import REGISTRY
from redis import Redis
from torch import Tensor

from app.anchors.spaces import SPACE
from app.db import redis as connect_module
from app.db.cache import Cache
from app.db.redis import MAGIC, CorruptEntry, RedisStore, TensorCodec, pack, unpack
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import Translator
from app.translate.fit import TRANSLATOR
from app.translate.maps import Projection
from app.translate.service import DECODER, PROJECTION
from tests.helpers import some
from tests.waiting import slack, until

MATRIX: TensorCodec[Tensor] = TensorCodec(
    dump=lambda matrix: {"matrix": matrix}, load=lambda tensors: tensors["matrix"]
)


@pytest.fixture
def store_at() -> Iterator[Callable[..., RedisStore]]:
    """Stores as processes have them, closed after the test."""
    with ExitStack() as stack:

        def make(url: str, prefix: str = "p") -> RedisStore:
            store = RedisStore(url, prefix)
            stack.callback(store.close)
            return store

        yield make


@pytest.fixture
def store(store_at: Callable[..., RedisStore], redis_url: str, redis_prefix: str) -> RedisStore:
    return store_at(redis_url, redis_prefix)


def ask(
    store: RedisStore, name: str, value: Tensor, made: list[str] | None = None, kind: str = "test"
) -> Tensor:
    def make() -> Tensor:
        if made is not None:
            made.append(name)
        return value

    return store.get_or_make(kind, name.encode(), make, MATRIX)


def counted(kind: str) -> dict[str, float]:
    """What has been counted of this kind, by outcome; a test has kinds of its own."""
    families = REGISTRY.restricted_registry(["anchorage_cache_total"]).collect()
    samples = [each for family in families for each in family.samples if each.value]
    return {each.labels["outcome"]: each.value for each in samples if each.labels["kind"] == kind}


# --- what travels comes back bit for bit ----------------------------------------------------------


SOURCE, TARGET = fit_space(some(30, 5)), fit_space(1e3 * some(30, 4) + 7)


def fitted(method: str) -> Translator:
    return methods.fit(method, SOURCE, TARGET, methods.resolve(method, {}, anchors=30))


CASES = {
    "space": (SPACE, TARGET),
    "projection": (PROJECTION, Projection(some(5, 30), some(1, 5)[0])),
    "transposed matrix": (MATRIX, some(4, 6).T),
    "one matrix": (TRANSLATOR, fitted("graded")),
    "kernel": (TRANSLATOR, fitted("kernel")),
    "decoder": (
        DECODER,
        methods.fit_decoder("graded", TARGET, methods.resolve("graded", {}, anchors=30)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_travels_comes_back_bit_for_bit(store_at, redis_url, redis_prefix, case):
    shared, value = CASES[case]
    kind = f"round trip {case}"
    first, second = (store_at(redis_url, redis_prefix) for _ in range(2))
    assert first.get_or_make(kind, b"key", lambda: value, shared) is value
    back = second.get_or_make(kind, b"key", lambda: pytest.fail("it is there"), shared)
    assert type(back) is type(value)
    parts = [asdict(each) if is_dataclass(each) else each for each in (back, value)]
    torch.testing.assert_close(*parts, rtol=0, atol=0)
    assert counted(kind) == {"made": 1, "redis": 1}


# --- damage ---------------------------------------------------------------------------------------

DAMAGES = {
    "empty": lambda data: b"",
    "a bit of the payload": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a bit of the digest": lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
    "no safetensors": lambda data: MAGIC + connect_module._digest(b"a", b"rubbish") + b"rubbish",
    "another key's": lambda data: pack(b"b", {"matrix": torch.zeros(3)}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_refused(damage):
    with pytest.raises(CorruptEntry):
        unpack(b"a", DAMAGES[damage](pack(b"a", {"matrix": torch.ones(3)})))


def test_a_damaged_entry_is_made_anew_and_overwritten_with_a_good_one_that_ends(
    store, redis_url, redis_prefix
):
    made: list[str] = []
    ask(store, "a", torch.ones(3), made, "damage")
    with Redis.from_url(redis_url) as client:
        (name,) = client.scan_iter(f"{redis_prefix}:cache:*")
        assert 0 < client.ttl(name) <= connect_module.ENTRY_S
        client.set(name, b"damaged")
    for _ in range(2):
        assert torch.equal(ask(store, "a", torch.ones(3), made, "damage"), torch.ones(3))
    assert made == ["a", "a"]
    assert counted("damage") == {"corrupt": 1, "made": 2, "redis": 1}


# --- bounded --------------------------------------------------------------------------------------


def test_an_entry_above_the_limit_is_served_and_not_kept(store, monkeypatch):
    monkeypatch.setattr(connect_module, "LARGEST_ENTRY", 1000)
    made: list[str] = []
    for name, size in (("small", 16), ("large", 1000)) * 2:
        assert len(ask(store, name, torch.zeros(size), made)) == size
    assert made == ["small", "large", "large"]


def test_memory_is_asked_before_redis_and_redis_before_the_maker(store_at, redis_url, redis_prefix):
    first, second = (Cache(1_000, store_at(redis_url, redis_prefix)) for _ in range(2))
    made = []

    def make() -> Tensor:
        made.append(1)
        return torch.ones(2)

    for cache in (first, first, second, second):
        cache.get_or_make(("order", "k"), make, lambda tensor: tensor.nbytes, shared=MATRIX)
    assert made == [1]
    assert counted("order") == {"made": 1, "redis": 1, "memory": 2}


# --- Redis away -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_server_that_is_away_is_left_alone_by_all_but_one_caller_at_a_time_and_used_again(
    store_at, redis_server, monkeypatch, how
):
    monkeypatch.setattr(connect_module, "AWAY_S", 0.3)
    store, made = store_at(redis_server.url), []
    ask(store, "a", torch.ones(2), made)
    redis_server.kill() if how == "killed" else redis_server.freeze()
    assert torch.equal(ask(store, "a", torch.ones(2), made), torch.ones(2))
    begun = time.monotonic()
    for _ in range(50):  # some 0.02 s, of which one call asks the server again at most
        assert torch.equal(ask(store, "a", torch.ones(2), made), torch.ones(2))
    assert time.monotonic() - begun < slack() * (10 * connect_module.REDIS_READ_S)
    redis_server.start() if how == "killed" else redis_server.thaw()

    def is_used_again() -> bool:
        made.clear()
        ask(store, "a", torch.ones(2), made)
        return made == []

    until(is_used_again, 30)


def test_a_server_that_takes_no_writes_is_known_as_such_until_it_does(redis_server, monkeypatch):
    monkeypatch.setattr(connect_module, "AWAY_S", 0.05)
    optional = RedisStore(redis_server.url, "p")
    with Redis.from_url(redis_server.url) as admin:
        assert optional.takes_writes()
        admin.config_set("maxmemory", "1")
        assert not optional.takes_writes()
        admin.config_set("maxmemory", "0")
        until(lambda: optional.takes_writes())
    optional.close()
