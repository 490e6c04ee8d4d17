"""The cache that processes share, in a real Redis."""

from __future__ import annotations

import pickle
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from redis import Redis
from torch import Tensor

from app.anchors.spaces import SPACE
from app.db import redis as connect_module
from app.db.budget import TextBudget
from app.db.cache import Cache
from app.db.redis import MAGIC, CorruptEntry, OptionalRedis, RedisStore, TensorCodec, pack, unpack
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.translate.fit import TRANSLATOR
from app.translate.maps import Projection
from app.translate.service import DECODER, PROJECTION
from tests.waiting import slack, until

MATRIX: TensorCodec[Tensor] = TensorCodec(
    dump=lambda matrix: {"matrix": matrix}, load=lambda tensors: tensors["matrix"]
)


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def store_at() -> Iterator[Callable[..., RedisStore]]:
    """Stores as processes have them, closed after the test."""
    with ExitStack() as stack:

        def make(url: str, prefix: str = "p") -> RedisStore:
            store = RedisStore(OptionalRedis(url), prefix)
            stack.callback(store.close)
            return store

        yield make


@pytest.fixture
def another(
    store_at: Callable[..., RedisStore], redis_url: str, redis_prefix: str
) -> Callable[[], RedisStore]:
    """The store of one process more."""
    return lambda: store_at(redis_url, redis_prefix)


@pytest.fixture
def store(another: Callable[[], RedisStore]) -> RedisStore:
    return another()


def ask(
    store: RedisStore, name: str, value: Tensor, made: list[str] | None = None, kind: str = "test"
) -> Tensor:
    def make() -> Tensor:
        if made is not None:
            made.append(name)
        return value

    return store.get_or_make(kind, name.encode(), make, MATRIX)


def counted(kind: str) -> dict[str, float]:
    """What has been counted so far, by outcome."""
    counts = dict.fromkeys(("memory", "redis", "made", "corrupt", "away"), 0.0)
    for family in REGISTRY.restricted_registry(["anchorage_cache_total"]).collect():
        counts |= {
            sample.labels["outcome"]: sample.value
            for sample in family.samples
            if sample.labels["kind"] == kind
        }
    return counts


def since(before: dict[str, float], kind: str) -> dict[str, float]:
    return {
        outcome: count - before[outcome]
        for outcome, count in counted(kind).items()
        if count != before[outcome]
    }


def entries(client: Redis, prefix: str) -> list[bytes]:
    return sorted(client.scan_iter(f"{prefix}:cache:*"))


# --- what travels comes back bit for bit ----------------------------------------------------------


def equal(first, second) -> bool:
    """The same values, bit for bit, of the same types."""
    if isinstance(first, Tensor):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and first.numpy().tobytes() == second.numpy().tobytes()
        )
    if hasattr(first, "__dataclass_fields__"):
        return type(first) is type(second) and all(
            equal(getattr(first, n), getattr(second, n)) for n in first.__dataclass_fields__
        )
    return type(first) is type(second) and repr(first) == repr(second)


def some(k: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed + d))


SOURCE, TARGET = fit_space(some(30, 5)), fit_space(1e3 * some(30, 4) + 7)
RESOLVED = {method: methods.resolve(method, {}, anchors=30) for method in ("graded", "kernel")}
CASES = {
    "space": (SPACE, TARGET),
    "projection": (PROJECTION, Projection(some(5, 30), some(1, 5)[0])),
    "transposed matrix": (MATRIX, some(4, 6).T),
    **{
        f"translator {m}": (TRANSLATOR, methods.fit(m, SOURCE, TARGET, RESOLVED[m]))
        for m in RESOLVED
    },
    "translator to itself": (TRANSLATOR, methods.fit("graded", TARGET, TARGET, RESOLVED["graded"])),
    "decoder": (DECODER, methods.fit_decoder("graded", TARGET, RESOLVED["graded"])),
}


@pytest.mark.parametrize("case", CASES)
def test_what_travels_comes_back_bit_for_bit(another, case):
    shared, value = CASES[case]
    kind = f"round trip {case}"
    before = counted(kind)
    first, second = another(), another()
    assert first.get_or_make(kind, b"key", lambda: value, shared) is value
    back = second.get_or_make(kind, b"key", lambda: pytest.fail("it is there"), shared)
    assert equal(back, value)
    assert since(before, kind) == {"made": 1, "redis": 1}


def test_nothing_is_ever_unpickled(store, client, redis_prefix, tmp_path):
    """Not even what somebody who may write to Redis puts there."""
    touched = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (touched,))

    ask(store, "a", torch.ones(3))
    (name,) = entries(client, redis_prefix)
    payload = pickle.dumps(Bomb())
    for data in (payload, MAGIC + connect_module._digest(b"a", payload) + payload):
        client.set(name, data)
        assert torch.equal(ask(store, "a", torch.ones(3)), torch.ones(3))
    assert not touched.exists()


# --- damage ---------------------------------------------------------------------------------------

