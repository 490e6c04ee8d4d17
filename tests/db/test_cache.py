"""What a process remembers: values, and names for a while. For Redis see test_redis.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.db import cache as module
from app.db.cache import MemoryCache, NameCache, NameKey
from app.errors import DatabaseUnavailable, NotFound


def load(cache: MemoryCache, key, size: int = 10, made: list | None = None):
    def make():
        if made is not None:
            made.append(key)
        return f"value of {key}"

    return cache.get_or_make(key, make, lambda value: size)


def test_a_value_is_made_once_by_whichever_thread_and_then_found():
    cache, made = MemoryCache(100), []

    def make() -> str:
        made.append(1)
        time.sleep(0.05)
        return "value"

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(cache.get_or_make, "a", make, lambda _: 10) for _ in range(8)]
        assert {call.result() for call in calls} == {"value"}
    assert (made, cache.used_bytes) == ([1], 10)
    assert cache.find("a") == "value"


@pytest.mark.parametrize("value", [None, 0])
def test_a_value_that_looks_like_nothing_is_a_value(value):
    cache, made = MemoryCache(100), []
    for _ in range(2):
        assert cache.get_or_make("a", lambda: made.append(1) or value, lambda _: 1) is value
    assert made == [1]


def test_bytes_are_bounded_and_the_least_recently_used_goes_first():
    cache, made = MemoryCache(30), []
    for key in "abcad":  # b goes: a was used since
        load(cache, key, made=made)
    assert cache.used_bytes == 30
    made.clear()
    for key in "acdb":
        load(cache, key, made=made)
    assert made == ["b"]
    assert cache.used_bytes == 30


def test_a_value_above_the_limit_is_served_but_not_kept():
    cache, made = MemoryCache(30), []
    load(cache, "a", made=made)
    for _ in range(2):
        assert load(cache, "huge", size=31, made=made) == "value of huge"
    load(cache, "a", made=made)
    assert made == ["a", "huge", "huge"]
    assert cache.used_bytes == 10


@pytest.mark.parametrize(
    ("make", "size"), [(lambda: 1 / 0, lambda _: 10), (lambda: 1, lambda value: value // 0)]
)
def test_what_fails_or_has_no_size_is_not_kept_and_the_next_one_may_make_it(make, size):
    cache = MemoryCache(100)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("a", make, size)
    assert cache.used_bytes == 0
    assert load(cache, "a") == "value of a"


# --- names ---------------------------------------------------------------------------------------

X = NameKey("p", "encoders", ("x",))


@pytest.fixture
def names(monkeypatch) -> NameCache:
    monkeypatch.setattr(module, "MEMORY_S", 3600.0)
    return NameCache()


def look_up(names: NameCache, value: object, name: NameKey = X) -> object:
    return names.find_or(name, lambda: value)


def raising(error: Exception) -> Callable[[], object]:
    def look_up() -> object:
        raise error

    return look_up


def test_what_was_looked_up_is_found_under_its_whole_name(names):
    assert names.find(X) is None
    assert look_up(names, 1) == 1
    others = [NameKey("q", *X[1:]), NameKey("p", "heads", X.names), NameKey("p", X.kind, ("y",))]
    assert [names.find(name) for name in others] == [None] * 3
    assert (look_up(names, 2), names.find(X)) == (1, 1)


def test_after_forget_nothing_from_before_is_found_nor_from_a_look_up_that_began_before(names):
    look_up(names, "old")
    names.forget()
    assert names.find(X) is None
    begun, go = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go.wait(60)
        return "looked up before"

    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(names.find_or, X, slow)
        assert begun.wait(60)
        names.forget()
        assert look_up(names, "new") == "new"  # it does not wait for the look-up from before
        go.set()
        assert before.result() == "looked up before"
    assert names.find(X) == "new"


def test_nothing_is_remembered_for_longer_than_the_limit_from_before_its_look_up(monkeypatch):
    assert module.MEMORY_S == 0.5
    monkeypatch.setattr(module, "MEMORY_S", 0.1)
    names = NameCache()

    def slow() -> str:
        time.sleep(0.11)
        return "old"

    assert names.find_or(X, slow) == "old"
    assert names.find(X) is None
    assert look_up(names, "new") == "new"


def test_while_the_database_is_away_what_was_found_within_a_minute_stays_true(monkeypatch):
    monkeypatch.setattr(module, "MEMORY_S", 0.0)
    gone = DatabaseUnavailable("the database does not answer")
    away = False
    names = NameCache(away=lambda: away)
    look_up(names, "old")
    assert names.find(X) is None
    for _ in range(2):
        assert names.find_or(X, raising(gone)) == "old"
    away = True
    assert names.find(X) == "old" == names.find_or(X, raising(AssertionError("it is remembered")))
    away = False
    assert look_up(names, "new") == "new"
    with pytest.raises(NotFound):
        names.find_or(X, raising(NotFound("it was deleted")))
    away = True
    assert names.find(X) is None
    with pytest.raises(DatabaseUnavailable):
        names.find_or(X, raising(gone))
    look_up(names, "made again")
    monkeypatch.setattr(module, "AWAY_MEMORY_S", 0.0)
    with pytest.raises(DatabaseUnavailable):
        names.find_or(X, raising(gone))


def test_no_more_is_remembered_than_the_limit(names, monkeypatch):
    monkeypatch.setattr(module, "MAX_NAMES", 10)
    for number in range(100):
        look_up(names, number, NameKey("p", "encoders", (str(number),)))
        assert len(names._known) <= 10
    assert names.find(NameKey("p", "encoders", ("99",))) == 99
