"""A file of vectors as a store: exact searches, and new files next to the old one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.errors import InvalidOption, StoreChanged, StoreUnsupported
from app.stores.base import (
    Beside,
    Capabilities,
    Cursor,
    Hits,
    Metric,
    Page,
    RowsChecksum,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreVectors,
)
from app.stores.files.beside import FilesBeside
from app.stores.files.columns import read_vectors
from app.stores.files.faults import file_faults
from app.stores.files.folder import VectorFolder, checked_path
from app.stores.files.formats import VectorFile, format_of, open_vectors
from app.stores.files.nearest import NearestRows
from app.stores.files.parts import SweepParts
from app.stores.files.pointer import FilePlan, LiveFile, parts_of, read_live, read_plan
from app.stores.files.row_ids import RowIds, read_ids

#: options of the kind
FILE_OPTIONS = ("metric", "ids")


@dataclass(eq=False)
class OpenVectors:
    """A file in use: its ids, and a reading that the next page of a scroll continues."""

    name: str
    fingerprint: str
    file: VectorFile
    ids: RowIds
    dim: int | None = None
    rows_with_vector: int | None = None
    reading: Iterator[tuple[NDArray[np.int64], StoreVectors]] | None = None
    reached: int = 0
    rest: tuple[NDArray[np.int64], StoreVectors] | None = None


class FilesStore(Store):
    """One file. Options: `metric` (cosine, dot, euclidean) and `ids`, an npy file of ids."""

    capabilities = Capabilities(strategies=("new-file",), atomic_cutover=True)

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        checked_path(location.collection)
        format_of(location.collection)
        self.metric = _option(location, "metric", "cosine")
        if self.metric not in get_args(Metric):
            raise InvalidOption(
                f"`metric` is {self.metric!r}. It is cosine, dot or euclidean.", field="options"
            )
        ids = location.options.get("ids")
        self.ids_file = None if ids is None else checked_path(str(ids))
        self.folder = VectorFolder(location.url)
        if not self.folder.whole_files:
            self.capabilities = Capabilities(strategies=("new-file",), atomic_cutover=False)
        self.lock = RLock()
        self._open: dict[str, OpenVectors] = {}
        self._parts: tuple[FilePlan, SweepParts] | None = None

    def close(self) -> None:
        with self.lock:
            for each in self._open.values():
                each.file.close()
            self._open, self._parts = {}, None

    # --- files ------------------------------------------------------------------------------------

    def live(self) -> LiveFile:
        """Return the file that readers open."""
        return read_live(self.folder, self.location.collection)

    def plan(self, live: LiveFile) -> FilePlan | None:
        """Return the plan of the live file's reindexing."""
        if live.tag is None:
            return None
        return read_plan(self.folder, self.location.collection, live.tag)

    def opened(self, name: str) -> OpenVectors:
        """Return an open file; a file that was written since is opened again."""
        fingerprint = self.folder.fingerprint(name)
        found = self._open.get(name)
        if found is not None and found.fingerprint == fingerprint:
            return found
        if found is not None:
            found.file.close()
            del self._open[name]
        file = open_vectors(self.folder, name, self.location.vector_field)
        try:
            with file_faults(name):
                ids = read_ids(self.folder, file, self.location.id_field, self.ids_file)
        except BaseException:
            file.close()
            raise
        self._open[name] = OpenVectors(name, fingerprint, file, ids)
        return self._open[name]

    def forget(self, name: str) -> None:
        """Close a file that will be deleted or written."""
        with self.lock:
            found = self._open.pop(name, None)
            if found is not None:
                found.file.close()

    def parts(self, plan: FilePlan) -> SweepParts:
        """Return the new vectors that a reindexing has written."""
        if self._parts is None or self._parts[0] != plan:
            folder = parts_of(self.location.collection, plan.tag)
            self._parts = plan, SweepParts(self.folder, folder, plan.rows, plan.dim)
        return self._parts[1]

    def _side(self, side: Side) -> tuple[OpenVectors, SweepParts | None]:
        """Return the file that has one side; and the parts, if they have the vectors."""
        live = self.live()
        plan = self.plan(live)
        if plan is None:
            if side == "new":
                raise StoreChanged("The file has no new vectors of a reindexing. Begin a new plan.")
            return self.opened(live.name), None
        if side == "old":
            return self.opened(plan.old), None
        if live.name == plan.new:
            return self.opened(plan.new), None
        return self.opened(plan.old), self.parts(plan)

    # --- facts ------------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        with self.lock:
            found = self.opened(self.live().name)
            if found.rows_with_vector is None:
                found.rows_with_vector = sum(len(rows) for rows, _ in self.all_vectors(found))
            if found.dim is None:
                raise StoreUnsupported(
                    f"{found.name!r} has no vectors. Write some before you register it."
                )
            numbers = np.dtype(found.file.kind.value_type.to_pandas_dtype())
            return StoreFacts(
                rows=found.rows_with_vector,
                dim=found.dim,
                metric=self.metric,  # type: ignore[arg-type] # __init__ checks it
                dtype=numbers.name,
                strategies=self.capabilities.strategies,
                vector_bytes=found.rows_with_vector * found.dim * numbers.itemsize,
            )

    def all_vectors(
        self, found: OpenVectors, first: int = 0
    ) -> Iterator[tuple[NDArray[np.int64], StoreVectors]]:
        """Yield rows and vectors in blocks. Raises StoreUnsupported for bad vectors."""
        with file_faults(found.name):
            for start, batch in found.file.batches([found.file.column], first):
                rows, vectors = read_vectors(batch.column(0), start, found.dim)
                if len(rows):
                    found.dim = vectors.shape[1]
                    yield rows, vectors

    # --- rows -------------------------------------------------------------------------------------

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        with self.lock:
            found, parts = self._side(side)
            first = int(cursor or 0)
            if parts is None:
                rows, vectors = self._continue(found, first, limit)
            else:
                rows = first + np.flatnonzero(parts.present()[first:])[:limit]
                vectors = parts.read(rows)
            following = int(rows[-1]) + 1 if len(rows) else found.file.rows
            more = following < found.file.rows
            return Page(found.ids.ids(rows), vectors, following if more else None)

    def _continue(
        self, found: OpenVectors, first: int, limit: int
    ) -> tuple[NDArray[np.int64], StoreVectors]:
        """Return at most `limit` rows from `first` on, from the reading of the last page."""
        if found.reading is None or found.reached != first:
            found.reading, found.rest = self.all_vectors(found, first), None
        taken: list[tuple[NDArray[np.int64], StoreVectors]] = []
        while limit > 0:
            block = found.rest or next(found.reading, None)
            if block is None:
                break
            rows, vectors = block
            found.rest = (rows[limit:], vectors[limit:]) if len(rows) > limit else None
            taken.append((rows[:limit], vectors[:limit]))
            limit -= len(rows)
        if not taken:
            return np.empty(0, np.int64), np.empty((0, found.dim or 0), np.float32)
        found.reached = int(taken[-1][0][-1]) + 1
        return np.concatenate([each[0] for each in taken]), np.concatenate(
            [each[1] for each in taken]
        )

    def sample(self, count: int, seed: int = 0) -> Page:
        with self.lock:
            found, _ = self._side("old")
            rows = np.arange(found.file.rows)
            if count < len(rows):
                rows = np.random.default_rng(seed).choice(len(rows), count, replace=False)
            rows, vectors = self._take(found, np.sort(rows))
            return Page(found.ids.ids(rows), vectors)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        with self.lock:
            found, parts = self._side(side)
            wanted = found.ids.rows(ids)
            if parts is None:
                rows, vectors = self._take(found, np.unique(wanted[wanted >= 0]))
            else:
                rows = np.unique(wanted[wanted >= 0])
                rows = rows[parts.present()[rows]]
                vectors = parts.read(rows)
            places = {int(row): place for place, row in enumerate(rows)}
            kept = [place for place, row in enumerate(wanted) if int(row) in places]
            order = [places[int(wanted[place])] for place in kept]
            return Page([ids[place] for place in kept], vectors[order])

    def _take(
        self, found: OpenVectors, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], StoreVectors]:
        """Return those of ascending rows that have a vector, with their vectors."""
        taken_rows, taken = [np.empty(0, np.int64)], []
        with file_faults(found.name):
            for start, batch in found.file.near(rows, [found.file.column]):
                mine = rows[(rows >= start) & (rows < start + len(batch))]
                column = batch.column(0).take(pa.array(mine - start))
                valid, vectors = read_vectors(column, 0, found.dim)
                if len(valid):
                    found.dim = vectors.shape[1]
                    taken_rows.append(mine[valid])
                    taken.append(vectors)
        empty = np.empty((0, found.dim or 0), np.float32)
        return np.concatenate(taken_rows), np.concatenate(taken) if taken else empty

    def texts(self, ids: Sequence[StoreId]) -> Sequence[str | None]:
        field = self.location.text_field
        with self.lock:
            found = self.opened(self.live().name)
            if field not in found.file.payload_columns:
                raise StoreUnsupported(
                    "The file has no column of texts: the store was registered without "
                    "`text_field`, or the column is missing. Register it again with a column.",
                    field="text_field",
                )
            rows = found.ids.rows(ids)
            values = self._payloads(found, rows[rows >= 0], [field])
        texts = [values[int(row)][field] if int(row) in values else None for row in rows]
        return [text if isinstance(text, str) else None for text in texts]

    def _payloads(
        self, found: OpenVectors, rows: NDArray[np.int64], columns: Sequence[str]
    ) -> dict[int, dict[str, Any]]:
        values: dict[int, dict[str, Any]] = {}
        wanted = np.unique(rows)
        if not columns:
            return {int(row): {} for row in wanted}
        with file_faults(found.name):
            for start, batch in found.file.near(wanted, columns):
                mine = wanted[(wanted >= start) & (wanted < start + len(batch))]
                records = batch.take(pa.array(mine - start)).to_pylist()
                values |= dict(zip(mine.tolist(), records, strict=True))
        return values

    # --- searches and checks ----------------------------------------------------------------------

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
            raise StoreUnsupported("Files take no filter. Remove `filter`.", field="filter")
        nearest = NearestRows(queries, k, self.metric)
        with self.lock:
            found, parts = self._side(side)
            if parts is None:
                for rows, block in self.all_vectors(found):
                    nearest.add(rows, block)
            else:
                every = np.flatnonzero(parts.present())
                for first in range(0, len(every), 4096):
                    rows = every[first : first + 4096]
                    nearest.add(rows, parts.read(rows))
            results = nearest.results()
            every = np.unique(np.concatenate([rows for rows, _ in results]))
            payloads = self._payloads(found, every, self._payload_columns(found)) if payload else {}
            hits = []
            for rows, scores in results:
                ids = found.ids.ids(rows)
                hits.append(
                    Hits(
                        ids,
                        scores.tolist(),
                        self.fetch(ids, side).vectors if vectors else None,
                        [_plain(payloads[int(row)]) for row in rows] if payload else None,
                    )
                )
            return hits

    def _payload_columns(self, found: OpenVectors) -> list[str]:
        return found.file.payload_columns

    def checksum(self) -> RowsChecksum:
        with self.lock:
            found = self.opened(self.live().name)
            columns = found.file.payload_columns
            total = 0
            if not columns:
                for row in range(found.file.rows):
                    total += _digest(found.ids.ids([row])[0], {})
                return RowsChecksum(found.file.rows, f"{total % 2**128:032x}")
            with file_faults(found.name):
                for start, batch in found.file.batches(columns):
                    ids = found.ids.ids(range(start, start + len(batch)))
                    for each, record in zip(ids, batch.to_pylist(), strict=True):
                        total += _digest(each, record)
            return RowsChecksum(found.file.rows, f"{total % 2**128:032x}")

    def beside(self, tag: str, dim: int, strategy: str | None = None) -> Beside:
        if strategy not in (None, *self.capabilities.strategies):
            raise StoreUnsupported(
                f"Files have no strategy {strategy!r}. They have `new-file`.", field="strategy"
            )
        return FilesBeside(self, tag, dim)


def _option(location: StoreLocation, name: str, default: str) -> str:
    unknown = sorted(set(location.options) - set(FILE_OPTIONS))
    if unknown:
        raise InvalidOption(
            f"`options` has the unknown member {unknown[0]!r}. Files have the options "
            f"{', '.join(FILE_OPTIONS)}.",
            field="options",
        )
    return str(location.options.get(name, default))


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that JSON can hold."""
    value: dict[str, Any] = json.loads(json.dumps(record, default=_text))
    return value


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _digest(row_id: StoreId, record: Mapping[str, Any]) -> int:
    content = json.dumps([row_id, record], sort_keys=True, default=_text)
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=16).digest(), "big")