DAMAGES = {
    "empty": lambda data: b"",
    "a bit of the payload": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "no safetensors": lambda data: MAGIC + connect_module._digest(b"a", b"rubbish") + b"rubbish",
    "another key's": lambda data: pack(b"b", {"matrix": torch.zeros(3)}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_anew_and_overwritten_with_a_good_one(
    store, client, redis_prefix, damage
):
    kind = f"damage {damage}"
    made: list[str] = []
    ask(store, "a", torch.ones(3), made, kind)
    (name,) = entries(client, redis_prefix)
    assert 0 < client.ttl(name) <= connect_module.ENTRY_S
    client.set(name, DAMAGES[damage](client.get(name)))
    before = counted(kind)
    assert torch.equal(ask(store, "a", torch.ones(3), made, kind), torch.ones(3))
    assert made == ["a", "a"]
    assert since(before, kind) == {"corrupt": 1, "made": 1}
    before = counted(kind)
    assert torch.equal(ask(store, "a", torch.ones(3), made, kind), torch.ones(3))
    assert since(before, kind) == {"redis": 1}


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_flipped_byte_goes_unnoticed(place, flip):
    data = bytearray(pack(b"key", {"matrix": torch.arange(50.0)}))
    data[place % len(data)] ^= flip
    with pytest.raises(CorruptEntry):
        unpack(b"key", bytes(data))


# --- bounded --------------------------------------------------------------------------------------


def test_an_entry_above_the_limit_is_served_and_not_kept(store, client, redis_prefix, monkeypatch):
    monkeypatch.setattr(connect_module, "LARGEST_ENTRY", 1000)
    made: list[str] = []
    for name, size in (("small", 16), ("large", 1000)) * 2:
        assert len(ask(store, name, torch.zeros(size), made)) == size
    assert made == ["small", "large", "large"]
    assert len(entries(client, redis_prefix)) == 1


def test_a_maker_that_fails_lets_the_next_one_make_it(store):
    with pytest.raises(ZeroDivisionError):
        store.get_or_make(
            "test", b"a", lambda: 1 / 0, TensorCodec(lambda value: {}, lambda tensors: 1)
        )
    made: list[str] = []
    ask(store, "a", torch.ones(1), made)
    assert made == ["a"]


def test_memory_is_asked_before_redis_and_redis_before_the_maker(another):
    first, second = (Cache(1_000, another()) for _ in range(2))
    before, made = counted("order"), []

    def take(cache: Cache) -> Tensor:
        return cache.get_or_make(
            ("order", "k"),
            lambda: made.append(1) or torch.ones(2),
            lambda t: t.nbytes,
            shared=MATRIX,
        )

    for cache in (first, first, second, second):
        take(cache)
    assert made == [1]
    assert since(before, "order") == {"made": 1, "redis": 1, "memory": 2}


# --- Redis away -----------------------------------------------------------------------------------


class Nonsense(socketserver.BaseRequestHandler):
    """Answers whatever comes with the same bytes, and hangs up."""

    def handle(self) -> None:
        if self.request.recv(65536):
            self.request.sendall(self.server.answer)


@pytest.mark.parametrize(
    "answer",
    [
        b":abc\r\n",
        b"$100\r\nabc",
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>no</html>\r\n",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        b"",
    ],
)
def test_whatever_answers_at_the_address_every_value_is_made_and_nothing_is_taken(store_at, answer):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Nonsense) as server:
        server.answer, server.daemon_threads = answer, True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{server.server_address[1]}/0"
        store, made, before = store_at(url), [], counted("nobody")
        for name in "aab":
            assert torch.equal(ask(store, name, torch.ones(2), made, "nobody"), torch.ones(2))
        assert made == ["a", "a", "b"]
        found = since(before, "nobody")
        assert (found["made"], found["away"] >= 1) == (3, True)
        assert not OptionalRedis(url).takes_writes("ready")
        budget = TextBudget(5, url, "p")
        assert [budget.spend("one", 4), budget.spend("one", 4)] == [4, 1]  # this process counts
        server.shutdown()


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
    made.clear()
    deadline = time.monotonic() + 30 * slack()
    while (
        ask(store, "a", torch.ones(2), made) is not None
        and len(made) > 0
        and time.monotonic() < deadline
    ):
        made.clear()
        time.sleep(0.01)
    assert made == []


@pytest.mark.parametrize("why", ["full", "a replica"])
def test_a_server_that_takes_no_writes_is_known_as_such_until_it_does(
    redis_server, monkeypatch, why
):
    monkeypatch.setattr(connect_module, "AWAY_S", 0.05)
    settings = {
        "full": ("maxmemory", "1", "0"),
        "a replica": ("replicaof", "127.0.0.1 1", "no one"),
    }
    name, bad, good = settings[why]
    optional = OptionalRedis(redis_server.url)
    with Redis.from_url(redis_server.url) as admin:

        def change(value: str) -> None:
            admin.config_set(name, value) if why == "full" else admin.execute_command(
                name, *value.split()
            )

        assert optional.takes_writes("ready")
        change(bad)
        assert not optional.takes_writes("ready")
        change(good)
        until(lambda: optional.takes_writes("ready"))
    optional.close()
