"""FAISS as a Store: an index file, its texts in a JSON Lines file, and a cutover by a rename.

A SQLite file has both vectors of each row, as of when one was made of the other. It shows what
clients changed in the index file, which they rewrite as a whole, and it is the side that they do
not see, until that becomes an index file of the same type.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from app.errors import (
    AnchorageError,
    InvalidFilter,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.base import (
    Capabilities,
    Cursor,
    Hits,
    Page,
    Side,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import as_json, did_you_mean, fault_of, row_number, store_faults
from app.stores.faiss.index import LoadedIndex, add_rows, inner_of, refused, train
from app.stores.second_collection import (
    PairedStore,
    Sides,
    StoredRow,
    find_text,
    opposite,
    random_runs,
)

STORE = "The FAISS store"

#: how long a call waits for another process that writes the state; how often it reads a file that
#: a client is writing, and the wait in between
BUSY_S, READS, READ_AGAIN_S = 5.0, 5, 0.05

#: most indexes that a store keeps in memory: those of both sides
LOADED = 2

#: rows that are added to an index at once
ROWS_AT_ONCE = 10_000

#: both vectors of each row, as little-endian float32
TABLE = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, old BLOB, new BLOB)"

#: the state's `user_version` while the file of the hidden side has all its rows; else it is 0
COMPLETE: dict[Side, int] = {"new": 1, "old": 2}

#: the smallest id
FIRST = -(2**63)

BY_DIGEST = StoreNote(
    "changes-by-digest",
    "A file reports no writes. They are found by comparing vectors, with `sync` and `verify` and "
    "at a cutover; a row that a client deletes after a cutover comes back with a rollback.",
)
POSITIONS = StoreNote(
    "ids-are-positions",
    "The index stores no ids, so that a row's id is its position. Wrap it in an `IndexIDMap2` for "
    "ids that stay when rows are deleted.",
)
LOSSY = StoreNote(
    "lossy-vectors",
    "The index stores compressed vectors. Translations and scores are of these approximations.",
)

Signature = tuple[int, int, int]


class JsonLines:
    """A file of JSON objects by an integer id. The last line of an id counts."""

    def __init__(self, path: Path, id_field: str) -> None:
        self._path, self._id_field = path, id_field
        self._places: dict[int, int] = {}
        place = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                row = _parse(line) if line.strip() else {id_field: FIRST}
                if type(row.get(id_field)) is not int:
                    raise StoreUnavailable(
                        f"Line {number} of `{path.name}` is no JSON object with an integer "
                        f"`{id_field}`. Correct it; if a client is writing it, try again."
                    )
                self._places[row[id_field]] = place
                place += len(line)

    def row(self, id: StoreId) -> dict[str, Any]:
        """Return all but the id of a row; an empty object if the file lacks it."""
        place = self._places.get(id) if isinstance(id, int) else None
        if place is None:
            return {}
        with self._path.open("rb") as file:
            file.seek(place)
            row = _parse(file.readline())
        if row.pop(self._id_field, None) != id:
            raise StoreChanged("A client rewrote the file of texts while it was read. Repeat.")
        return row


@dataclass(frozen=True)
class FilePlace:
    """One side. path: its index file; hidden: clients do not see it, and the state has its rows."""

    side: Side
    path: Path
    state: Path
    hidden: bool


class FaissStore(PairedStore):
    """An index file in a folder."""

    capabilities = Capabilities(atomic_cutover=True)

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self.location = location
        self._path = Path(location.url.removeprefix("file://")) / location.collection
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Signature, LoadedIndex] = OrderedDict()
        self._lines: tuple[Signature, JsonLines] | None = None
        #: the file that a comparison in this thread has read
        self._compared = threading.local()

    def close(self) -> None:
        with self._lock:
            self._loaded.clear()
            self._lines = None

    def _load(self, path: Path) -> LoadedIndex:
        """Return the index of a file as it is now; threads wait for the one that reads it."""
        with self._lock, store_faults(STORE, ("faiss",)):
            for attempt in range(READS):
                time.sleep(READ_AGAIN_S * attempt)
                before = _signature(path)
                if before in self._loaded:
                    self._loaded.move_to_end(before)
                    return self._loaded[before]
                try:
                    index = LoadedIndex(faiss.read_index(str(path)))
                except (RuntimeError, MemoryError):  # the file is not whole
                    continue
                if _signature(path) == before:
                    self._loaded[before] = index
                    while len(self._loaded) > LOADED:
                        self._loaded.popitem(last=False)
                    return index
        raise StoreUnavailable(
            f"FAISS cannot read `{self.location.collection}`: it is no index file, or a client is "
            "writing it. Try again; clients should write another file and rename it."
        )

    @contextmanager
    def _state(self, place: FilePlace, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        """Yield the state of a migration in one transaction; an empty one without a migration."""
        url = f"{place.state.absolute().as_uri()}?mode=rw" if place.state.exists() else ":memory:"
        with store_faults(STORE, ("faiss",), _translate):
            opened = sqlite3.connect(url, uri=True, timeout=BUSY_S, isolation_level=None)
            with closing(opened) as state:
                state.execute(begin)
                state.execute(TABLE)
                yield state
                state.execute("COMMIT")

    def _change(self, place: FilePlace, statement: str, values: Sequence[Any]) -> None:
        """Change rows of the hidden side, whose index file then lacks something."""
        with self._state(place, "BEGIN IMMEDIATE") as state:
            state.execute("PRAGMA user_version = 0")
            state.executemany(statement, values)

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        path = self._path
        with store_faults(STORE, ()):
            names = sorted(each.name for each in path.parent.iterdir())
        if not path.is_file():
            similar = did_you_mean(path.name, names)
            raise StoreChanged(f"The address has no file `{self.location.collection}`.{similar}")
        ours = rf"{re.escape(path.name)}\.anchorage-({tag or '[0-9a-f]{8}'})-(old|new|state)"
        found = [match for each in names if (match := re.fullmatch(ours, each))]
        tag = found[0][1] if found else None
        kept = {match[2] for match in found if match[1] == tag}
        state, is_cut = self._beside(tag, "state"), "old" in kept
        if {"old", "new"} <= kept:  # a crash in the middle of `swap`: one is the visible file
            with self._state(FilePlace("old", path, state, False)) as opened:
                is_cut = _version(opened) == COMPLETE["old"]
            self._beside(tag, "new" if is_cut else "old").unlink(missing_ok=True)
        old = FilePlace("old", self._beside(tag, "old") if is_cut else path, state, is_cut)
        new = FilePlace("new", path if is_cut else self._beside(tag, "new"), state, not is_cut)
        return Sides("cut" if is_cut else "open", tag, old, new) if tag else Sides("none", tag, old)

    def _beside(self, tag: str | None, what: str) -> Path:
        return self._path.with_name(f"{self._path.name}.anchorage-{tag}-{what}")

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        if self._path.is_symlink():
            raise refused("behind a symbolic link, which a cutover would replace")
        self._load(self._path).empty_like(dim)
        with store_faults(STORE, ()):
            self._beside(tag, "state").touch()

    def _ids(self, place: FilePlace, first: int = FIRST, limit: int = -1) -> NDArray[np.int64]:
        """Return ids in ascending order; a limit of -1 is none."""
        if not place.hidden:
            ids = self._load(place.path).sorted
            start = int(np.searchsorted(ids, first))
            return ids[start : start + limit if limit >= 0 else None]
        statement = "SELECT id FROM rows WHERE id >= ? ORDER BY id LIMIT ?"
        with self._state(place) as state:
            return np.fromiter((id for (id,) in state.execute(statement, (first, limit))), np.int64)

    def read_page(
        self, place: FilePlace, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        ids = self._ids(place, FIRST if cursor is None else cursor + 1, limit).tolist()
        rows = self.read_rows(place, ids, vectors=vectors, content=content)
        return list(rows.values()), ids[-1] if len(ids) == limit else None

    def read_rows(
        self, place: FilePlace, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> dict[StoreId, StoredRow]:
        wanted = np.unique(np.asarray([id for id in ids if self.row_id(id) is not None], np.int64))
        statement = f"SELECT id, {place.side}, {opposite(place.side)} FROM rows WHERE id IN "
        with self._state(place) as state:
            known = (json.dumps(wanted.tolist()),)
            found = state.execute(f"{statement} (SELECT value FROM json_each(?))", known)
            pairs = {id: (own, other) for id, own, other in found}
        blobs = {id: own for id, (own, _) in pairs.items()}
        if not place.hidden:
            index = self._load(place.path)
            if any(len(own) != 4 * index.inner.d for own in blobs.values()):
                raise StoreChanged(
                    f"`{self.location.collection}` has vectors of {index.inner.d} dimensions now. "
                    "A step of the migration is just done, or a client replaced the file: repeat "
                    "the call, or put the file back."
                )
            there, numbers = index.find(wanted)
            blobs = {id: _bytes(row) for id, row in zip(there.tolist(), numbers, strict=True)}
        rows: dict[StoreId, StoredRow] = {}
        for id, blob in blobs.items():
            own, other = pairs.get(id, (None, None))
            origin = digest_of(id, other) if own == blob and other else None
            rows[id] = StoredRow(id, np.frombuffer(blob, "<f4"), None, digest_of(id, blob), origin)
        return rows

    def row_id(self, id: Any) -> StoreId | None:
        """Return an id of 64 bits; None for any other."""
        return id if type(id) is int and FIRST <= id < -FIRST else None

    def count_rows(self, place: FilePlace) -> int:
        return len(self._ids(place))

    def dim_of(self, place: FilePlace) -> int:
        if not place.hidden:
            return int(self._load(place.path).inner.d)
        with self._state(place) as state:
            return _dim(state, place.side)

    def write_rows(
        self, place: FilePlace, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        assert place.hidden  # `swap` refuses a file that needs changes afterwards
        assert vectors is not None  # each row of an index has a vector
        pairs = [
            (row.id, _bytes(row.vector), _bytes(vector))
            for row, vector in zip(rows, vectors, strict=True)
        ]
        columns = f"(id, {opposite(place.side)}, {place.side})"
        self._change(place, f"INSERT OR REPLACE INTO rows {columns} VALUES (?, ?, ?)", pairs)

    def delete_rows(self, place: FilePlace, ids: Sequence[StoreId]) -> None:
        self._change(place, "DELETE FROM rows WHERE id = ?", [(id,) for id in ids])

    def complete(self, sides: Sides) -> None:
        self._save(sides.old if sides.phase == "cut" else sides.new)

    def _save(self, place: FilePlace) -> None:
        """Write the rows of the hidden side into its index file, unless it has them all."""
        side = place.side
        with self._state(place, "BEGIN IMMEDIATE") as state:
            if _version(state) == COMPLETE[side] and place.path.exists():
                return
            if not (dim := _dim(state, side)):
                raise StoreChanged("The migration has no rows yet. Run it first.")
            if place.path.exists():  # what was trained stays
                index = faiss.read_index(str(place.path))
                index.reset()
            else:
                index = self._load(self._path).empty_like(dim)
            if not index.is_trained:
                most = 256 * max(256, getattr(inner_of(index), "nlist", 0))
                some = f"SELECT id FROM rows ORDER BY random() LIMIT {most}"
                found = state.execute(f"SELECT {side} FROM rows WHERE id IN ({some})")
                train(index, _stack([blob for (blob,) in found]))
            rows = state.execute(f"SELECT id, {side} FROM rows ORDER BY id")
            while part := rows.fetchmany(ROWS_AT_ONCE):
                add_rows(
                    index, np.asarray([id for id, _ in part]), _stack([blob for _, blob in part])
                )
            self._write(index, place.path)
            if (made := self._load(place.path)).is_lossy:
                for start in range(0, len(made.sorted), ROWS_AT_ONCE):
                    ids, vectors = made.find(made.sorted[start : start + ROWS_AT_ONCE])
                    values = zip(map(_bytes, vectors), ids.tolist(), strict=True)
                    state.executemany(f"UPDATE rows SET {side} = ? WHERE id = ?", values)
            state.execute(f"PRAGMA user_version = {COMPLETE[side]}")

    def _write(self, index: Any, path: Path) -> None:
        """Write an index file, whole or not at all, with the permissions of the visible one."""
        half = path.with_name(f"{path.name}-half")
        try:
            faiss.write_index(index, str(half))
            shutil.copymode(self._path, half)
            _sync(half)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)

    def compare_page(
        self, sides: Sides, source: Side, cursor: Cursor | None, limit: int
    ) -> tuple[list[tuple[StoredRow, StoredRow | None]], Cursor | None]:
        if cursor is None and not sides.place(source).hidden:
            self._compared.file = _signature(self._path)
        return super().compare_page(sides, source, cursor, limit)

    def swap(self, sides: Sides, visible: Side) -> float:
        """Keep the visible file under another name, and rename the other one over it."""
        place: FilePlace = sides.place(visible)
        self._save(place)
        begun = time.monotonic()
        with store_faults(STORE, ()):
            if _signature(self._path) != self._compared.file:
                raise StoreChanged(
                    "A client rewrote the index file since it was compared. Let clients write "
                    "nothing until the step is done, and repeat it."
                )
            os.link(self._path, self._beside(sides.tag, opposite(visible)))
            place.path.replace(self._path)
            _sync(self._path.parent)
        pause = time.monotonic() - begun
        with self._state(place, "BEGIN IMMEDIATE") as state:
            state.execute(f"PRAGMA user_version = {COMPLETE[opposite(visible)]}")
        return pause

    def drop(self, sides: Sides, side: Side) -> None:
        with store_faults(STORE, ()):
            sides.old.state.unlink(missing_ok=True)  # first: the other file tells the phase
            for each in self._path.parent.iterdir():
                if each.name.startswith(self._beside(sides.tag, "").name):
                    each.unlink(missing_ok=True)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        index = self._load(self.find_sides().visible.path)
        notes = [BY_DIGEST, *[POSITIONS] * (not index.has_ids), *[LOSSY] * index.is_lossy]
        try:
            index.empty_like(index.inner.d)
        except StoreUnsupported as error:
            notes.append(StoreNote("search-only", error.detail))
        return StoreFacts(
            rows=len(index.sorted),
            dim=index.inner.d,
            metric=index.metric,
            indexed=not isinstance(index.inner, faiss.IndexFlatCodes),
            can_migrate=notes[-1].code != "search-only",
            vector_bytes=self._path.stat().st_size,
            notes=tuple(notes),
        )

    def sample(self, count: int, seed: int = 0) -> Page:
        place: FilePlace = self.find_sides().old
        ids = self._ids(place).tolist()
        runs = random_runs(len(ids), count, seed)
        chosen = [id for start, length in runs for id in ids[start : start + length]]
        rows = self.read_rows(place, chosen, vectors=True, content=False)
        return self._page(place, list(rows.values()), None)

    def _texts(self) -> JsonLines | None:
        """Return the file of texts as it is now; None if there is none."""
        path = self._path.with_suffix(".jsonl")
        with self._lock, store_faults(STORE, ()):
            if not path.is_file():
                return None
            now = _signature(path)
            if self._lines is None or self._lines[0] != now:
                self._lines = now, JsonLines(path, self.location.id_field or "id")
            return self._lines[1]

    def content_number(self, row: StoredRow) -> int:
        lines = self._texts()
        return row_number(as_json([row.id, lines.row(row.id) if lines else {}]))

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        """Return texts of the file of JSON Lines."""
        lines = self._texts()
        if field is None or lines is None:
            raise StoreUnsupported(
                f"Texts are read from `{self._path.with_suffix('.jsonl').name}` next to the index, "
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
        place: FilePlace = self.find_sides().place(side)
        if place.hidden:
            self._save(place)
        index, lines = self._load(place.path), self._texts() if payload else None
        if queries.shape[1] != index.inner.d:
            raise StoreChanged(f"The index has vectors of {index.inner.d} dimensions now. Repeat.")
        hits = []
        for ids, scores in index.search(queries, k, exact):
            rows = [lines.row(id) if lines else {} for id in ids.tolist()] if payload else None
            read = index.find(ids)[1] if vectors else None
            hits.append(Hits(ids.tolist(), scores.tolist(), read, rows))
        return hits


def digest_of(id: StoreId, vector: bytes) -> int:
    """Return a number below 2^63 of a row."""
    return row_number(as_json(id), vector) >> 65


def _bytes(vector: StoreVectors | None) -> bytes:
    return np.asarray(vector, "<f4").tobytes()


def _stack(blobs: Sequence[bytes]) -> StoreVectors:
    """Return vectors (n, d)."""
    return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1)


def _parse(line: bytes) -> dict[str, Any]:
    """Return the object of a line; an empty one for anything else."""
    try:
        row = json.loads(line, parse_constant=lambda name: None)  # JSON has no NaN
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _signature(path: Path) -> Signature:
    """Return numbers that change when a file is written or replaced."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _version(state: sqlite3.Connection) -> int:
    return int(state.execute("PRAGMA user_version").fetchone()[0])


def _dim(state: sqlite3.Connection, side: Side) -> int:
    """Return the dimensions of the vectors of a side; 0 without rows."""
    found = state.execute(f"SELECT length({side}) / 4 FROM rows LIMIT 1").fetchone()
    return int(found[0]) if found else 0


def _sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _translate(error: Exception) -> AnchorageError | None:
    """Return the error of this project that one of SQLite stands for."""
    return fault_of(STORE, str(error)) if isinstance(error, sqlite3.Error) else None
