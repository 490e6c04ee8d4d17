"""What a process remembers of names, and for how long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count

import pytest

from app.errors import AnchorSetNotFound, DatabaseUnavailable
from app.storage import name_cache as module
from app.storage.name_cache import MEMORY_S, SETTLE_S, NameCache, NameKey
from app.storage.tables import now

X = NameKey("p", "encoders", ("x",))


@pytest.fixture(params=[True, False], ids=["alone", "among others"])
def names(request, monkeypatch) -> NameCache:
    monkeypatch.setattr(module, "MEMORY_S", 3600.0)
    return NameCache(alone=request.param)


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
    ]
    others += [NameKey("p", "encoders", ("x", None)), NameKey("p", "encoders", ())]
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

    def slow() -> str:
        names.forget()
        return "looked up before"

    assert names.find_or(X, slow) == "looked up before"
    assert names.find(X) is None
    assert look_up(names, "new") == "new"


@pytest.mark.parametrize("fails", [False, True])
def test_many_threads_at_once_look_up_once_and_share_what_came_of_it(names, fails):
    begun, together, go, calls = threading.Event(), threading.Barrier(8), threading.Event(), []

    def slow() -> str:
        calls.append(1)
        begun.set()
        assert go.wait(30)
        if fails:
            raise ZeroDivisionError
        return "found"

    def ask(_: int) -> object:
        together.wait()
        return names.find_or(X, slow)

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, number) for number in range(8)]
        assert begun.wait(30)
        assert names.find(X) is None  # nobody is waited for here
        deadline = time.monotonic() + 30
        while len(names._known[X].future._condition._waiters) < 7 and time.monotonic() < deadline:
            time.sleep(0.001)
        go.set()
        if fails:
            assert all(isinstance(each.exception(), ZeroDivisionError) for each in asked)
        else:
            assert [each.result() for each in asked] == ["found"] * 8
    assert calls == [1]


def test_among_others_nothing_is_remembered_for_longer_than_the_limit_from_before_its_look_up(
    monkeypatch,
):
    monkeypatch.setattr(module, "MEMORY_S", 0.1)
    names, alone = NameCache(alone=False), NameCache(alone=True)

    def slow() -> str:
        time.sleep(0.11)
        return "old"

    for each in (names, alone):
        assert each.find_or(X, slow) == "old"
    assert (names.find(X), alone.find(X)) == (None, "old")
    monkeypatch.setattr(module, "MEMORY_S", 0.5)
    look_up(names, "new")
    begun = time.monotonic()
    while names.find(X) == "new":
        assert time.monotonic() < begun + 1
        time.sleep(0.001)


def test_while_the_database_is_away_what_was_found_within_a_minute_stays_true(monkeypatch):
    monkeypatch.setattr(module, "MEMORY_S", 0.0)
    gone = DatabaseUnavailable("the database does not answer")
    away = False
    names = NameCache(alone=False, away=lambda: away)
    look_up(names, "old")
    assert names.find(X) is None
    for _ in range(2):
        assert names.find_or(X, raising(gone)) == "old"
    away = True
    assert names.find(X) == "old" == names.find_or(X, raising(AssertionError("it is remembered")))
    away = False
    assert look_up(names, "new") == "new"
    with pytest.raises(AnchorSetNotFound):
        names.find_or(X, raising(AnchorSetNotFound("it was deleted")))
    away = True
    assert names.find(X) is None
    with pytest.raises(DatabaseUnavailable):
        names.find_or(X, raising(gone))
    look_up(names, "made again")
    monkeypatch.setattr(module, "AWAY_MEMORY_S", 0.0)
    with pytest.raises(DatabaseUnavailable):
        names.find_or(X, raising(gone))


def test_no_more_is_remembered_than_the_limit(names, monkeypatch):
    monkeypatch.setattr(module, "MOST_NAMES", 10)
    for number in range(100):
        look_up(names, number, NameKey("p", "encoders", (str(number),)))
        assert len(names._known) <= 10
    assert names.find(NameKey("p", "encoders", ("99",))) == 99


def test_a_change_settles_for_longer_than_anybody_remembers_and_only_among_others():
    alone, names = NameCache(alone=True), NameCache(alone=False)
    assert alone.settle_s == 0 == alone.still_settling_s(now())
    assert names.settle_s == SETTLE_S > MEMORY_S
    assert names.still_settling_s(now() - timedelta(seconds=SETTLE_S)) == 0
    assert 0 < names.still_settling_s(now() - timedelta(seconds=SETTLE_S / 2)) <= SETTLE_S / 2
    assert (
        names.still_settling_s(now() + timedelta(hours=1)) == SETTLE_S
    )  # by a clock that is ahead


def test_in_thousands_of_races_no_process_answers_from_before_a_deletion_that_was_answered(
    monkeypatch,
):
    monkeypatch.setattr(module, "MEMORY_S", 0.02)
    monkeypatch.setattr(module, "SETTLE_S", 0.03)
    processes = [NameCache(alone=False) for _ in range(3)]
    versions, committing = count(1), threading.Lock()
    committed = answered = 0  # the database, and what clients have been told
    stale, found, deletions = [], 0, 0
    ended = threading.Event()

    def read(names: NameCache) -> None:
        nonlocal found
        while not ended.is_set():
            least = answered
            value = names.find(X)
            found += value is not None  # about: only whether there are many matters
            value = names.find_or(X, lambda: committed) if value is None else value
            if value < least:
                stale.append((value, least))

    def write(names: NameCache) -> None:
        nonlocal committed, answered, deletions
        while not ended.is_set():
            with committing:
                committed = mine = next(versions)
            names.forget()
            time.sleep(names.settle_s)
            with committing:
                answered = max(answered, mine)
            deletions += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            everyone = [pool.submit(read, names) for names in processes]
            everyone += [pool.submit(write, names) for names in processes[:2]]
            deadline = time.monotonic() + 120  # as long as it takes, on whatever machine
            while (found <= 500 or deletions <= 30) and time.monotonic() < deadline:
                time.sleep(0.1)
            ended.set()
            for future in everyone:
                future.result()
    finally:
        sys.setswitchinterval(interval)
    assert stale == []
    assert found > 500
    assert deletions > 30
