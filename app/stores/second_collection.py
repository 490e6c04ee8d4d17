"""A migration into a second collection next to the first, for stores that report no writes.

Writes of clients are found by comparing both collections, page by page: after the last page of a
run, with each synchronisation, and at a cutover or a rollback. Rows are deleted from the copy only,
and never from the collection that clients had before the migration.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import StoreChanged, StoreUnsupported, WrongState
from app.stores.common import fill_text
from app.stores.paired_store import ROWS_A_PAGE, PairedStore, Phase, Sides, StoredRow, stack_rows
from app.stores.port import (
    Changes,
    HearRows,
    Migration,
    Page,
    Side,
    StoreId,
    StoreVectors,
    TranslateRows,
)

#: looks at rows that differ: a client may write them between two reads
LOOKS = 3

#: where both sides are, rows of the source that a page of a comparison found, and ids that only
#: the copy has
Differences = tuple[Sides, Sequence[StoredRow], Sequence[StoreId]]


class SecondCollection(Migration):
    """The new vectors of one migration in a second collection."""

    def __init__(self, store: PairedStore, tag: str, dim: int) -> None:
        self._store, self._tag, self._dim = store, tag, dim
        #: between `prepare` and `build_index`, rows without a new vector are no changes
        self._filling = False
        #: the comparison that `changes` is in the middle of, the side that clients write, and what
        #: it found that waits for `apply`
        self._comparison: Iterator[Differences] | None = None
        self._compared: Side = "old"
        self._rows: list[StoredRow] = []
        self._gone: list[StoreId] = []

    def _require(self, *phases: Phase) -> Sides:
        sides = self._store.find_sides(self._tag)
        if sides.phase not in phases or sides.new is None:
            raise StoreChanged(
                f"The new vectors of the migration {self._tag} are missing, or somebody else "
                "switched or replaced a collection. Abandon it, and plan a new one."
            )
        return sides

    # --- filling ------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._store.refuse_others(self._tag)
        sides = self._store.find_sides(self._tag)
        self._filling = sides.phase in ("none", "open")
        if sides.new is None:
            if problem := self._store.copy_problem(sides.old):
                raise StoreUnsupported(problem.detail, field="store")
            self._store.create(sides, self._tag, self._dim)
        elif (dim := self._store.dim_of(sides.new)) not in (0, self._dim):
            raise StoreChanged(
                f"The new vectors of this migration have {dim} dimensions instead of {self._dim}. "
                "Abandon it, and plan a new one."
            )

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        sides = self._require("open")
        new = dict(zip(ids, vectors, strict=True))
        rows = self._store.take_served(new)
        others = [id for id in new if id not in rows]
        rows |= self._store.rows_of(sides.old, others, vectors=True, content=True)
        if replace:
            self._store.delete_all(sides.new, list(rows))
        else:
            there = self._store.rows_of(sides.new, list(new), vectors=False, content=False)
            rows = {id: row for id, row in rows.items() if id not in there}
        if rows:
            written = np.stack([new[id] for id in rows])
            self._store.write_all(sides.new, list(rows.values()), written)

    def count(self) -> int:
        sides = self._store.find_sides(self._tag)
        return 0 if sides.new is None else self._store.count_found(sides.new)

    def read(self, ids: Sequence[StoreId]) -> Page:
        return self._store.fetch(ids, "new")

    def count_old(self) -> int:
        return self._store.count_rows(self._store.find_sides(self._tag).place("old"))

    def build_index(self) -> None:
        self._store.wait_for_index(self._require("open", "between", "cut").new)
        self._filling = False

    # --- changes of clients -------------------------------------------------------------------

    def is_cut_over(self) -> bool:
        return self._store.find_sides(self._tag).phase == "cut"

    def changes(self, limit: int) -> Changes:
        """Return rows that differ between the sides. After the last ones, the next call begins a
        new comparison.
        """
        sides = self._store.find_sides(self._tag)
        source: Side = "new" if sides.phase == "cut" else "old"
        if self._filling or sides.phase not in ("open", "cut"):
            return Changes([], stack_rows([], self._dim), token=(source, []))
        if self._compared != source or not (self._comparison or self._rows or self._gone):
            self._rows, self._gone, self._compared = [], [], source
            self._comparison = self._differences(source, array("Q"))
        while self._comparison and len(self._rows) + len(self._gone) < limit:
            found = next(self._comparison, None)
            if found is None:
                self._comparison = None
            else:
                self._rows += found[1]
                self._gone += found[2]
        rows = list({row.id: row for row in self._rows}.values())  # a scan may repeat rows
        gone = list(self._gone)
        vectors = stack_rows(rows, self._store.dim_of(sides.place(source)))
        ids = [row.id for row in rows]
        same = self._with_same_text(rows, sides.place(opposite(source)))
        return Changes(ids, vectors, gone, same, (source, rows), writes=len(ids) + len(gone))

    def same_text(self, ids: Sequence[StoreId]) -> Sequence[StoreId]:
        sides = self._store.find_sides(self._tag)
        rows = self._store.rows_of(sides.old, ids, vectors=False, content=True)
        return self._with_same_text(list(rows.values()), sides.new)

    def _with_same_text(self, rows: Sequence[StoredRow], place: Any) -> list[StoreId]:
        """Return the rows that have the same text in another place."""
        if not rows or self._store.location.text_field is None:
            return []
        template = self._store.text_template()
        texts = {row.id: fill_text(template, row.payload) for row in rows}
        there = self._store.rows_of(place, list(texts), vectors=False, content=True)
        return [
            id
            for id, row in there.items()
            if (texts[id] or "").strip() and texts[id] == fill_text(template, row.payload)
        ]

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        sides = self._require("open", "cut")
        source, rows = changes.token
        if source != ("new" if sides.phase == "cut" else "old"):
            raise StoreChanged("The sides were switched since the changes were read. Repeat.")
        target = sides.place(opposite(source))
        known = {row.id: row for row in rows}
        written = [known.pop(id) for id in changes.ids]
        if written:
            self._store.write_all(target, written, vectors)
        gone = [id for id in changes.deleted if id not in known]
        if gone and source == "old":
            self._store.delete_all(target, gone)
        if known and source == "old":  # they have no new vector; an old one stays as it is
            self._store.delete_all(target, list(known))
        self._rows, self._gone = [], []

    def rewrite(self, seen: Page, vectors: StoreVectors) -> Sequence[StoreId]:
        """A write of a client between the comparison and the write, some milliseconds, may lose."""
        place = self._require("open", "cut").visible
        found = self._store.rows_of(place, seen.ids, vectors=True, content=True)
        kept = [
            number
            for number, id in enumerate(seen.ids)
            if id in found and np.array_equal(found[id].vector, seen.vectors[number])  # type: ignore[arg-type]
        ]
        rows = [found[seen.ids[number]] for number in kept]
        if rows:
            self._store.write_vectors(place, rows, vectors[kept])
        return [row.id for row in rows]

    def count_different(self, hear: HearRows, apply: Callable[[], object]) -> int:
        sides = self._require("open", "cut")
        source: Side = "new" if sides.phase == "cut" else "old"
        read = partial(self._store.rows_of, sides.visible, vectors=False, content=True)
        pages, count, found = self._store.pages(sides.visible, content=True), 0, list[StoreId]()
        for look in range(LOOKS):
            if look:  # at what a client wrote meanwhile
                apply()
                parts = [found[at : at + ROWS_A_PAGE] for at in range(0, len(found), ROWS_A_PAGE)]
                pages, found = (list(read(ids).values()) for ids in parts), []
            for rows in pages:
                hear(count := count + len(rows))
                pairs = self._pairs(sides, source, rows)
                found += [row.id for row, there in pairs if there and there.digest != row.digest]
            if not found:
                break
        return len(found)

    def _differences(self, source: Side, seen: array[int]) -> Iterator[Differences]:
        """Yield rows that the other side lacks or has otherwise, then those that only it has.

        Adds a fingerprint of each row of the source to `seen`.
        """
        for rows in self._store.pages(self._source_sides(source).place(source), content=True):
            sides = self._source_sides(source)
            pairs = self._pairs(sides, source, rows)
            seen.extend(fingerprint(row.id, row.digest) for row in rows)
            stale = [row.id for row, there in pairs if there is None or there.digest != row.digest]
            whole = self._store.rows_of(sides.place(source), stale, vectors=True, content=True)
            bare = [row for row in whole.values() if row.vector is None]
            if bare:
                self._store.write_all(sides.place(opposite(source)), bare, None)
            seen.extend(fingerprint(row.id, row.digest) for row in whole.values())
            yield sides, [row for row in whole.values() if row.vector is not None], []
        if source == "new":
            return  # rows of the collection that clients had are never deleted
        for rows in self._store.pages(self._source_sides(source).new, content=False):
            sides = self._source_sides(source)
            ids = [row.id for row in rows]
            there = self._store.rows_of(sides.old, ids, vectors=False, content=False)
            yield sides, [], [id for id in ids if id not in there]

    def _pairs(
        self, sides: Sides, source: Side, rows: Sequence[StoredRow]
    ) -> list[tuple[StoredRow, StoredRow | None]]:
        """Return rows of one side, each with its row of the other side."""
        there, ids = sides.place(opposite(source)), [row.id for row in rows]
        found = self._store.rows_of(there, ids, vectors=False, content=True)
        return [(row, found.get(row.id)) for row in rows]

    def _source_sides(self, source: Side) -> Sides:
        """Return the sides. Raises StoreChanged if clients no longer see `source`."""
        return self._require("between", "open" if source == "old" else "cut")

    def _bring(self, source: Side, translate: TranslateRows) -> NDArray[np.uint64]:
        """Bring every difference to the other side; return the fingerprints of what was read."""
        seen = array("Q")
        for sides, rows, gone in self._differences(source, seen):
            self._copy(sides, source, rows, translate)
            if gone:
                self._store.delete_all(sides.new, gone)
        return np.sort(np.asarray(seen, np.uint64))

    def _bring_late(self, source: Side, seen: NDArray[np.uint64], translate: TranslateRows) -> None:
        """Bring what clients wrote to `source` between its comparison and the swap.

        A row that they wrote since the swap is newer, and stays.
        """
        sides = self._require("cut" if source == "old" else "open")
        for rows in self._store.pages(sides.place(source), content=True):
            late = [
                row.id
                for row, there in self._pairs(sides, source, rows)
                if not contains(seen, fingerprint(row.id, row.digest))
                and (there is None or contains(seen, fingerprint(row.id, there.digest)))
            ]
            found = self._store.rows_of(sides.place(source), late, vectors=True, content=True)
            whole = [row for row in found.values() if row.vector is not None]
            self._copy(sides, source, whole, translate)

    def _copy(
        self, sides: Sides, source: Side, rows: Sequence[StoredRow], translate: TranslateRows
    ) -> None:
        """Write translated rows. One without a direction must not replace an old vector."""
        if not rows:
            return
        target = opposite(source)
        vectors = translate([row.id for row in rows], stack_rows(rows, 0))
        lost = set(np.flatnonzero(~vectors.any(axis=1)).tolist()) if source == "new" else set()
        if lost:
            ids = [rows[place].id for place in lost]
            there = self._store.rows_of(sides.old, ids, vectors=False, content=False)
            lost = {place for place in lost if rows[place].id in there}
        kept = [place for place in range(len(rows)) if place not in lost]
        if kept:
            written = [rows[place] for place in kept]
            self._store.write_all(sides.place(target), written, vectors[kept])

    # --- steps --------------------------------------------------------------------------------

    def cutover(self, translate: TranslateRows) -> float:
        return self._switch("old", translate)

    def rollback(self, translate_back: TranslateRows) -> float:
        return self._switch("new", translate_back)

    def _switch(self, source: Side, translate: TranslateRows) -> float:
        """Let clients see the other side than `source`, after it has all that `source` has."""
        sides = self._require("open", "between", "cut")
        done: Phase = "cut" if source == "old" else "open"
        if sides.phase == done:
            return 0.0
        if source == "old":
            self._store.wait_for_index(sides.new)
        seen = self._bring(source, translate)
        sides = self._source_sides(source)
        pause = self._store.swap(sides, opposite(source))
        self._comparison, self._rows, self._gone = None, [], []
        self._bring_late(source, seen, translate)
        return pause

    def finish(self) -> None:
        sides = self._store.find_sides(self._tag)
        if sides.phase in ("open", "between"):
            raise WrongState("Clients still see the old vectors. Cut over before you finish.")
        if sides.phase == "cut":
            self._store.drop(sides, "old")

    def abandon(self) -> None:
        sides = self._store.find_sides(self._tag)
        if sides.phase == "cut":
            raise WrongState("Clients see the new vectors. Roll back before you abandon.")
        if sides.phase == "between":
            self._store.swap(sides, "old")
            sides = self._require("open")
        if sides.phase == "open":
            self._store.drop(sides, "new")


def opposite(side: Side) -> Side:
    return "new" if side == "old" else "old"


def fingerprint(id: StoreId, digest: int | None) -> int:
    """Return a number below 2^64 of a row as it was read."""
    text = f"{id!r} {digest}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def contains(sorted_numbers: NDArray[np.uint64], number: int) -> bool:
    place = int(np.searchsorted(sorted_numbers, np.uint64(number)))
    return place < len(sorted_numbers) and int(sorted_numbers[place]) == number
