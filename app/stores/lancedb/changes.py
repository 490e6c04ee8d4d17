"""Rows that clients changed, found by digests in the fragments that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.stores.base import Changes, Side, StoreId, StoreVectors
from app.stores.common import opposite
from app.stores.lancedb.columns import (
    LanceColumns,
    LancePhase,
    halves,
    id_filter,
    join_halves,
    split_halves,
    to_arrow,
    to_numpy,
)
from app.stores.lancedb.connection import LanceConnection

#: ids in one condition
IDS_A_FILTER = 1000

#: in place of the digest of a row that has no vector on a side, as it should be
NO_VECTOR = np.uint64(2**64 - 1)

#: a fragment and its files; each write of vectors changes them
FragmentState = tuple[int, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """Changed rows of a batch, with vectors and digests, and ids of rows that lost theirs."""

    ids: list[StoreId]
    vectors: StoreVectors
    digests: NDArray[np.uint64]
    gone: list[StoreId]


@dataclass(frozen=True, eq=False)
class LanceToken:
    """Of changes: the side that clients wrote, and the digests of the vectors that were found."""

    side: Side
    digests: dict[StoreId, np.uint64] = field(default_factory=dict)


class ChangeFinder:
    """Compares the vectors of a side with their digests.

    Fragments without a change are remembered by their files, and are not read again.
    """

    def __init__(self, connection: LanceConnection, name: str, columns: LanceColumns) -> None:
        self._connection = connection
        self._name = name
        self._columns = columns
        self._clean: dict[Side, set[FragmentState]] = {"old": set(), "new": set()}

    def find(self, side: Side, phase: LancePhase, limit: int, late: bool = False) -> Changes:
        """Return rows whose vector on `side` changed.

        late  only rows whose other vector did not change, or is missing
        """
        dataset = self._connection.dataset(self._name)
        own, other = (self._columns.side(each, phase) for each in (side, opposite(side)))
        found: list[ChangedRows] = []
        for fragment in dataset.get_fragments():
            state = (fragment.fragment_id, tuple(file.path for file in fragment.data_files()))
            if state in self._clean[side] and not late:
                continue
            rows = self._compare(fragment, own, other, side, late)
            if rows is None:
                self._clean[side].add(state)
                continue
            found.append(rows)
            if sum(len(each.ids) + len(each.gone) for each in found) >= limit:
                break
        return _join(found, side, limit, dataset.schema.field(own).type.list_size)

    def _compare(
        self, fragment: Any, own: str, other: str, side: Side, late: bool
    ) -> ChangedRows | None:
        names = [self._columns.id, own, other, self._columns.digests]
        parts = [_changed_of(batch, side, late) for batch in fragment.to_batches(columns=names)]
        parts = [part for part in parts if part.ids or part.gone]
        if not parts:
            return None
        return ChangedRows(
            [id for part in parts for id in part.ids],
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.digests for part in parts]),
            [id for part in parts for id in part.gone],
        )

    def apply(self, changes: Changes, vectors: StoreVectors, phase: LancePhase) -> None:
        """Write translated vectors (n, d) to the other side of changed rows.

        Rows that were found, and that could not be translated, get their digest without a vector.
        """
        token: LanceToken = changes.token
        new = dict(zip(changes.ids, zip(changes.vectors, vectors, strict=True), strict=True))
        every = list(dict.fromkeys([*changes.ids, *changes.deleted, *token.digests]))
        for start in range(0, len(every), IDS_A_FILTER):
            part = every[start : start + IDS_A_FILTER]
            self._connection.committing(lambda part=part: self._replace(part, new, token, phase))  # type: ignore[misc]

    def _replace(
        self,
        ids: Sequence[StoreId],
        new: dict[StoreId, tuple[StoreVectors, StoreVectors]],
        token: LanceToken,
        phase: LancePhase,
    ) -> None:
        """Rewrite whole rows, as clients' updates do, so that indexes of the others stay valid.

        Fails with a conflict if somebody changes the table between reading and writing.
        """
        dataset = self._connection.dataset(self._name)
        rows = dataset.to_table(filter=id_filter(self._columns.id, ids))
        if not rows.num_rows:
            return
        target = self._columns.side(opposite(token.side), phase)
        kind = rows.schema.field(target).type
        ids = rows[self._columns.id].to_pylist()
        empty = np.zeros(kind.list_size, np.float32)
        column = to_arrow(np.stack([new[id][1] if id in new else empty for id in ids]), kind)
        written = np.array([id in new for id in ids])
        known = np.array([id in new or id in token.digests for id in ids])
        others = np.where(written, halves(to_numpy(column)), NO_VECTOR)
        pair = (_own_digests(ids, new, token), others)
        old, fresh = pair if token.side == "old" else pair[::-1]
        if not written.all():
            pairs = zip(column.to_pylist(), written, strict=True)
            column = pa.array([each if ok else None for each, ok in pairs], kind)
        digests = join_halves(old, fresh, known)
        for name, values in ((target, column), (self._columns.digests, digests)):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), values)
        merge = dataset.merge_insert(self._columns.id).when_matched_update_all()
        merge.conflict_retries(0).execute(rows)


def _own_digests(
    ids: Sequence[StoreId],
    new: dict[StoreId, tuple[StoreVectors, StoreVectors]],
    token: LanceToken,
) -> NDArray[np.uint64]:
    """Return the digests of the vectors that clients wrote, as they were found; 0 of others."""
    found = np.array([token.digests.get(id, 0) for id in ids], np.uint64)
    places = [place for place, id in enumerate(ids) if id in new]
    if places:
        found[places] = halves(np.stack([new[ids[place]][0] for place in places]))
    return found


def _changed_of(batch: pa.RecordBatch, side: Side, late: bool) -> ChangedRows:
    """Compare rows of the columns id, vector of the side, vector of the other side, digests."""
    ids, own, other, digests = (batch.column(place) for place in range(4))
    has_own, has_other, has_digest = (
        each.is_valid().to_numpy(zero_copy_only=False) for each in (own, other, digests)
    )
    vectors = to_numpy(own)
    old, new = split_halves(digests)
    mine, others = (old, new) if side == "old" else (new, old)
    now = halves(vectors)
    lost = ~has_other & (others != NO_VECTOR)
    changed = has_own & (~has_digest | lost | (now != mine))
    gone = ~has_own & has_other
    if late:
        same = ~has_other | (has_digest & (halves(to_numpy(other)) == others))
        changed, gone = changed & same, gone & same & has_digest
    places = np.flatnonzero(changed)
    names = ids.to_pylist()
    return ChangedRows(
        [names[place] for place in places],
        vectors[places],
        now[places],
        [names[place] for place in np.flatnonzero(gone)],
    )


def _join(found: list[ChangedRows], side: Side, limit: int, dim: int) -> Changes:
    gone = [id for each in found for id in each.gone][:limit]
    ids = [id for each in found for id in each.ids][: limit - len(gone)]
    parts = [each.vectors for each in found]
    vectors = np.concatenate(parts) if parts else np.zeros((0, dim), np.float32)
    digests = [digest for each in found for digest in each.digests]
    token = LanceToken(side, dict(zip(ids, digests, strict=False)))
    return Changes(ids, np.ascontiguousarray(vectors[: len(ids)]), gone, token)
