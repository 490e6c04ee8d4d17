"""A second collection for the new vectors. A cutover is two renames."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.errors import ReindexingActive, StoreChanged
from app.stores.base import Beside, Changes, Side, StoreId, StoreVectors, Switch, TranslateRows
from app.stores.chroma.rows import (
    ChromaRow,
    add_rows,
    all_ids,
    delete_rows,
    read_all,
    read_ids,
)
from app.stores.chroma.sides import ChromaLedger, ChromaNames, ChromaSides, find_tags, list_names
from app.stores.common import opposite, translate_changes

if TYPE_CHECKING:
    from app.stores.chroma.store import ChromaStore

#: changes that a cutover translates at once
CHANGES_A_PAGE = 1000


class ChromaBeside(Beside):
    """The strategy `collection`."""

    def __init__(self, store: ChromaStore, tag: str, dim: int) -> None:
        self._store = store
        self._tag = tag
        self._dim = dim
        self._names = ChromaNames.of(store.location.collection, tag)
        self._open_ledger: tuple[Any, ChromaLedger] | None = None
        self._scan: tuple[str, int] = ("", 0)

    # --- state --------------------------------------------------------------------------------

    def _require(self, *phases: str) -> ChromaSides:
        sides = self._store.sides_of(self._tag)
        if sides.phase not in phases or sides.ledger is None:
            raise StoreChanged(
                f"The collections of this reindexing are not as expected: `{self._names.new}` "
                "or its ledger is missing. Somebody deleted or renamed one."
            )
        known = (sides.ledger.metadata or {}).get("old")
        if known != str(sides.old.id):
            raise StoreChanged(
                f"`{self._store.location.collection}` is not the collection that this reindexing "
                "began with. Somebody replaced it. Abandon the reindexing and plan a new one."
            )
        return sides

    def _ledger(self, sides: ChromaSides) -> ChromaLedger:
        if self._open_ledger is None or self._open_ledger[0] != sides.ledger.id:
            self._open_ledger = (sides.ledger.id, ChromaLedger(sides.ledger))
        return self._open_ledger[1]

    # --- writing ------------------------------------------------------------------------------

    def prepare(self) -> None:
        client = self._store.connection.client
        with self._store.forgetting():
            others = find_tags(list_names(client), self._store.location.collection) - {self._tag}
            if others:
                raise ReindexingActive(
                    f"The collection has another reindexing, {min(others)}. Finish or abandon it "
                    "first."
                )
            sides = self._store.sides_of(self._tag)
            if sides.phase != "none":
                self._require(sides.phase)
                return
            metadata = {"anchorage": self._tag, "old": str(sides.old.id), "filled": False}
            if sides.ledger is not None:
                client.delete_collection(self._names.ledger)
            client.create_collection(self._names.ledger, metadata=metadata, embedding_function=None)
            configuration = sides.old.configuration_json
            index = {key: configuration[key] for key in ("hnsw", "spann") if configuration[key]}
            client.create_collection(
                self._names.new,
                metadata=sides.old.metadata,
                configuration=index,
                embedding_function=None,
            )

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        sides = self._require("open")
        keys = [str(id) for id in ids]
        new = dict(zip(keys, vectors, strict=True))
        with self._store.connection.faults():
            rows = self._store.take_served(keys)
            rows |= read_ids(sides.old, [key for key in keys if key not in rows])
            if replace:
                delete_rows(sides.new, keys)
            else:
                for key in read_ids(sides.new, keys, vectors=False, payload=False):
                    rows.pop(key, None)
            found = list(rows.values())
            if found:
                add_rows(sides.new, found, np.stack([new[row.id] for row in found]))
                self._ledger(sides).record("old", {row.id: row.digest() for row in found})

    def count(self) -> int:
        sides = self._store.sides_of(self._tag)
        if sides.new is None:
            return 0
        with self._store.connection.faults():
            return int(sides.new.count())

    def build_index(self) -> None:
        """Mark the new vectors as complete. Chroma keeps its index with every write."""
        sides = self._require("open", "between", "cut")
        with self._store.connection.faults():
            sides.ledger.modify(metadata={**sides.ledger.metadata, "filled": True})

    # --- changes of clients -------------------------------------------------------------------

    def changes(self, limit: int) -> Changes:
        """Return changed rows, found by reading the collection from the last change on.

        Before `build_index` there are none: rows that are not yet written are no changes.
        """
        sides = self._store.sides_of(self._tag)
        if sides.ledger is None or not (sides.ledger.metadata or {}).get("filled"):
            return _as_changes([], [], "old", self._dim)
        self._require("open", "between", "cut")
        side: Side = "new" if sides.phase == "cut" else "old"
        with self._store.connection.faults():
            return self._find_changes(sides, side, limit)

    def _find_changes(self, sides: ChromaSides, side: Side, limit: int) -> Changes:
        source, other = _ordered(sides, side)
        reached, there = set(all_ids(source)), set(all_ids(other))
        gone = sorted(there - reached)[:limit]
        start = self._scan[1] if self._scan[0] == side else 0
        rows: list[ChromaRow] = []
        first = 0
        for offset, found in self._changed(sides, side, start, there):
            first = first if rows else offset
            rows += found
            if len(rows) + len(gone) >= limit:
                break
        # The next call reads the pages with changes again: it finds those beyond the limit.
        self._scan = (side, first)
        return _as_changes(rows[: limit - len(gone)], gone, side, source.get_model().dimension)

    def _changed(
        self, sides: ChromaSides, side: Side, start: int, there: set[str]
    ) -> Iterator[tuple[int, list[ChromaRow]]]:
        """Yield the place of each page with changes, and its changed rows."""
        digests, others = (self._ledger(sides).digests(each) for each in (side, opposite(side)))

        def is_changed(row: ChromaRow) -> bool:
            # the ledger says None of a row that has no vector on the other side, as it should be
            lost = row.id not in there and others.get(row.id, "") is not None
            return lost or digests.get(row.id) != row.digest()

        offset = start
        for page in read_all(_ordered(sides, side)[0], start=start):
            found = [row for row in page if is_changed(row)]
            if found:
                yield offset, found
            offset += len(page)

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        sides = self._require("open", "between", "cut")
        side, rows = changes.token
        with self._store.connection.faults():
            self._apply(sides, side, rows, changes, vectors)

    def _apply(
        self,
        sides: ChromaSides,
        side: Side,
        rows: Sequence[ChromaRow],
        changes: Changes,
        vectors: StoreVectors,
    ) -> None:
        """Write vectors of changed rows to the other side.

        rows  as `changes` found them. Those that `changes` no longer names could not be
              translated: they are recorded, so that they are found again only after a change.
        """
        _, other = _ordered(sides, side)
        ids, gone = list(map(str, changes.ids)), list(map(str, changes.deleted))
        known = {row.id: row for row in rows}
        delete_rows(other, [*ids, *gone])
        add_rows(other, [known[id] for id in ids], vectors)
        ledger = self._ledger(sides)
        written = read_ids(other, list(known))
        nothing = dict.fromkeys([*gone, *(id for id in known if id not in written)])
        ledger.record(opposite(side), nothing | {id: row.digest() for id, row in written.items()})
        ledger.record(side, dict.fromkeys(gone) | {row.id: row.digest() for row in rows})

    def _drain(self, translate: TranslateRows) -> None:
        while len(changes := self.changes(CHANGES_A_PAGE)):
            self.apply(changes, translate_changes(translate, changes))

    # --- steps --------------------------------------------------------------------------------

    def cutover(self, translate: TranslateRows) -> Switch:
        sides = self._require("open", "between", "cut")
        if sides.phase == "cut":
            return Switch(0.0)
        name = self._store.location.collection
        with self._store.forgetting():
            if sides.phase == "open":
                self._drain(translate)
                self._keep_undirected(sides)
            if sides.phase == "open" or not self._ledger(sides).digests("new"):
                self._snapshot(sides)
            begun = time.monotonic()
            if sides.phase == "open":
                sides.old.modify(name=self._names.old)
            sides.new.modify(name=name)
            pause = time.monotonic() - begun
            self._bring_late(self._require("cut"), "old", translate)
        return Switch(pause)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        sides = self._require("open", "between", "cut")
        if sides.phase == "open":
            return Switch(0.0)
        name = self._store.location.collection
        with self._store.forgetting():
            if sides.phase == "cut":
                self._drain(translate_back)
            begun = time.monotonic()
            if sides.phase == "cut":
                sides.new.modify(name=self._names.new)
            sides.old.modify(name=name)
            pause = time.monotonic() - begun
            self._bring_late(self._require("open"), "new", translate_back)
        return Switch(pause)

    def _keep_undirected(self, sides: ChromaSides) -> None:
        """Add rows that could not be translated with zeros: `finish` must not delete them."""
        old, new = (self._ledger(sides).digests(side) for side in ("old", "new"))
        there = set(all_ids(sides.new))
        ids = [id for id, digest in new.items() if digest is None and id not in there]
        rows = [row for row in read_ids(sides.old, ids).values() if row.digest() == old.get(row.id)]
        if rows:
            add_rows(sides.new, rows, np.zeros((len(rows), self._dim), np.float32))

    def _snapshot(self, sides: ChromaSides) -> None:
        """Record the new rows as they are, to find out later which ones clients changed."""
        ledger = self._ledger(sides)
        for page in read_all(sides.new):
            ledger.record("new", {row.id: row.digest() for row in page})

    def _bring_late(self, sides: ChromaSides, side: Side, translate: TranslateRows) -> None:
        """Apply what clients wrote to `side` while it lost its name, unless the row is newer."""
        source, other = _ordered(sides, side)
        ledger, there = self._ledger(sides), set(all_ids(other))
        left = set(all_ids(source))
        known = ledger.digests(side).items()
        gone = [id for id, digest in known if digest and id in there and id not in left]
        late = [row for _, found in self._changed(sides, side, 0, left) for row in found]
        for start in range(0, len(late) + len(gone), CHANGES_A_PAGE):
            rows = late[start : start + CHANGES_A_PAGE]
            ids = gone[max(0, start - len(late)) : max(0, start + CHANGES_A_PAGE - len(late))]
            now = read_ids(other, [*(row.id for row in rows), *ids])
            written = ledger.digests(opposite(side))
            same = {
                id
                for id in [*(row.id for row in rows), *ids]
                if (now[id].digest() if id in now else None) == written.get(id)
            }
            rows = [row for row in rows if row.id in same]
            changes = _as_changes(rows, [id for id in ids if id in same], side, self._dim)
            vectors = translate_changes(translate, changes)
            self._apply(sides, side, rows, changes, vectors)

    def finish(self) -> None:
        client = self._store.connection.client
        with self._store.forgetting():
            sides = self._store.sides_of(self._tag)
            if sides.phase in ("open", "between"):
                raise StoreChanged("Clients still see the old vectors. Call the cutover first.")
            if sides.phase == "cut":
                client.delete_collection(self._names.old)
            if sides.ledger is not None:
                client.delete_collection(self._names.ledger)

    def abandon(self) -> None:
        client = self._store.connection.client
        with self._store.forgetting():
            sides = self._store.sides_of(self._tag)
            if sides.phase == "cut":
                raise StoreChanged("Clients see the new vectors. Roll back before you abandon.")
            if sides.phase == "between":
                sides.old.modify(name=self._store.location.collection)
            if sides.new is not None:
                client.delete_collection(self._names.new)
            if sides.ledger is not None:
                client.delete_collection(self._names.ledger)


def _ordered(sides: ChromaSides, side: Side) -> tuple[Any, Any]:
    """Return the collection of a side, and the other one."""
    return (sides.old, sides.new) if side == "old" else (sides.new, sides.old)


def _as_changes(rows: list[ChromaRow], gone: list[str], side: Side, dim: int) -> Changes:
    vectors = [row.vector for row in rows if row.vector is not None]
    stacked = np.stack(vectors) if vectors else np.zeros((0, dim), np.float32)
    return Changes([row.id for row in rows], stacked, gone, (side, rows))
