"""The torture of collections of other stores, whose clients are threads of this process.

They stop as the stores' pages in docs/how-to say: from a verification until its cutover, and from
a synchronisation until its rollback, and they delete nothing in between.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.stores.port import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase
from tests.torture.pgvector import alone
from tests.torture.service import (
    DIMS,
    SOURCE_DIM,
    TARGET_DIM,
    Migration,
    Processes,
    Service,
    unit,
    vector_of,
)
from tests.torture.tally import Tally

CLIENTS = 4
#: rows of each kind of store, of which local Qdrant writes 29 a second
ROWS = {"qdrant": 60}
USUAL_ROWS = 300


class Collection:
    """A collection, and what its clients know of it."""

    def __init__(self, case: StoreCase, folder: Path, tally: Tally, seed: int) -> None:
        self.case, self.tally, self.seed = case, tally, seed
        self.dim = SOURCE_DIM
        self.may_delete = True
        self.end = threading.Event()
        self.locks = [threading.Lock() for _ in range(CLIENTS)]
        #: payload and vector that a client was told are stored
        self.journal: dict[StoreId, tuple[dict[str, Any], np.ndarray]] = {}
        self.doubt: set[StoreId] = set()
        count = ROWS.get(case.kind, USUAL_ROWS)
        vectors = np.stack([vector_of(number, SOURCE_DIM) for number in range(count)])
        payloads = [{"text": f"row {number}", "number": number} for number in range(count)]
        rows = Rows(case.ids(*range(count)), vectors, payloads)
        self.location: StoreLocation = case.fill(folder, rows)
        for place, id in enumerate(rows.ids):
            self.journal[id] = (payloads[place], vectors[place])

    def compare(self, translate: Callable[[np.ndarray], np.ndarray], where: str) -> None:
        """Compare all rows with the journal. Nobody writes meanwhile."""
        found = self.case.read(self.location)
        sure = {id: each for id, each in self.journal.items() if id not in self.doubt}
        for id in sure.keys() - found.keys():
            self.tally.fault("missing", f"{where}: row {id}")
        for id in found.keys() - self.journal.keys() - self.doubt:
            self.tally.fault("extra", f"{where}: row {id}")
        translated = []
        for id in sorted(sure.keys() & found.keys(), key=str):
            (vector, payload), (expected, wrote) = found[id], sure[id]
            if payload != expected:
                self.tally.fault("wrong", f"{where}: {id} is {payload} instead of {expected}")
            if np.ndim(vector) != 1:
                self.tally.fault("wrong", f"{where}: row {id} {payload} has lost its vector")
            elif len(vector) != len(wrote):
                translated.append((id, vector, wrote))
            elif not np.allclose(*map(self._comparable, (vector, wrote)), atol=1e-5):
                self.tally.fault("wrong", f"{where}: row {id} has another vector than its client's")
        if translated:
            want = translate(np.stack([each[2] for each in translated]))
            made = np.stack([each[1] for each in translated])
            difference = np.abs(self._comparable(want) - self._comparable(made)).max(1)
            for place in np.flatnonzero(difference > 1e-3):
                detail = f"row {translated[place][0]} is no translation"
                self.tally.fault("wrong", f"{where}: {detail}")
        self.tally.count("rows compared", f"{self.case.kind} {where}", len(found))

    def _comparable(self, vectors: np.ndarray) -> np.ndarray:
        """Local Qdrant stores some vectors for cosines with the length 1, and some as they come."""
        return unit(np.asarray(vectors)) if self.case.kind == "qdrant" else vectors

    def rebase(self) -> None:
        """Take what is stored now as what clients wrote, once it was compared."""
        self.doubt = set()
        self.journal = {
            id: (payload, np.asarray(vector, np.float32))
            for id, (vector, payload) in self.case.read(self.location).items()
            if np.ndim(vector) == 1
        }


class Writer(threading.Thread):
    """Inserts, replaces and deletes rows of its own; each write changes the payload."""

    def __init__(self, collection: Collection, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self._collection, self._number = collection, number
        self._random = random.Random(f"{collection.seed} {collection.case.kind} {number}")
        self._serial = 10_000 + number

    def run(self) -> None:
        collection = self._collection
        while not collection.end.wait(self._random.expovariate(8)):
            with collection.locks[self._number]:
                self._write()

    def _write(self) -> None:
        collection, draw = self._collection, self._random
        self._serial += CLIENTS
        own = [id for id in list(collection.journal) if int(id) % CLIENTS == self._number]
        kind = draw.choice(("insert", "replace", "replace", "delete"))
        if len(own) < 5:
            kind = "insert"
        if kind == "delete" and not collection.may_delete:
            kind = "replace"
        [id] = collection.case.ids(self._serial) if kind == "insert" else [draw.choice(own)]
        payload = {"text": f"text {self._serial}", "number": self._serial}
        vector = vector_of(self._serial, collection.dim)
        collection.doubt.add(id)
        began = time.monotonic()
        try:
            if kind == "delete":
                collection.case.delete(collection.location, [id])
            else:
                rows = Rows([id], vector[None], [payload])
                collection.case.insert(collection.location, rows)
        except Exception as error:  # of whatever library the store has
            text = " ".join(f"{type(error).__name__}: {error}".split())
            collection.tally.count("clients refused", f"{collection.case.kind} {text[:50]}")
            collection.dim = SOURCE_DIM + TARGET_DIM - collection.dim
            if kind == "insert":  # it may be there, and is not written again
                collection.journal.pop(id, None)
            return
        collection.tally.wait(f"a write to {collection.case.kind}", time.monotonic() - began)
        collection.tally.count("statements", f"{collection.case.kind} {kind}")
        collection.doubt.discard(id)
        if kind == "delete":
            collection.journal.pop(id, None)
        else:
            collection.journal[id] = (payload, vector)


def torture_collection(
    collection: Collection, service: Service, address: str, *, seconds: float, kills: float
) -> None:
    """Move a collection there and back, for about this time."""
    case, tally, location = collection.case, collection.tally, collection.location
    draw = random.Random(f"{collection.seed} {case.kind} rounds")
    name = f"torture-{case.kind}"
    fields = {"vector_field": location.vector_field, "text_field": location.text_field}
    place = {key: value for key, value in fields.items() if value is not None}
    service.connect(case.kind, address, name, location.collection, **place)
    threads: list[threading.Thread] = [Writer(collection, each) for each in range(CLIENTS)]
    kill = service.call_and_kill if kills and isinstance(service, Processes) else None
    if isinstance(service, Processes):
        every_s = max(4.0, seconds / 12)
        threads.append(
            threading.Thread(target=service.keep_killing, args=[collection.end, every_s])
        )
    for thread in threads:
        thread.start()
    until, owner, number = time.monotonic() + seconds, "first", 0
    try:
        while number == 0 or time.monotonic() < until:
            [target] = set(DIMS) - {owner}
            abandon = number % 3 == 2
            rate = max(30, len(collection.journal) / 3)
            migration = Migration(service, name, target, tally, rows_per_second=rate, batch=20)
            tally.say(f"{case.kind} to {target}, {len(collection.journal)} rows: run")
            around = partial(_around, collection, service, migration)
            migration.tour(draw, kill, around, kills=kills, abandon=abandon, pause_s=1.5)
            with alone(collection.locks):
                collection.compare(service.translate, "after each migration")
                collection.rebase()
            owner = owner if abandon else target
            number += 1
    finally:
        collection.end.set()
        for thread in threads:
            thread.join()


@contextmanager
def _around(
    collection: Collection, service: Service, migration: Migration, state: str
) -> Iterator[None]:
    """Clients stop while a switch is verified and done. All rows are compared after it."""
    switches = state in ("cut-over", "rolled-back")
    with alone(collection.locks) if switches else nullcontext():
        if switches:
            migration.job("verify" if state == "cut-over" else "sync")
        yield
        # Rows that are deleted between a cutover and a rollback are back after it.
        collection.may_delete = state != "cut-over"
    with alone(collection.locks):
        collection.compare(service.translate, f"after {state}")
