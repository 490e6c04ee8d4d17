"""Moves new vectors from their own table into columns of the clients' table.

Each commit replaces the data of two columns in a few fragments, so that indexes of other columns
stay valid. Merging page by page would rewrite the column of a table a thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa
from lancedb.index import BTree

from app.errors import StoreUnavailable
from app.stores.base import StoreId
from app.stores.lancedb.columns import digests_of, id_filter, quoted, to_numpy
from app.stores.lancedb.connection import COMMIT_ATTEMPTS, LanceConnection, is_conflict

#: bytes of new vectors that one commit merges
MERGE_BYTES = 256 << 20

#: ids in one condition
IDS_A_FILTER = 1000

#: columns of the table of new vectors: the id, the vector, and the digest of the old vector
STAGED_ID, STAGED_VECTOR, STAGED_DIGEST = "id", "vector", "digest"

#: the digests of the old and the new vector of a row that is in step
PAIR = pa.list_(pa.int64(), 2)


class Merge:
    """One merge into the table `name`. It can be repeated after a crash."""

    def __init__(
        self, connection: LanceConnection, name: str, staged: Any, id: str, new: str, pair: str
    ) -> None:
        self._connection, self._name = connection, name
        self._id, self._new, self._pair = id, new, pair
        staged.create_index(STAGED_ID, config=BTree(), replace=True)
        self._staged = staged.to_lance()
        self._done: set[int] = set()

    def run(self) -> None:
        kind = self._staged.schema.field(STAGED_VECTOR).type
        table = self._connection.table(self._name)
        if self._new not in table.schema.names:
            fields = [pa.field(self._new, kind), pa.field(self._pair, PAIR)]
            self._connection.committing(lambda: table.add_columns(fields))
        budget = max(1, MERGE_BYTES // (4 * kind.list_size))
        failures = 0
        while True:
            try:
                if not self._commit_some(budget):
                    return
                failures = 0
            except (OSError, RuntimeError, ValueError) as error:
                self._done.clear()
                failures += 1
                if not is_conflict(error):
                    raise
                if failures >= COMMIT_ATTEMPTS:
                    raise StoreUnavailable(
                        f"Other clients changed the LanceDB table during {failures} attempts to "
                        "merge the new vectors. Resume when they write less."
                    ) from error

    def _commit_some(self, budget: int) -> bool:
        """Merge at most `budget` rows in one commit; False if none is left."""
        dataset = self._connection.dataset(self._name)
        updated, modified = [], []
        for fragment in dataset.get_fragments():
            if fragment.fragment_id in self._done:
                continue
            found = fragment.to_table(columns=[self._id], filter=f"{quoted(self._new)} IS NULL")
            data = self._data(found[self._id].to_pylist(), budget)
            if data.num_rows < budget:
                self._done.add(fragment.fragment_id)
            if data.num_rows:
                metadata, modified = fragment.update_columns(data, left_on=self._id)
                updated.append(metadata)
                budget -= data.num_rows
            if budget <= 0:
                break
        if updated:
            lance.LanceDataset.commit(
                dataset,
                lance.LanceOperation.Update(updated_fragments=updated, fields_modified=modified),
                read_version=dataset.version,
                storage_options=dataset.latest_storage_options(),
                max_retries=0,
            )
        return bool(updated)

    def _data(self, ids: Sequence[StoreId], budget: int) -> pa.Table:
        """Return the new vectors of the first `budget` of these rows that have one."""
        parts, count = [], 0
        for start in range(0, len(ids), IDS_A_FILTER):
            part = id_filter(STAGED_ID, ids[start : start + IDS_A_FILTER])
            parts.append(self._staged.to_table(filter=part))
            count += parts[-1].num_rows
            if count >= budget:
                break
        found = pa.concat_tables(parts or [self._staged.schema.empty_table()]).slice(0, budget)
        pair = pair_of(found[STAGED_DIGEST].to_numpy(), digests_of(to_numpy(found[STAGED_VECTOR])))
        columns = [found[STAGED_ID], found[STAGED_VECTOR], pair]
        return pa.table(columns, names=[self._id, self._new, self._pair])


def pair_of(old: Any, new: Any) -> pa.Array:
    """Return a column of the digests of both vectors of each row."""
    flat = pa.array([number for both in zip(old, new, strict=True) for number in both], pa.int64())
    return pa.FixedSizeListArray.from_arrays(flat, type=PAIR)
