"""Rows of a store, and a whole migration of them, for the tests of every connector.

It imports no connector, so that processes which a test kills start quickly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from app.stores.port import Migration, Store, StoreLocation
from tests.stores.cases.base import Rows, StoreCase

OLD_DIM, NEW_DIM, TAG, OTHER_TAG = 6, 9, "0badcafe", "0decade5"

RNG = np.random.default_rng(19)
ROTATION = RNG.normal(size=(OLD_DIM, NEW_DIM)).astype(np.float32)


def rows(case: StoreCase, count: int, first: int = 0, seed: int = 0) -> Rows:
    vectors = np.random.default_rng([first, seed]).normal(size=(count, OLD_DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    numbers = range(first, first + count)
    payloads = [
        {"text": f"item {each} é", "number": each, "tags": ["a", str(each)], "none": None}
        for each in numbers
    ]
    return Rows(case.ids(*numbers), vectors, payloads)


def numbers_of(ids) -> list[int]:
    """Undo StoreCase.ids."""
    return [int(each) for each in ids]


def translate(ids, vectors: np.ndarray) -> np.ndarray:
    new = vectors @ ROTATION
    return new / np.linalg.norm(new, axis=1, keepdims=True)


def translate_back(ids, vectors: np.ndarray) -> np.ndarray:
    old = vectors @ np.linalg.pinv(ROTATION)
    return (old / np.linalg.norm(old, axis=1, keepdims=True)).astype(np.float32)


def every(store: Store, side="old", limit: int = 7):
    ids, vectors, cursor = [], [], None
    while True:
        page = store.scroll(cursor, limit, side)
        assert len(page.ids) == len(page.vectors) <= limit
        ids += page.ids
        vectors.append(page.vectors)
        if page.cursor is None:
            return ids, np.concatenate(vectors)
        cursor = json.loads(json.dumps(page.cursor))


def write_all(store: Store, migration, limit: int = 20, by=translate) -> None:
    migration.prepare()
    cursor = None
    while True:
        page = store.scroll(cursor, limit)
        migration.write(page.ids, by(page.ids, page.vectors))
        cursor = page.cursor
        if cursor is None:
            break


def fill_migration(store: Store, migration, limit: int = 20) -> None:
    write_all(store, migration, limit)
    if isinstance(migration, Migration):
        drain(migration)
    migration.build_index()


def drain(migration, by=translate) -> None:
    while len(changes := migration.changes(10)):
        migration.apply(changes, by(changes.ids, changes.vectors))


def same(found: dict, rows: Rows) -> bool:
    return set(found) == set(rows.ids) and all(
        np.allclose(found[each][0], vector, atol=1e-3) and found[each][1] == payload
        for each, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True)
    )


RUN = """
import sys
from app.stores.port import StoreLocation
from app.stores.registry import open_store
from tests.stores.moving import NEW_DIM, TAG, translate, write_all

def say_page(ids, vectors):
    print("page", flush=True)
    return translate(ids, vectors)

store = open_store(StoreLocation(*sys.argv[1:4]))
migration = store.migration(TAG, NEW_DIM)
write_all(store, migration, int(sys.argv[4]), say_page)
migration.build_index()
"""


def run_until_killed(location: StoreLocation, limit: int, pages: int) -> None:
    """Migrate in another process, and kill it after so many pages of `limit` rows."""
    where = (location.kind, location.url, location.collection, str(limit))
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *where],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as run:
        assert run.stdout is not None
        for _ in range(pages):
            assert run.stdout.readline() == "page\n"
        run.kill()
