"""The in-process cache; the one in Redis is in test_redis.py."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.db.cache import MemoryCache


def load(cache: MemoryCache, key, size: int = 10, made: list | None = None):
    def make():
        if made is not None:
            made.append(key)
        return f"value of {key}"

    return cache.get_or_make(key, make, lambda value: size)


def test_a_value_is_made_once_and_then_found():
    cache, made = MemoryCache(100), []
    assert [load(cache, "a", made=made) for _ in range(3)] == ["value of a"] * 3
    assert made == ["a"]
    assert (cache.hits, cache.misses, cache.used_bytes) == (2, 1, 10)


@pytest.mark.parametrize("value", [None, 0])
def test_a_value_that_looks_like_nothing_is_a_value(value):
    cache, made = MemoryCache(100), []
    for _ in range(2):
        assert cache.get_or_make("a", lambda: made.append(1) or value, lambda _: 1) is value
    assert made == [1]


def test_bytes_are_bounded_and_the_least_recently_used_goes_first():
    cache, made = MemoryCache(30), []
    for key in "abc":
        load(cache, key, made=made)
    load(cache, "a", made=made)
    load(cache, "d", made=made)  # b goes: a was used since
    assert cache.used_bytes == 30
    made.clear()
    for key in "acd":
        load(cache, key, made=made)
    assert made == []
    load(cache, "b", made=made)
    assert made == ["b"]
    assert cache.used_bytes == 30


def test_a_value_above_the_limit_is_served_but_not_kept():
    cache, nothing, made = MemoryCache(30), MemoryCache(0), []
    load(cache, "a", made=made)
    assert (
        load(cache, "huge", size=31, made=made)
        == load(cache, "huge", size=31, made=made)
        == "value of huge"
    )
    load(cache, "a", made=made)
    assert made == ["a", "huge", "huge"]
    for _ in range(2):
        load(nothing, "b", size=1, made=made)
    assert made[3:] == ["b", "b"]
    assert (cache.used_bytes, nothing.used_bytes) == (10, 0)


@pytest.mark.parametrize(
    ("make", "size"), [(lambda: 1 / 0, lambda _: 10), (lambda: 1, lambda value: value // 0)]
)
def test_what_fails_or_has_no_size_is_not_kept_and_the_next_one_may_make_it(make, size):
    cache = MemoryCache(100)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("a", make, size)
    assert cache.used_bytes == 0
    assert load(cache, "a") == "value of a"


def test_threads_that_miss_one_key_make_it_once_and_its_bytes_are_counted_once():
    cache, made = MemoryCache(100), []

    def make():
        made.append(1)
        time.sleep(0.05)
        return object()

    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda _: cache.get_or_make("a", make, lambda _: 10), range(8)))
    assert len(made) == len({id(value) for value in values}) == 1
    assert cache.used_bytes == 10
