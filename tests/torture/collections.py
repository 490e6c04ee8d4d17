"""The torture of collections of other stores.

Clients stop as the stores' pages in docs/how-to say: from a verification until its cutover, and
from a synchronisation until its rollback, and they delete nothing in between.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.moves.steps import WINDOW_S
from app.stores.port import StoreId
from tests.stores.cases.base import Rows, StoreCase
from tests.torture.endpoint import vector_of_text
from tests.torture.service import NAME_OF_DIM, SOURCE_DIM, Migration, unit, vector_of
from tests.torture.tally import Tally
from tests.torture.world import CLIENTS, Row, World

#: rows of each kind of store, of which local Qdrant writes 29 a second
ROWS = {"qdrant": 60}
USUAL_ROWS = 300


class Collection(World):
    """A collection, and what its clients know of it."""

    #: a translation depends a little on the length, which local Qdrant does not always keep
    tolerances = (1e-5, 2e-3)

    def __init__(
        self, case: StoreCase, folder: Path, tally: Tally, seed: int, *, embeds: bool = False
    ) -> None:
        super().__init__(tally, seed, ROWS.get(case.kind, USUAL_ROWS))
        self.kind, self._case, self._embeds = case.kind, case, embeds
        payloads = [{"text": f"row {number}", "number": number} for number in range(self.rows)]
        vectors = np.stack([self._vector(each, SOURCE_DIM) for each in payloads])
        rows = Rows(case.ids(*range(self.rows)), vectors, payloads)
        self._location = case.fill(folder, rows)
        self.url = self._location.url
        #: payload and vector that a client was told are stored
        self._journal: dict[StoreId, tuple[dict[str, Any], np.ndarray]] = {
            id: (payloads[place], vectors[place]) for place, id in enumerate(rows.ids)
        }
        self._doubt: set[StoreId] = set()
        self._serials = [10_000 + number for number in range(CLIENTS)]

    def _vector(self, payload: dict[str, Any], dim: int) -> np.ndarray:
        """The vector of a row, of its text or of its number."""
        if self._embeds:
            return vector_of_text(NAME_OF_DIM[dim], payload["text"], dim)
        return vector_of(payload["number"], dim)

    def close(self) -> None:
        self._case.remove(self._location)

    def begin(self, pace: float) -> None:
        place = self._location
        fields = {"vector_field": place.vector_field, "text_field": place.text_field}
        given = {key: value for key, value in fields.items() if value is not None}
        self.service.register(self.kind, place.collection, **given)
        for number in range(CLIENTS):
            self.repeat(f"client {number}", 1 / 8, partial(self._write, number))

    @contextmanager
    def switch(self, migration: Migration, state: str) -> Iterator[None]:
        if state not in ("cut-over", "rolled-back"):
            yield
            return
        with self.alone():
            migration.job("verify" if state == "cut-over" else "sync")
            yield
            if self._embeds:  # what the switch has translated is embedded
                time.sleep(WINDOW_S)
                migration.job("sync")

    def read(self) -> Iterable[Row]:
        found = self._case.read(self._location)
        for id in (self._journal.keys() | found.keys()) - self._doubt:
            expected, wrote = self._journal.get(id, (None, None))
            vector, payload = found.get(id, (None, None))
            if self._embeds and expected is not None and vector is not None:
                wrote = self._vector(expected, len(vector))
            yield Row(id, expected, payload, wrote, self._comparable(vector))

    def _comparable(self, vector: Any) -> np.ndarray | None:
        """Local Qdrant stores some vectors for cosines with the length 1, and some as they come."""
        if np.ndim(vector) != 1:  # it was lost
            return None
        return unit(vector) if self.kind == "qdrant" else np.asarray(vector, np.float32)

    def translate(self, vectors: np.ndarray) -> np.ndarray:
        translated = super().translate(vectors)
        return unit(translated) if self.kind == "qdrant" else translated

    def check(self, where: str) -> None:
        with self.alone():
            super().check(where)

    def check_all(self) -> None:
        super().check_all()
        self._doubt = set()
        self._journal = {
            row.id: (row.found, row.vector)
            for row in list(self.read())
            if row.found is not None and row.vector is not None
        }

    def _write(self, number: int, draw: random.Random) -> None:
        """Insert, replace or delete one of a client's rows; each write changes the payload."""
        with self.locks[number]:
            self._serials[number] += CLIENTS
            serial = self._serials[number]
            own = [id for id in list(self._journal) if int(id) % CLIENTS == number]
            kind = draw.choice(("insert", "replace", "replace", "delete"))
            if len(own) < 5:
                kind = "insert"
            if kind == "delete" and not self.may_delete:
                kind = "replace"
            [id] = self._case.ids(serial) if kind == "insert" else [draw.choice(own)]
            payload = {"text": f"text {serial}", "number": serial}
            vector = self._vector(payload, self.dim)
            self._doubt.add(id)
            began = time.monotonic()
            try:
                if kind == "delete":
                    self._case.delete(self._location, [id])
                else:
                    self._case.insert(self._location, Rows([id], vector[None], [payload]))
            except Exception as error:  # of whatever library the store has
                text = " ".join(f"{type(error).__name__}: {error}".split())
                self.tally.count("clients refused", f"{self.kind} {text[:50]}")
                self.other_dim()
                if kind == "insert":  # it may be there, and is not written again
                    self._journal.pop(id, None)
                return
            self.tally.wait(f"a write to {self.kind}", time.monotonic() - began)
            self.tally.count("statements", f"{self.kind} {kind}")
            self._doubt.discard(id)
            if kind == "delete":
                self._journal.pop(id, None)
            else:
                self._journal[id] = (payload, vector)
