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
from collections import OrderedDict, defaultdict
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
from app.stores.faiss.index import LoadedIndex, add_rows, inner_of, train
from app.stores.faiss.texts import FIRST, JsonLines, is_settled, unreadable
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

#: the state's `user_version` while the file of the hidden side has all its rows; else it is
#: negative, or 0 at first
COMPLETE: dict[Side, int] = {"new": 1, "old": 2}

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

NO_TEXTS = StoreNote(
    "no-texts",
    "No id of the file of texts is an id of the index. Write it with the ids of the index, which "
    "are positions only without an `IndexIDMap` or IVF.",
)
LINK = (
    "The collection is a symbolic link, which a cutover would replace. Register the file that it "
    "points to."
)

SIDES: tuple[Side, Side] = ("old", "new")

Signature = tuple[int, int, int]


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
        #: a lock of each file, for the thread that reads it
        self._turns: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._loaded: OrderedDict[Signature, LoadedIndex] = OrderedDict()
        self._lines: tuple[Signature, JsonLines] | None = None
        #: the file that a comparison in this thread has read
        self._compared = threading.local()

    def close(self) -> None:
        with self._lock:
            self._loaded.clear()
            self._lines = None

    def _turn(self, path: Path) -> threading.Lock:
        """Return the lock of a file."""
        with self._lock:
            return self._turns[path]

    def _load(self, path: Path) -> LoadedIndex:
        """Return the index of a file as it is now; threads wait for the one that reads it."""
        with self._turn(path), store_faults(STORE, ("faiss",)):
            for attempt in range(READS):
                time.sleep(READ_AGAIN_S * attempt)
                before = _signature(path)
                with self._lock:
                    if before in self._loaded:
                        self._loaded.move_to_end(before)
                        return self._loaded[before]
                try:
                    index = LoadedIndex(faiss.read_index(str(path)))
                except (RuntimeError, MemoryError):  # the file is not whole
                    if is_settled(path):
                        break
                    continue
                if _signature(path) == before:
                    with self._lock:
                        self._loaded[before] = index
                        while len(self._loaded) > LOADED:
                            self._loaded.popitem(last=False)
                    return index
            advice = self._way_out() if path == self._path else ""
            raise unreadable(
                path,
                f"FAISS cannot read `{path.name}`: it is no index file of `faiss.write_index`, or "
                f"it is damaged.{advice}",
            )

    def _way_out(self) -> str:
        """Return what to do about a visible file that a client damaged or replaced."""
        name, sides = self._path.name, self.find_sides()
        if not sides.old.state.exists():
            return ""
        is_cut = sides.phase == "cut"
        step, side = ("rollback", "old") if is_cut else ("cutover", "new")
        begin = "Run" if is_cut else "Put the right file back; after a rollback, you can also run"
        return (
            f" {begin} `mv -n {name} {name}.kept` in its folder, and call `{step}`: it makes the "
            f"{side} vectors visible, of all rows that were synchronised. Then add what only "
            f"`{name}.kept` has."
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
            state.execute(f"PRAGMA user_version = {-COMPLETE[place.side]}")
            state.executemany(statement, values)

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        path = self._path
        with store_faults(STORE, ()):
            self._refuse_outside(path)
            with os.scandir(path.parent) as folder:
                names = sorted(each.name for each in folder if each.is_file())
        ours = rf"{re.escape(path.name)}\.anchorage-({tag or '[0-9a-f]{8}'})-(old|new|state)"
        found = [match for each in names if (match := re.fullmatch(ours, each))]
        asked, tag = tag, found[0][1] if found else None
        kept = {match[2] for match in found if match[1] == tag}
        state, is_cut = self._beside(tag, "state"), "old" in kept
        if not path.is_file():
            if "state" in kept and asked:  # somebody moved it away: `swap` makes one from the state
                hidden = (FilePlace(each, self._beside(tag, each), state, True) for each in SIDES)
                return Sides("between", tag, *hidden)
            similar = did_you_mean(path.name, names)
            if path.is_symlink():
                similar = " It is a link to a file that does not exist."
            raise StoreChanged(f"The address has no file `{self.location.collection}`.{similar}")
        if {"old", "new"} <= kept:  # in the middle of `swap`: one is a link to the visible file
            try:
                is_cut = not path.samefile(self._beside(tag, "old"))
                if is_cut and not path.samefile(self._beside(tag, "new")):  # rewritten since
                    with self._state(FilePlace("old", path, state, False)) as opened:
                        is_cut = abs(_version(opened)) == COMPLETE["old"]
            except FileNotFoundError:  # renamed since
                return self.find_sides(asked)
        old = FilePlace("old", self._beside(tag, "old") if is_cut else path, state, is_cut)
        new = FilePlace("new", path if is_cut else self._beside(tag, "new"), state, not is_cut)
        return Sides("cut" if is_cut else "open", tag, old, new) if tag else Sides("none", tag, old)

    def _beside(self, tag: str | None, what: str) -> Path:
        return self._path.with_name(f"{self._path.name}.anchorage-{tag}-{what}")

    def _refuse_outside(self, path: Path) -> None:
        """Raises StoreUnsupported for a symbolic link to a file outside the address."""
        address = os.path.realpath(self.location.url.removeprefix("file://"))
        if not Path(os.path.realpath(path)).is_relative_to(address):
            raise StoreUnsupported(
                f"`{path.name}` is a symbolic link to a file outside the address. Ask the operator "
                "to add the folder of that file, or move it.",
                field="collection",
            )

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        if self._path.is_symlink():
            raise StoreUnsupported(LINK, field="collection")
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
                    "If a step of the migration is just done, repeat the call; else a client "
                    f"replaced the file.{self._way_out()}"
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

    def _save(self, place: FilePlace, like: Path | None = None) -> None:
        """Write the rows of the hidden side into its index file, unless it has them all.

        like  a file whose type it has; default: the visible one
        """
        side = place.side
        with self._state(place) as state:
            if _version(state) == COMPLETE[side] and place.path.exists():
                return
        with self._state(place, "BEGIN IMMEDIATE") as state:
            if _version(state) == COMPLETE[side] and place.path.exists():
                return  # another thread wrote it
            if not self.find_sides(place.state.name.split("-")[-2]).place(side).hidden:
                raise StoreChanged("The sides were switched meanwhile. Repeat the call.")
            if not (dim := _dim(state, side)):
                raise StoreChanged("The migration has no rows yet. Run it first.")
            if place.path.exists():  # what was trained stays
                index = faiss.read_index(str(place.path))
                index.reset()
            else:
                index = self._load(like or self._path).empty_like(dim)
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
            self._write(index, place.path, like or self._path)
            if (made := self._load(place.path)).is_lossy:
                for start in range(0, len(made.sorted), ROWS_AT_ONCE):
                    ids, vectors = made.find(made.sorted[start : start + ROWS_AT_ONCE])
                    values = zip(map(_bytes, vectors), ids.tolist(), strict=True)
                    state.executemany(f"UPDATE rows SET {side} = ? WHERE id = ?", values)
            state.execute(f"PRAGMA user_version = {COMPLETE[side]}")

    def _write(self, index: Any, path: Path, like: Path) -> None:
        """Write an index file, whole or not at all, with the permissions of another one."""
        half = path.with_name(f"{path.name}-half")
        try:
            faiss.write_index(index, str(half))
            shutil.copymode(like, half)
            _sync(half)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)

    def compare_page(
        self, sides: Sides, source: Side, cursor: Cursor | None, limit: int
    ) -> tuple[list[tuple[StoredRow, StoredRow | None]], Cursor | None]:
        now = None if sides.phase == "between" else _signature(self._path)
        pairs, after = super().compare_page(sides, source, cursor, limit)
        if cursor is None:
            self._compared.file = now
        if sides.place(source).hidden:
            return pairs, after
        # a client wrote the very vector that the row has on the other side
        stale = [
            row.id for row, there in pairs if there and there.digest == row.digest != there.origin
        ]
        if stale:
            raise StoreChanged(
                f"`{self._path.name}` has {opposite(source)} vectors where clients should see the "
                f"{source} ones, in rows such as {', '.join(map(str, stale[:5]))}. A program that "
                "still holds the index from before the last step saved it: let it load the file "
                f"again. If it is a few rows, write their {source} vectors.{self._way_out()}"
            )
        return pairs, after

    def swap(self, sides: Sides, visible: Side) -> float:
        """Keep the visible file under another name, and rename the other one over it.

        It locks the state meanwhile, so that no search makes a hidden file from it.
        """
        place, other = sides.place(visible), sides.place(opposite(visible))
        is_there = sides.phase != "between"
        like = next((each.path for each in (place, other) if each.path.exists()), None)
        is_whole = visible == "new"
        if is_there:  # the state also has rows that a client deleted after the cutover
            is_whole, like = self.count_rows(other) == self.count_rows(place), None
        elif is_whole:  # the old file tells the phase
            self._save(other, like)
        self._save(place, like)
        with self._state(place, "BEGIN IMMEDIATE") as state:
            begun = time.monotonic()
            now = _signature(self._path) if self._path.exists() else None
            if now != (self._compared.file if is_there else None):
                raise StoreChanged(
                    "A client rewrote the index file since it was compared. Let clients write "
                    "nothing until the step is done, and repeat it."
                )
            if is_there:
                kept = self._beside(sides.tag, opposite(visible))
                kept.unlink(missing_ok=True)  # of a crash
                os.link(self._path, kept)
            place.path.replace(self._path)
            _sync(self._path.parent)
            pause = time.monotonic() - begun
            version = COMPLETE[opposite(visible)] * (1 if is_whole else -1)
            state.execute(f"PRAGMA user_version = {version}")
        if not is_there:
            self._save(other)
        return pause

    def _refuse_loss(self, sides: Sides) -> None:
        """Raises StoreChanged unless the visible file has new vectors of half the rows or more."""
        try:
            self._load(self._path)
        except StoreUnavailable as error:
            error.is_unchanged = True
            raise
        total, found, cursor = self.count_rows(sides.old), 0, None
        while True:
            pairs, cursor = self.compare_page(sides, "new", cursor, ROWS_AT_ONCE)
            found += sum(there is not None for _, there in pairs)
            if cursor is None:
                break
        if 2 * found < total:
            raise StoreChanged(
                f"`{self._path.name}` has {found:,} of {total:,} rows, and the old file would be "
                "deleted. If clients deleted the others, call `rollback`, delete them there, and "
                f"call `cutover`; else a client replaced the file.{self._way_out()}"
            )

    def drop(self, sides: Sides, side: Side) -> None:
        if side == "old":
            self._refuse_loss(sides)
        with store_faults(STORE, ()):
            sides.old.state.unlink(missing_ok=True)  # first: the other file tells the phase
            for each in self._path.parent.iterdir():
                if each.name.startswith(self._beside(sides.tag, "").name):
                    each.unlink(missing_ok=True)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        index = self._load(self.find_sides().visible.path)
        notes = [BY_DIGEST, *[POSITIONS] * (not index.has_ids), *[LOSSY] * index.is_lossy]
        lines = self._texts() if self.location.text_field else None
        notes += [NO_TEXTS] * (lines is not None and not lines.has_any(index.sorted))
        notes += [StoreNote("search-only", LINK)] * self._path.is_symlink()
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
        with self._turn(path), store_faults(STORE, ()):
            if not path.is_file():
                return None
            self._refuse_outside(path)
            now, lines = _signature(path), self._lines
            if lines is None or lines[0] != now:
                self._lines = lines = now, JsonLines(path, self.location.id_field or "id")
            return lines[1]

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
