"""Interleaved answers that clicks may follow, in Redis for a day: ids of hits, and their teams."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis import Redis

from app.storage.cache import RedisStore
from app.storage.queries.store_comparisons import Compared

#: how long clicks are taken
OPEN_S = 24 * 3600


@dataclass(frozen=True)
class OpenComparison:
    """The hits of an answer in their order, as texts, and the team of each."""

    of: Compared
    ids: Sequence[str]
    teams: Sequence[Any]


def open_all(store: RedisStore, opened: Mapping[str, OpenComparison]) -> None:
    """Keep answers by the ids of their comparisons. Raises RedisAway."""
    now = time.time()
    answers = {
        id: orjson.dumps([list(each.of), each.ids, each.teams, now]).decode()
        for id, each in opened.items()
    }

    def write(client: Redis, prefix: str) -> None:
        with client.pipeline(transaction=True) as pipeline:
            for id, answer in answers.items():
                pipeline.hset(_key(prefix, id), "answer", answer)
                pipeline.expire(_key(prefix, id), OPEN_S)
            pipeline.execute()

    store.ask(write)


def find(store: RedisStore, id: str) -> OpenComparison | None:
    """Return an answer that is still open, or None. Raises RedisAway."""

    def read(client: Redis, prefix: str) -> OpenComparison | None:
        data = client.hget(_key(prefix, id), "answer")
        if data is None:
            return None
        of, ids, teams, opened_at = orjson.loads(data)
        closed_at = client.get(_closed_key(prefix, of[0]))
        if closed_at is not None and opened_at <= float(closed_at):
            return None
        return OpenComparison(Compared(*of), ids, teams)

    return store.ask(read)


def click(store: RedisStore, id: str, places: Sequence[int]) -> tuple[bool, set[int]]:
    """Remember clicked places; return whether they are the first, and all of the answer.

    Raises RedisAway.
    """

    def write(client: Redis, prefix: str) -> tuple[bool, set[int]]:
        key = _key(prefix, id)
        with client.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping={f"clicked {place}": 1 for place in places})
            pipeline.hkeys(key)
            added, names = pipeline.execute()
        if b"answer" not in names:  # it expired a moment ago
            client.delete(key)
            return False, set()
        clicked = {int(name.split()[1]) for name in names if name.startswith(b"clicked ")}
        return added == len(clicked), clicked

    return store.ask(write)


def decide(store: RedisStore, id: str) -> bool:
    """Return True to the first caller alone. Raises RedisAway."""
    return bool(store.ask(lambda client, prefix: client.hsetnx(_key(prefix, id), "decided", "1")))


def undo(store: RedisStore, id: str, places: Collection[int], *, decided: bool) -> None:
    """Forget clicks, and perhaps the decision, that could not be counted. Raises RedisAway."""
    names = [f"clicked {place}" for place in places] + ["decided"] * decided
    if names:
        store.ask(lambda client, prefix: client.hdel(_key(prefix, id), *names))


def close_all(store: RedisStore, store_id: str) -> None:
    """Take no more clicks on the answers of a store so far. Raises RedisAway."""
    store.ask(
        lambda client, prefix: client.set(_closed_key(prefix, store_id), time.time(), ex=OPEN_S)
    )


def _closed_key(prefix: str, store_id: str) -> str:
    return f"{prefix}:comparisons-closed:{store_id}"


def _key(prefix: str, id: str) -> str:
    return f"{prefix}:comparison:{id}"
