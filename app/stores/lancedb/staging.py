"""New vectors in a separate table until they are complete, and their merge into the table.

Each merge of LanceDB rewrites the column of every fragment that it touches. Merging page by page
would rewrite a table of a million rows a thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.errors import StoreUnavailable
from app.stores.base import StoreId, StoreVectors
from app.stores.lancedb.columns import (
    PAIR_DIGEST_BYTES,
    LanceColumns,
    halves,
    join_halves,
    quoted,
    to_arrow,
    to_numpy,
)
from app.stores.lancedb.connection import COMMIT_ATTEMPTS, LanceConnection, is_conflict

#: bytes of new vectors that one commit merges
MERGE_BYTES = 256 << 20

#: columns of the staging table
STAGED_ID, STAGED_VECTOR = "id", "vector"


def staged_schema(id: pa.DataType, vector: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(STAGED_ID, id), pa.field(STAGED_VECTOR, vector)])


class StagedVectors:
    """The staging table of one reindexing, which has one writer."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._ids: set[StoreId] = set()
        self._version = -1

    def write(self, ids: Sequence[StoreId], vectors: StoreVectors, replace: bool) -> None:
        if self.table.version != self._version:
            found = self.table.to_lance().to_table(columns=[STAGED_ID])
            self._ids = set(found[STAGED_ID].to_pylist())
        known = [place for place, id in enumerate(ids) if id in self._ids]
        fresh = [place for place, id in enumerate(ids) if id not in self._ids]
        if replace and known:
            update = self.table.merge_insert(STAGED_ID).when_matched_update_all()
            update.execute(self._rows(ids, vectors, known))
        if fresh:
            self.table.add(self._rows(ids, vectors, fresh))
        self._ids |= {ids[place] for place in fresh}
        self._version = self.table.version

    def _rows(self, ids: Sequence[StoreId], vectors: StoreVectors, places: list[int]) -> pa.Table:
        schema = self.table.schema
        found = [
            pa.array([ids[place] for place in places], schema.field(STAGED_ID).type),
            to_arrow(vectors[places], schema.field(STAGED_VECTOR).type),
        ]
        return pa.Table.from_arrays(found, schema=schema)


class Merge:
    """Moves staged vectors into the clients' table. It can be repeated after a crash.

    Each commit replaces the data of two columns in one fragment, so that indexes of other columns
    stay valid, and that writes of clients to other fragments do not conflict.
    """

    def __init__(
        self, connection: LanceConnection, name: str, columns: LanceColumns, staged: Any, tag: str
    ) -> None:
        self._connection = connection
        self._name = name
        self._columns = columns
        self._staged = staged.to_lance()
        self._tag = tag
        ids = self._staged.to_table(columns=[STAGED_ID])[STAGED_ID].to_pylist()
        self._places: dict[StoreId, int] = {id: place for place, id in enumerate(ids)}
        self._old = np.zeros(len(ids), np.uint64)
        self._known = np.zeros(len(ids), bool)
        self._done: set[int] = set()

    def run(self) -> None:
        kind = self._staged.schema.field(STAGED_VECTOR).type
        table = self._connection.table(self._name)
        if self._columns.new not in table.schema.names:
            fields = [
                pa.field(self._columns.new, kind),
                pa.field(self._columns.digests, pa.binary(PAIR_DIGEST_BYTES)),
            ]
            self._connection.committing(lambda: table.add_columns(fields))
        self._read_snapshot(table.to_lance())
        budget = max(1, MERGE_BYTES // (4 * kind.list_size))
        failures = 0
        while True:
            try:
                if not self._commit_some(budget):
                    return
                failures = 0
            except (OSError, RuntimeError, ValueError) as error:
                failures += 1
                if not is_conflict(error):
                    raise
                if failures >= COMMIT_ATTEMPTS:
                    raise StoreUnavailable(
                        f"Other clients changed the LanceDB table during {failures} attempts to "
                        "merge the new vectors. Resume when they write less."
                    ) from error

    def _read_snapshot(self, dataset: Any) -> None:
        """Read the digests of the old vectors that were translated."""
        snapshot = dataset.checkout_version(self._tag)
        columns = [self._columns.id, self._columns.vector]
        for batch in snapshot.to_batches(columns=columns):
            digests = halves(to_numpy(batch.column(1)))
            for id, digest in zip(batch.column(0).to_pylist(), digests, strict=True):
                place = self._places.get(id)
                if place is not None:
                    self._old[place], self._known[place] = digest, True

    def _commit_some(self, budget: int) -> bool:
        """Merge at most `budget` rows in one commit; False if none is left."""
        dataset = self._connection.dataset(self._name)
        updated, modified = [], []
        for fragment in dataset.get_fragments():
            if fragment.fragment_id in self._done:
                continue
            wanted = self._missing(fragment)
            if len(wanted) <= budget:
                self._done.add(fragment.fragment_id)
            if len(wanted):
                data = self._data(wanted[:budget])
                metadata, modified = fragment.update_columns(data, left_on=self._columns.id)
                updated.append(metadata)
                budget -= len(wanted)
            if budget <= 0:
                break
        if updated:
            try:
                self._commit(dataset, updated, modified)
            except Exception:
                self._done.clear()
                raise
        return bool(updated)

    def _missing(self, fragment: Any) -> NDArray[np.int64]:
        """Return the places of staged rows that a fragment lacks."""
        missing = f"{quoted(self._columns.new)} IS NULL"
        found = fragment.to_table(columns=[self._columns.id], filter=missing)
        places = [self._places.get(id, -1) for id in found.column(0).to_pylist()]
        return np.array(sorted(place for place in places if place >= 0), np.int64)

    def _data(self, places: NDArray[np.int64]) -> pa.Table:
        found = self._staged.take(places.tolist())
        vectors = found[STAGED_VECTOR]
        digests = join_halves(self._old[places], halves(to_numpy(vectors)), self._known[places])
        names = [self._columns.id, self._columns.new, self._columns.digests]
        return pa.table([found[STAGED_ID], vectors, digests], names=names)

    def _commit(self, dataset: Any, updated: list[Any], modified: list[int]) -> None:
        lance.LanceDataset.commit(
            dataset,
            lance.LanceOperation.Update(updated_fragments=updated, fields_modified=modified),
            read_version=dataset.version,
            storage_options=dataset.latest_storage_options(),
            max_retries=0,
        )
