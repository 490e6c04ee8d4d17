"""FAISS as a Store: an index file, and its texts in a JSON Lines file.

A migration collects the new vectors in a SQLite file, and then writes an index file of the same
type next to the old one.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from app.errors import AnchorageError, InvalidFilter, StoreChanged, StoreUnsupported
from app.stores.base import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    NewVectors,
    Page,
    RowsChecksum,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import (
    as_json,
    did_you_mean,
    fault_of,
    page_of,
    refuse_new_side,
    row_number,
    rows_checksum,
    store_faults,
)
from app.stores.faiss.index import LoadedIndex, add_rows, inner_of, train
from app.stores.faiss.texts import FIRST, JsonLines, is_settled, unreadable
from app.stores.second_collection import find_text, random_runs

STORE = "The FAISS store"

#: how long a call waits for another process that writes new vectors; how often it reads a file that
#: a client is writing, and the wait in between
BUSY_S, READS, READ_AGAIN_S = 5.0, 5, 0.05

#: rows that are read or added to an index at once
ROWS_AT_ONCE = 10_000

#: the new vector of each row, as little-endian float32
TABLE = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, vector BLOB)"

POSITIONS = StoreNote(
    "ids-are-positions",
    "The index stores no ids, so that a row's id is its position. Wrap it in an `IndexIDMap2` for "
    "ids that stay when rows are deleted.",
)
LOSSY = StoreNote(
    "lossy-vectors",
    "The index stores compressed vectors. Translations and scores are of these approximations.",
)

NO_TEXTS = StoreNote(
    "no-texts",
    "No id of the file of texts is an id of the index. Write it with the ids of the index, which "
    "are positions only without an `IndexIDMap` or IVF.",
)
Signature = tuple[int, int, int]


class FaissStore(Store):
    """An index file in a folder."""

    capabilities = Capabilities()

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.path = Path(location.url.removeprefix("file://")) / location.collection
        #: held by the thread that reads the index or the texts
        self._index_lock, self._lines_lock = threading.Lock(), threading.Lock()
        self._loaded: tuple[Signature, LoadedIndex] | None = None
        self._lines: tuple[Signature, JsonLines] | None = None

    def close(self) -> None:
        self._loaded = self._lines = None

    def load(self) -> LoadedIndex:
        """Return the index of the file as it is now; threads wait for the one that reads it."""
        with self._index_lock, store_faults(STORE, ("faiss",)):
            self._require_file()
            for attempt in range(READS):
                time.sleep(READ_AGAIN_S * attempt)
                before, loaded = _signature(self.path), self._loaded
                if loaded is not None and loaded[0] == before:
                    return loaded[1]
                try:
                    index = LoadedIndex(faiss.read_index(str(self.path)))
                except (RuntimeError, MemoryError):  # the file is not whole
                    if is_settled(self.path):
                        break
                    continue
                if _signature(self.path) == before:
                    self._loaded = before, index
                    return index
            raise unreadable(
                self.path,
                f"FAISS cannot read `{self.path.name}`: it is no index file of "
                "`faiss.write_index`, or it is damaged.",
            )

    def _require_file(self) -> None:
        """Raises StoreChanged if there is no such file, and StoreUnsupported for one outside."""
        self._refuse_outside(self.path)
        if not self.path.is_file():
            similar = did_you_mean(
                self.path.name, [each.name for each in self.path.parent.iterdir()]
            )
            if self.path.is_symlink():
                similar = " It is a link to a file that does not exist."
            raise StoreChanged(f"The address has no file `{self.location.collection}`.{similar}")

    def _refuse_outside(self, path: Path) -> None:
        """Raises StoreUnsupported for a symbolic link to a file outside the address."""
        address = os.path.realpath(self.location.url.removeprefix("file://"))
        if not Path(os.path.realpath(path)).is_relative_to(address):
            raise StoreUnsupported(
                f"`{path.name}` is a symbolic link to a file outside the address. Ask the operator "
                "to add the folder of that file, or move it.",
                field="collection",
            )

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        index = self.load()
        notes = [*[POSITIONS] * (not index.has_ids), *[LOSSY] * index.is_lossy]
        lines = self._texts() if self.location.text_field else None
        notes += [NO_TEXTS] * (lines is not None and not lines.has_any(index.sorted))
        can_migrate = True
        try:
            index.empty_like(index.inner.d)
        except StoreUnsupported as error:
            can_migrate = False
            notes.append(StoreNote("search-only", error.detail))
        return StoreFacts(
            rows=len(index.sorted),
            dim=index.inner.d,
            metric=index.metric,
            indexed=not isinstance(index.inner, faiss.IndexFlatCodes),
            can_migrate=can_migrate,
            vector_bytes=self.path.stat().st_size,
            notes=tuple(notes),
        )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        refuse_new_side(side)
        index = self.load()
        start = int(np.searchsorted(index.sorted, FIRST if cursor is None else cursor + 1))
        ids, vectors = index.find(index.sorted[start : start + limit])
        found = ids.tolist()
        return Page(found, vectors, found[-1] if len(found) == limit else None)

    def sample(self, count: int, seed: int = 0) -> Page:
        index = self.load()
        runs = random_runs(len(index.sorted), count, seed)
        chosen = [np.arange(start, start + length) for start, length in runs]
        ids, vectors = index.find(index.sorted[np.concatenate(chosen)])
        return Page(ids.tolist(), vectors)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        refuse_new_side(side)
        index = self.load()
        there, vectors = index.find(np.asarray(numbers_of(ids), np.int64))
        return page_of(ids, dict(zip(there.tolist(), vectors, strict=True)), index.inner.d)

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        ids, lines = self.load().sorted, self._texts()
        parts = (
            ids[start : start + ROWS_AT_ONCE].tolist() for start in range(0, len(ids), ROWS_AT_ONCE)
        )
        row = lines.row if lines else lambda id: {}
        pages = ([row_number(as_json([id, row(id)])) for id in part] for part in parts)
        return rows_checksum(pages, hear)

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondFile(self, tag, dim)

    def _texts(self) -> JsonLines | None:
        """Return the file of texts as it is now; None if there is none."""
        path = self.path.with_suffix(".jsonl")
        with self._lines_lock, store_faults(STORE, ()):
            if not path.is_file():
                return None
            self._refuse_outside(path)
            now, lines = _signature(path), self._lines
            if lines is None or lines[0] != now:
                self._lines = lines = now, JsonLines(path, self.location.id_field or "id")
            return lines[1]

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        """Return texts of the file of JSON Lines."""
        lines = self._texts()
        if field is None or lines is None:
            raise StoreUnsupported(
                f"Texts are read from `{self.path.with_suffix('.jsonl').name}` next to the index, "
                "by the field that `text_field` names. Write that file, and name the field.",
                field="text_field",
            )
        return [find_text(lines.row(id), field) for id in ids]

    def search(
        self,
        queries: StoreVectors,
        k: int,
        *,
        filter: Any = None,
        side: Side = "old",
        exact: bool = False,
        vectors: bool = False,
        payload: bool = False,
    ) -> Sequence[Hits]:
        if filter is not None:
            raise InvalidFilter("FAISS has no filters. Remove `filter`.", field="filter")
        refuse_new_side(side)
        index, lines = self.load(), self._texts() if payload else None
        if queries.shape[1] != index.inner.d:
            raise StoreChanged(f"The index has vectors of {index.inner.d} dimensions now. Repeat.")
        hits = []
        for ids, scores in index.search(queries, k, exact):
            rows = [lines.row(id) if lines else {} for id in ids.tolist()] if payload else None
            read = index.find(ids)[1] if vectors else None
            hits.append(Hits(ids.tolist(), scores.tolist(), read, rows))
        return hits


class SecondFile(NewVectors):
    """The new vectors of one migration: a SQLite file, and the index file that is made of it."""

    def __init__(self, store: FaissStore, tag: str, dim: int) -> None:
        self._store, self._dim = store, dim
        self._beside = f"{store.path.name}.anchorage-{tag}-"
        self._state_path = store.path.with_name(f"{self._beside}state")
        self._path = store.path.with_name(f"{self._beside}new")

    @contextmanager
    def _state(self, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        """Yield the new vectors in one transaction; an empty table before `prepare`."""
        path = self._state_path
        url = f"{path.absolute().as_uri()}?mode=rw" if path.exists() else ":memory:"
        with store_faults(STORE, ("faiss",), _translate):
            opened = sqlite3.connect(url, uri=True, timeout=BUSY_S, isolation_level=None)
            with closing(opened) as state:
                state.execute(begin)
                state.execute(TABLE)
                yield state
                state.execute("COMMIT")

    def prepare(self) -> None:
        self._store.load().empty_like(self._dim)
        with store_faults(STORE, ()):
            self._state_path.touch()

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        if not self._state_path.exists():
            raise StoreChanged(
                f"The file `{self._state_path.name}` of new vectors is missing. Abandon the "
                "migration, and plan a new one."
            )
        blobs = (vector.tobytes() for vector in np.asarray(vectors, "<f4"))
        with self._state("BEGIN IMMEDIATE") as state:
            statement = "INSERT OR REPLACE INTO rows VALUES (?, ?)"
            state.executemany(statement, zip(ids, blobs, strict=True))

    def read(self, ids: Sequence[StoreId]) -> Page:
        statement = "SELECT id, vector FROM rows WHERE id IN (SELECT value FROM json_each(?))"
        with self._state() as state:
            found = state.execute(statement, (json.dumps(numbers_of(ids)),))
            vectors = {id: np.frombuffer(blob, "<f4") for id, blob in found}
        return page_of(ids, vectors, self._dim)

    def count(self) -> int:
        with self._state() as state:
            return int(state.execute("SELECT count(*) FROM rows").fetchone()[0])

    def build_index(self) -> None:
        """Write the index file, without rows that the application deleted meanwhile."""
        old = self._store.load()
        index = old.empty_like(self._dim)
        with self._state("BEGIN IMMEDIATE") as state:
            known = state.execute("SELECT id FROM rows").fetchall()
            there = set(old.sorted.tolist())
            gone = [each for each in known if each[0] not in there]
            state.executemany("DELETE FROM rows WHERE id = ?", gone)
            if len(gone) == len(known):
                raise StoreChanged("The migration has no rows yet. Run it first.")
            if not index.is_trained:
                most = 256 * max(256, getattr(inner_of(index), "nlist", 0))
                some = f"SELECT id FROM rows ORDER BY random() LIMIT {most}"
                found = state.execute(f"SELECT vector FROM rows WHERE id IN ({some})")
                train(index, _stack([blob for (blob,) in found]))
            rows = state.execute("SELECT id, vector FROM rows ORDER BY id")
            while part := rows.fetchmany(ROWS_AT_ONCE):
                ids = np.asarray([id for id, _ in part])
                add_rows(index, ids, _stack([blob for _, blob in part]))
            self._save(index)

    def _save(self, index: Any) -> None:
        """Write the index file, whole or not at all, with the permissions of the old one."""
        half = self._store.path.with_name(f"{self._beside}half")
        try:
            faiss.write_index(index, str(half))
            shutil.copymode(self._store.path, half)
            half.replace(self._path)
        finally:
            half.unlink(missing_ok=True)

    def finish(self) -> None:
        """Delete the SQLite file. The new index file is the application's."""
        with store_faults(STORE, ()):
            self._state_path.unlink(missing_ok=True)

    def abandon(self) -> None:
        with store_faults(STORE, ()):
            for each in self._store.path.parent.iterdir():
                if each.name.startswith(self._beside):
                    each.unlink(missing_ok=True)


def numbers_of(ids: Sequence[StoreId]) -> list[int]:
    """Return those ids that FAISS can hold: integers of 64 bits."""
    return [id for id in ids if type(id) is int and FIRST <= id < -FIRST]


def _stack(blobs: Sequence[bytes]) -> StoreVectors:
    """Return vectors (n, d)."""
    return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1)


def _signature(path: Path) -> Signature:
    """Return numbers that change when a file is written or replaced."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _translate(error: Exception) -> AnchorageError | None:
    """Return the error of this project that one of SQLite stands for."""
    return fault_of(STORE, str(error)) if isinstance(error, sqlite3.Error) else None
