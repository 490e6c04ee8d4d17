"""FAISS as a Store: an index file, and its texts in a JSON Lines file.

A migration collects the new vectors in a file of rows, and then writes an index file of the same
type next to the old one.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from app.errors import StoreChanged, StoreUnsupported
from app.stores.common import (
    as_json,
    find_text,
    page_of,
    random_runs,
    row_number,
    rows_checksum,
    store_faults,
)
from app.stores.faiss.index import LoadedIndex, least_rows
from app.stores.port import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    NewVectors,
    Page,
    RowsChecksum,
    Search,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)

STORE = "The FAISS store"

#: rows that are read or added to an index at once
ROWS_AT_ONCE = 10_000

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

Content = TypeVar("Content")

#: what the file of texts has of each id
Lines = dict[StoreId, dict[str, Any]]


class FaissStore(Store):
    """An index file in a folder."""

    capabilities = Capabilities()

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.folder = Path(location.url.removeprefix("file://"))
        self.path = self.folder / location.collection
        #: held by the thread that reads the index or the texts
        self._lock = threading.Lock()
        #: what was read of each file, and the file's signature
        self._files: dict[Path, tuple[Signature, Any]] = {}

    def close(self) -> None:
        self._files = {}

    def load(self) -> LoadedIndex:
        """Return the index of the file as it is now. Raises StoreChanged without one."""
        index = self._read(self.path, lambda: LoadedIndex(faiss.read_index(str(self.path))))
        if index is None:
            raise StoreChanged(f"The address has no file `{self.location.collection}`.")
        return index

    def _texts(self) -> Lines | None:
        """Return the file of texts as it is now; None if there is none."""
        path = self.path.with_suffix(".jsonl")
        return self._read(path, lambda: read_lines(path, self.location.id_field or "id"))

    def _read(self, path: Path, read: Callable[[], Content]) -> Content | None:
        """Return what `read` finds in a file as it is now; threads wait for the one that reads."""
        with self._lock, store_faults(STORE, (RuntimeError,)):
            if not path.is_file():
                return None
            now = self._signature(path)
            known = self._files.get(path)
            if known is None or known[0] != now:
                self._files[path] = known = now, read()
            content: Content = known[1]
            return content

    def _signature(self, path: Path) -> Signature:
        """Return numbers that change when a file is written or replaced.

        Raises StoreUnsupported for a symbolic link to a file outside the address.
        """
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise StoreUnsupported(
                f"`{path.name}` is a symbolic link to a file outside the address. Ask the operator "
                "to add the folder of that file, or move it.",
                field="collection",
            )
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        index, notes = self.load(), []
        if not index.has_ids:
            notes.append(POSITIONS)
        if index.is_lossy:
            notes.append(LOSSY)
        return StoreFacts(
            rows=len(index.sorted),
            dim=index.inner.d,
            metric=index.metric,
            indexed=not isinstance(index.inner, faiss.IndexFlatCodes),
            vector_bytes=self.path.stat().st_size,
            notes=tuple(notes),
        )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        index = self.load()
        start = 0 if cursor is None else int(np.searchsorted(index.sorted, cursor, "right"))
        ids, vectors = index.find(index.sorted[start : start + limit].tolist())
        return Page(ids, vectors, ids[-1] if len(ids) == limit else None)

    def sample(self, count: int, seed: int = 0) -> Page:
        index = self.load()
        runs = random_runs(len(index.sorted), count, seed)
        chosen = [index.sorted[start : start + length] for start, length in runs]
        return Page(*index.find(np.concatenate(chosen).tolist()))

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        return Page(*self.load().find(ids))

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        ids, lines = self.load().sorted, self._texts() or {}
        parts = (
            ids[start : start + ROWS_AT_ONCE].tolist() for start in range(0, len(ids), ROWS_AT_ONCE)
        )
        pages = ([row_number(as_json([id, lines.get(id, {})])) for id in part] for part in parts)
        return rows_checksum(pages, hear)

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondFile(self, tag, dim)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        """Return texts of the file of JSON Lines."""
        lines = self._texts()
        if lines is None:
            raise StoreUnsupported(
                f"Texts are read from `{self.path.with_suffix('.jsonl').name}` next to the index, "
                "by the field that `text_field` names. Write that file, and name the field.",
                field="text_field",
            )
        return [find_text(lines.get(id, {}), field) for id in ids]

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        index, lines = self.load(), (self._texts() if wanted.payload else None) or {}
        if wanted.queries.shape[1] != index.inner.d:
            raise StoreChanged(f"The index has vectors of {index.inner.d} dimensions now. Repeat.")
        hits = []
        for ids, scores in index.search(wanted.queries, wanted.k, wanted.exact):
            rows = [lines.get(id, {}) for id in ids] if wanted.payload else None
            hits.append(
                Hits(ids, scores.tolist(), index.find(ids)[1] if wanted.vectors else None, rows)
            )
        return hits


class SecondFile(NewVectors):
    """The new vectors of one migration: a file of rows, and the index file that is made of it."""

    def __init__(self, store: FaissStore, tag: str, dim: int) -> None:
        self._store, self._dim = store, dim
        self._row = np.dtype([("id", "<i8"), ("vector", "<f4", (dim,))])
        beside = f"{store.path.name}.anchorage-{tag}-"
        self._state_path, self._half, self._path = (
            store.path.with_name(f"{beside}{end}") for end in ("state", "half", "new")
        )

    def prepare(self) -> None:
        old = self._store.load()
        least = least_rows(old.empty_like(self._dim))
        if len(old.sorted) < least:
            raise StoreUnsupported(
                f"The index has {len(old.sorted)} rows, and FAISS needs {least} rows to train a "
                "new index of its type. Build the vectors into another one, such as "
                "`IDMap2,HNSW32`, or add rows.",
                field="collection",
            )
        with store_faults(STORE):
            self._state_path.touch()

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        rows = np.zeros(len(ids), self._row)
        rows["id"], rows["vector"] = ids, vectors
        with store_faults(STORE), self._state_path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(size - size % self._row.itemsize)  # after the last whole row
            file.write(rows.tobytes())

    def _read(self) -> tuple[NDArray[Any], dict[StoreId, int]]:
        """Return all written rows, and the place of the last one of each id."""
        with store_faults(STORE):
            size = self._state_path.stat().st_size if self._state_path.exists() else 0
            rows: NDArray[Any] = np.zeros(0, self._row)
            if count := size // self._row.itemsize:
                rows = np.memmap(self._state_path, self._row, "r", shape=(count,))
        return rows, {id: place for place, id in enumerate(rows["id"].tolist())}

    def read(self, ids: Sequence[StoreId]) -> Page:
        rows, places = self._read()
        found = {id: rows["vector"][places[id]] for id in ids if id in places}
        return page_of(ids, found, self._dim)

    def count(self) -> int:
        return len(self._read()[1].keys() & set(self._store.load().sorted.tolist()))

    def build_index(self) -> None:
        """Write the index file, whole or not at all, with the rows that the old one has now."""
        old = self._store.load()
        index, (rows, places) = old.empty_like(self._dim), self._read()
        with store_faults(STORE, (RuntimeError,)):
            if least := least_rows(index):
                most = 256 * max(256, least)
                index.train(np.array(rows["vector"][:: len(rows) // most + 1]))
            for start in range(0, len(old.sorted), ROWS_AT_ONCE):
                ids = old.sorted[start : start + ROWS_AT_ONCE]
                there = np.array([id in places for id in ids.tolist()])
                vectors = np.zeros((len(ids), self._dim), np.float32)
                vectors[there] = rows["vector"][[places[id] for id in ids[there].tolist()]]
                if isinstance(index, faiss.IndexIDMap | faiss.IndexIVF):
                    index.add_with_ids(vectors[there], ids[there])
                else:  # whose ids are positions, so that no row may be left out
                    index.add(vectors)
            try:
                faiss.write_index(index, str(self._half))
                shutil.copymode(self._store.path, self._half)
                self._half.replace(self._path)
            finally:
                self._half.unlink(missing_ok=True)

    def finish(self) -> None:
        """Delete the file of rows. The new index file is the application's."""
        with store_faults(STORE):
            self._state_path.unlink(missing_ok=True)

    def abandon(self) -> None:
        self.finish()
        with store_faults(STORE):
            self._path.unlink(missing_ok=True)


def read_lines(path: Path, id_field: str) -> Lines:
    """Read a file of JSON objects with an integer id. The last line of an id counts."""
    found: Lines = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, parse_constant=lambda name: None)  # JSON has no NaN
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict) or type(row.get(id_field)) is not int:
                raise StoreUnsupported(
                    f"Line {number} of `{path.name}` is no JSON object with an integer "
                    f"`{id_field}`. Correct it.",
                    field="collection",
                )
            found[row.pop(id_field)] = row
    return found
