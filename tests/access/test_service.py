"""API keys: callers, their scopes, and secrets that are stored nowhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from app.access import queries as access
from app.access import service as api_keys
from app.access.service import KeyRing
from app.context import Caller, Services
from app.db import tables
from app.errors import DatabaseUnavailable, InvalidRequest, Unauthenticated
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services
from tests.helpers import CONTEXT, PROJECT, again, alter
from tests.waiting import slack, until


def make(services: Services, **more) -> tuple[tables.ApiKeyRow, str]:
    return api_keys.create_key(services, CONTEXT, **{"name": "k", "scopes": [Scope.write]} | more)


def opens(services: Services, key: str) -> bool:
    """Whether a process that never saw the key lets it in."""
    try:
        KeyRing(services).look_up(key)
    except Unauthenticated:
        return False
    return True


def find(ring: KeyRing, key: str) -> Caller | None:
    """The caller of a key as a request finds it; None for one that opens nothing."""
    try:
        return asyncio.run(ring.find(key))
    except Unauthenticated:
        return None


def with_wrong_secret(key: str) -> str:
    return key[:-1] + ("A" if key[-1] != "A" else "B")


def test_a_key_says_who_calls(services):
    row, key = make(services, scopes=[Scope.admin, Scope.read])
    scopes = frozenset([Scope.read, Scope.admin])
    assert KeyRing(services).look_up(key) == Caller(PROJECT, row.id, scopes)


def test_whatever_is_wrong_with_a_key_the_answer_is_the_same(services):
    good, key = make(services)
    revoked, revoked_key = make(services)
    api_keys.revoke_key(services, CONTEXT, revoked.id)
    expired, expired_key = make(services)
    alter(services, expired, expires_at=tables.now())
    ring, refusals = KeyRing(services), set()
    ring.look_up(key)
    malformed = ("", "anc", key[:-1], key + "x", key.upper(), " " + key, "é" * 80)
    foreign = (key.replace(good.id, "0" * 32), key.replace(good.id, revoked.id))
    nul = "anc_" + "0" * 32 + "_" + "\0" * 43
    ended = (revoked_key, expired_key)
    for wrong in (*malformed, nul, with_wrong_secret(key), *foreign, *ended):
        with pytest.raises(Unauthenticated) as caught:
            asyncio.run(ring.find(wrong))
        refusals.add((caught.value.detail, caught.value.field))
    assert len(refusals) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"expires_at": datetime(2020, 1, 1).astimezone()},
        {"expires_at": datetime(2999, 1, 1)},  # whose midnight?
    ],
)
def test_a_key_that_could_not_work_is_not_made(services, wrong):
    with pytest.raises(InvalidRequest) as caught:
        make(services, **wrong)
    assert caught.value.field == next(iter(wrong))
    with services.db.transaction() as session:
        assert access.api_keys(session) == []


# --- revoked --------------------------------------------------------------------------------------


def test_a_revoked_key_opens_nothing_and_revoking_twice_is_no_error(services):
    row, key = make(services)
    api_keys.revoke_key(services, CONTEXT, row.id)
    first = again(services, row).revoked_at
    api_keys.revoke_key(services, CONTEXT, row.id)
    assert again(services, row).revoked_at == first
    assert not opens(services, key)
    assert again(services, row).last_used_at is None  # a refused key leaves no trace of use


# --- the ring -------------------------------------------------------------------------------------


def test_a_key_is_remembered_for_a_moment_and_looked_up_again_then(services, monkeypatch):
    row, key = make(services)
    ring = KeyRing(services)
    caller = find(ring, key)
    alter(services, row, scopes=[])  # the database says otherwise now
    assert find(ring, key) == caller
    assert find(ring, with_wrong_secret(key)) is None
    ring.forget(row.id)
    assert find(ring, key) == replace(caller, scopes=frozenset())
    monkeypatch.setattr(api_keys, "KEY_TRUST_S", 0.0)
    api_keys.revoke_key(services, CONTEXT, row.id)
    assert find(ring, key) is None


def test_a_key_about_to_expire_is_trusted_until_then_only(services):
    row, key = make(services)
    alter(services, row, expires_at=tables.now() + timedelta(seconds=0.5))
    ring = KeyRing(services)
    assert find(ring, key) is not None
    time.sleep(0.55)
    assert find(ring, key) is None


def test_a_ring_remembers_so_many_keys(services, monkeypatch):
    monkeypatch.setattr(api_keys, "MAX_REMEMBERED_KEYS", 2)
    ring, made = KeyRing(services), [make(services) for _ in range(3)]
    for _, key in made:
        ring.look_up(key)
    for row, _ in made:
        alter(services, row, revoked_at=tables.now())
    assert [find(ring, key) is not None for _, key in made] == [False, True, True]


def test_the_moment_of_last_use_is_written_once_a_minute(services):
    row, key = make(services)
    assert again(services, row).last_used_at is None
    KeyRing(services).look_up(key)
    first = again(services, row).last_used_at
    KeyRing(services).look_up(key)
    assert again(services, row).last_used_at == first
    alter(services, row, last_used_at=first - timedelta(minutes=2))
    KeyRing(services).look_up(key)
    assert again(services, row).last_used_at >= first


def test_a_key_that_worked_outlasts_a_database_that_refuses_connections(
    own_postgres, tmp_path, monkeypatch
):
    monkeypatch.setattr(api_keys, "KEY_TRUST_S", 0.0)
    services = make_services(Settings(data_dir=tmp_path, database_url=own_postgres.url))
    services.db.upgrade()
    revoked, revoked_key = make(services)
    ring, (_, key) = KeyRing(services), make(services)
    caller = find(ring, key)
    assert find(ring, revoked_key) is not None
    api_keys.revoke_key(services, CONTEXT, revoked.id)
    assert find(ring, revoked_key) is None
    own_postgres.stop()
    begun = time.monotonic()
    assert find(ring, key) == find(ring, key) == caller
    assert time.monotonic() - begun < slack() * 1.0
    with pytest.raises(DatabaseUnavailable):  # after a wait for a restart of the server
        asyncio.run(ring.find(with_wrong_secret(key)))
    own_postgres.start()
    until(lambda: not services.db.away)
    assert find(ring, with_wrong_secret(key)) is None
    assert find(ring, key) == caller
    services.close()
