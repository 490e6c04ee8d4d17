"""One migration from the fill of a store to its end, timed by phase and compared by row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from app.stores.port import Migration, NewVectors, Search, Store
from app.stores.registry import CONNECTORS, open_store
from benchmarks.stores.clients import Read, StoreClient
from benchmarks.stores.data import World
from benchmarks.stores.searches import measure_searches

PAGE = 1000
#: part of the name of everything that the migration creates
NAME_TAG = "5ca1ab1e"
#: queries of the search after the cutover, and results of each
QUERIES, NEAREST = 200, 10


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a phase."""
        begun = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


def measure(client: StoreClient, folder: Path, world: World) -> dict[str, Any]:
    """Return seconds by phase, and what differed. Raises ConnectorMissing and Missing."""
    clock = Clock()
    import_module(CONNECTORS[client.kind][0])  # with the store's library, which the fill needs too
    with client.running(folder) as url:
        with clock.phase("insert"):
            location = client.fill(url, world.rows)
        with clock.phase("index"):
            apart = client.index(location)
        searches = measure_searches(location, world)
        before = client.read(location)
        store = open_store(location)
        try:
            found = migrate(store, world, clock)
        finally:
            store.close()
        after = client.read(location)
    return {
        "store": client.label,
        "server": client.server,
        "kind": client.kind,
        "insert": client.insert,
        "index_apart": apart,
        "captures_writes": store.capabilities.captures_writes,
        "atomic_cutover": store.capabilities.atomic_cutover,
        "seconds": clock.seconds,
        "searches": searches,
        **found,
        **compare(before, after),
    }


def migrate(store: Store, world: World, clock: Clock) -> dict[str, Any]:
    """Fill a migration, switch, roll it back, and abandon it."""
    migration = store.migration(NAME_TAG, world.native.shape[1])
    sweep(store, migration, world, clock)
    with clock.phase("build"):
        migration.build_index()
    written = migration.count()
    assert isinstance(migration, Migration)
    with clock.phase("cutover"):
        cutover = migration.cutover(world.translate)
    dim = store.facts().dim
    recall = measure_recall(store, world)
    with clock.phase("rollback"):
        rollback = migration.rollback(world.translate_back)
    different = migration.count_different(lambda rows: None, list)
    migration.abandon()
    return {
        "rows": store.facts().rows,
        "written": written,
        "dim_after_cutover": dim,
        "recall": recall,
        "different": different,
        "cutover_pause_s": cutover,
        "rollback_pause_s": rollback,
    }


def sweep(store: Store, migration: NewVectors, world: World, clock: Clock) -> None:
    with clock.phase("prepare"):
        migration.prepare()
    cursor = None
    while True:
        with clock.phase("scroll"):
            page = store.scroll(cursor, PAGE)
        if len(page.ids):
            with clock.phase("translate"):
                vectors = world.translate(page.ids, page.vectors)
            with clock.phase("write"):
                migration.write(page.ids, vectors)
        cursor = page.cursor
        if cursor is None:
            return


def measure_recall(store: Store, world: World) -> float:
    """Return how many of the exact nearest translations the store's index finds, after a cutover.

    Queries are native vectors of the new encoder.
    """
    translated = world.translate(world.rows.ids, world.rows.vectors)
    queries = world.native[-QUERIES:]
    exact = np.argsort(-(queries @ translated.T), axis=1)[:, :NEAREST]
    hits = store.search(Search(queries, NEAREST, side="new"))
    shared = [
        len({int(id) for id in hit.ids} & set(row.tolist()))
        for hit, row in zip(hits, exact, strict=True)
    ]
    return sum(shared) / (NEAREST * len(queries))


def compare(before: Read, after: Read) -> dict[str, Any]:
    """Compare each row before the migration and after its end."""
    common = before.keys() & after.keys()
    return {
        "rows_missing": len(before) - len(common),
        "rows_extra": len(after) - len(common),
        "payloads_changed": sum(before[id][1] != after[id][1] for id in common),
        "vectors_changed": sum(not np.array_equal(before[id][0], after[id][0]) for id in common),
    }
