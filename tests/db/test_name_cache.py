"""What a process remembers of names, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.db import cache as module
from app.db.cache import NameCache, NameKey
from app.errors import DatabaseUnavailable, NotFound

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
    others = [
        NameKey("q", "encoders", ("x",)),
        NameKey("p", "heads", ("x",)),
        NameKey("p", "encoders", ("y",)),
        NameKey("p", "encoders", ("x", None)),
        NameKey("p", "encoders", ()),
    ]
    assert [names.find(name) for name in others] == [None] * 5
    assert (look_up(names, 2), names.find(X)) == (1, 1)


def test_what_a_look_up_raises_is_not_remembered(names):
    with pytest.raises(ZeroDivisionError):
        names.find_or(X, lambda: 1 / 0)
    assert names.find(X) is None
    assert look_up(names, 1) == 1


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
