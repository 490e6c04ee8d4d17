"""A migration into a second collection next to the first, for stores that report no writes.

A connector subclasses `PairedStore`, which names the verbs that a store must have, and gets the
whole migration. Writes of clients are found by comparing both collections, page by page: after
the last page of a run, with each synchronisation, and at a cutover or a rollback. Rows are deleted
from the copy only, and never from the collection that clients had before the migration.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import MigrationActive, StoreChanged, StoreUnavailable, StoreUnsupported, WrongState
from app.stores.answers import MAX_CONTENT_BYTES, read_parts, rows_a_read
from app.stores.common import as_json, attempts, find_text, page_of, rows_checksum
from app.stores.port import (
    Changes,
    Cursor,
    HearRows,
    Hits,
    Migration,
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
    Switch,
    TranslateRows,
)
from app.stores.sides import Phase, Sides, StoredRow, contains, fingerprint, opposite, stack_rows

#: rows that are compared, copied or deleted at once
ROWS_A_PAGE = 1000

#: most rows of one call that writes, and most numbers of their vectors: 10 bytes each in JSON
ROWS_A_WRITE, NUMBERS_A_WRITE = 256, 1_000_000

#: longest wait for the index of the new vectors
INDEX_S = 24 * 3600

#: most results of one call that searches
RESULTS_A_CALL = 50_000

#: served pages whose rows are remembered until they are written
PAGES_REMEMBERED = 2

NOT_COMPARED = StoreNote(
    "vectors-not-compared",
    "Writes are found by comparing ids and all that a row holds besides this vector, with `sync` "
    "and `verify` and at a cutover. A write that changes only the vector is not found.",
)

#: where both sides are, rows of the source that a page of a comparison found, and ids that only
#: the copy has
Differences = tuple[Sides, Sequence[StoredRow], Sequence[StoreId]]


class PairedStore(Store):
    """A store whose migration is a second collection. A connector defines the verbs; each can be
    repeated after a crash.

    connection  to the store's server or folder, opened when it is first used
    """

    def __init__(self, location: StoreLocation, connection: Any) -> None:
        self.location, self.connection = location, connection
        self._served: deque[dict[StoreId, StoredRow]] = deque(maxlen=PAGES_REMEMBERED)
        self._served_lock = threading.Lock()

    def close(self) -> None:
        self.connection.close()

    # --- verbs of a connector -----------------------------------------------------------------

    @abstractmethod
    def find_sides(self, tag: str | None = None) -> Sides:
        """Return where both sides are now; without a tag, of the migration that there is.

        Raises StoreChanged if the collection does not exist.
        """

    @abstractmethod
    def facts_of(self, place: Any) -> StoreFacts:
        """Return a place as it is now, with the notes of this kind of store."""

    def copy_problem(self, place: Any) -> StoreNote | None:
        """Return why a place cannot be replaced by a copy; None if it can."""
        return None

    @abstractmethod
    def sample_ids(self, place: Any, count: int, seed: int) -> Iterable[StoreId]:
        """Return the ids of at most `count` rows, spread over the whole place."""

    @abstractmethod
    def create(self, sides: Sides, tag: str, dim: int) -> None:
        """Create an empty place of new vectors, with the settings of the old one."""

    @abstractmethod
    def read_page(
        self, place: Any, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        """Return the next rows, also those without a vector. Digests need `content`.

        Raises `answer_too_large`, and is then called for fewer rows.
        """

    @abstractmethod
    def read_rows(
        self, place: Any, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> list[StoredRow]:
        """Return the rows of these ids that exist. Raises `answer_too_large`, as `read_page`."""

    @abstractmethod
    def count_rows(self, place: Any) -> int:
        """Return the number of rows with a vector."""

    @abstractmethod
    def dim_of(self, place: Any) -> int:
        """Return the dimensions of the vectors of a place."""

    @abstractmethod
    def write_rows(
        self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        """Insert or replace at most ROWS_A_WRITE rows, with these vectors; None: without."""

    @abstractmethod
    def delete_rows(self, place: Any, ids: Sequence[StoreId]) -> None:
        """Delete at most ROWS_A_PAGE rows."""

    @abstractmethod
    def swap(self, sides: Sides, visible: Side) -> float:
        """Let clients see one side, and return the seconds that writes had to wait."""

    @abstractmethod
    def drop(self, sides: Sides, side: Side) -> None:
        """Delete one side, which clients do not see, and all traces of the migration."""

    @abstractmethod
    def search_place(self, place: Any, wanted: Search) -> list[Hits]:
        """Return the ids and scores of a search in one place."""

    def index_state(self, place: Any) -> tuple[str, bool] | None:
        """Return the state of an index that is being built, and whether that failed; else None."""
        return None

    # --- calls of many rows -------------------------------------------------------------------

    def write_all(
        self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        """Insert or replace rows, as `write_rows`."""
        width = 1 if vectors is None else max(1, vectors.shape[1])
        step = max(1, min(ROWS_A_WRITE, NUMBERS_A_WRITE // width))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            self.write_rows(place, rows[part], None if vectors is None else vectors[part])

    def delete_all(self, place: Any, ids: Sequence[StoreId]) -> None:
        """Delete rows of the copy."""
        for first in range(0, len(ids), ROWS_A_PAGE):
            self.delete_rows(place, ids[first : first + ROWS_A_PAGE])

    def wait_for_index(self, place: Any) -> None:
        for is_late in attempts(INDEX_S):
            state = self.index_state(place)
            if state is None:
                return
            if is_late or state[1]:
                raise StoreUnavailable(
                    f"The store has not built the index of the new vectors: its state is "
                    f"{state[0]}. Ask the operator to look at the server's log."
                )

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        place = self.find_sides().visible
        facts, problem = self.facts_of(place), self.copy_problem(place)
        notes = (problem or NOT_COMPARED, *facts.notes)
        return replace(facts, can_migrate=problem is None, notes=notes)

    def sample(self, count: int, seed: int = 0) -> Page:
        place = self.find_sides().old
        return self._fetch(place, list(dict.fromkeys(self.sample_ids(place, count, seed))))

    def rows_a_call(self, place: Any, *, whole: bool) -> int:
        """Return how many rows one call reads; `whole`: with their vectors."""
        return rows_a_read(self.dim_of(place) if whole else 1)

    def rows_after(
        self, place: Any, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        """Return the next rows: `limit`, or fewer if they are large."""
        rows: list[StoredRow] = []
        after = cursor

        def read(_first: int, count: int) -> list[StoredRow]:
            nonlocal after
            found, after = self.read_page(place, after, count, vectors=vectors, content=content)
            return found

        def name(_first: int) -> StoreId:
            return self.read_page(place, after, 1, vectors=False, content=False)[0][0].id

        step = self.rows_a_call(place, whole=vectors or content)
        for found in read_parts(limit, step, read, name, is_page=True):
            rows += found
            if after is None:
                break
        return rows, after

    def rows_of(
        self, place: Any, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> dict[StoreId, StoredRow]:
        """Return the rows of these ids that exist."""
        left = MAX_CONTENT_BYTES

        def read(first: int, count: int) -> list[StoredRow]:
            nonlocal left
            part = list(ids[first : first + count])
            found = self.read_rows(place, part, vectors=vectors, content=content)
            left -= sum(len(as_json(row.payload)) for row in found if content)
            if left < 0:
                raise StoreUnsupported(
                    f"The payloads of these {len(ids)} rows have more than "
                    f"{MAX_CONTENT_BYTES >> 20} MiB. Ask for fewer rows."
                )
            return found

        step = self.rows_a_call(place, whole=vectors or content)
        parts = read_parts(len(ids), step, read, lambda first: ids[first])
        return {row.id: row for found in parts for row in found}

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        sides = self.find_sides()
        place = sides.place(side)
        # `write` copies the rows that were translated, and not what a client writes meanwhile
        keep = side == "old" and sides.phase == "open"
        while True:
            rows, cursor = self.rows_after(place, cursor, limit, vectors=True, content=keep)
            if keep:
                with self._served_lock:
                    self._served.append({row.id: row for row in rows})
            page = self._page(place, rows, cursor)
            if len(page.ids) or cursor is None:
                return page

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        return self._fetch(self.find_sides().place(side), ids)

    def _fetch(self, place: Any, ids: Sequence[StoreId]) -> Page:
        found = zip(ids, self._rows_by(place, ids, vectors=True, content=False), strict=True)
        vectors = {id: row.vector for id, row in found if row and row.vector is not None}
        return page_of(ids, vectors, self.dim_of(place))

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        place = self.find_sides().place(wanted.side)
        step = max(1, RESULTS_A_CALL // wanted.k)
        hits: list[Hits] = []
        for first in range(0, len(wanted.queries), step):
            queries = wanted.queries[first : first + step]
            hits += self.search_place(place, replace(wanted, queries=queries))
        if not (wanted.vectors or wanted.payload):
            return hits
        ids = list(dict.fromkeys(id for each in hits for id in each.ids))
        rows = self.rows_of(place, ids, vectors=wanted.vectors, content=wanted.payload)
        return [self._with_rows(place, each, rows, wanted) for each in hits]

    def _with_rows(
        self, place: Any, hits: Hits, rows: Mapping[StoreId, StoredRow], wanted: Search
    ) -> Hits:
        """Return results with what the rows hold, without rows that were deleted meanwhile."""
        found = [
            (id, each, rows[id])
            for id, each in zip(hits.ids, hits.scores, strict=True)
            if id in rows
        ]
        kept = [each for each in found if not wanted.vectors or each[2].vector is not None]
        stored = [row for _, _, row in kept]
        return Hits(
            [id for id, _, _ in kept],
            [score for _, score, _ in kept],
            stack_rows(stored, self.dim_of(place)) if wanted.vectors else None,
            [row.payload for row in stored] if wanted.payload else None,
        )

    def row_id(self, id: Any) -> StoreId | None:
        """Return an id as the store writes it; None for one that no row can have."""
        return id  # type: ignore[no-any-return]

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        place = self.find_sides().visible
        rows = self._rows_by(place, ids, vectors=False, content=True)
        return [None if row is None else find_text(row.payload, field) for row in rows]

    def _rows_by(
        self, place: Any, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> list[StoredRow | None]:
        """Return the row of each id, which may repeat; None for one that does not exist."""
        keys = [self.row_id(each) for each in ids]
        known = list(dict.fromkeys(key for key in keys if key is not None))
        rows = self.rows_of(place, known, vectors=vectors, content=content)
        return [None if key is None else rows.get(key) for key in keys]

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        pages = self.pages(self.find_sides().visible, content=True)
        return rows_checksum(([row.digest for row in rows] for rows in pages), hear)

    def pages(self, place: Any, *, content: bool) -> Iterator[list[StoredRow]]:
        """Yield all rows of a place, without their vectors."""
        cursor: Cursor | None = None
        while True:
            rows, cursor = self.rows_after(
                place, cursor, ROWS_A_PAGE, vectors=False, content=content
            )
            yield rows
            if cursor is None:
                return

    def _page(self, place: Any, rows: Sequence[StoredRow], cursor: Cursor | None) -> Page:
        kept = [row for row in rows if row.vector is not None]
        return Page([row.id for row in kept], stack_rows(kept, self.dim_of(place)), cursor)

    def take_served(self, ids: Collection[StoreId]) -> dict[StoreId, StoredRow]:
        """Return the rows that a scroll served last, as it served them."""
        with self._served_lock:
            return {id: page[id] for page in self._served for id in ids if id in page}

    def migration(self, tag: str, dim: int) -> Migration:
        return SecondCollection(self, tag, dim)


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
        other = self._store.find_sides().tag
        if other not in (None, self._tag):
            raise MigrationActive(
                f"The collection has another migration, {other}. Finish or abandon it first."
            )
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
        return 0 if sides.new is None else self._store.count_rows(sides.new)

    def read(self, ids: Sequence[StoreId]) -> Page:
        return self._store.fetch(ids, "new")

    def count_old(self) -> int:
        return self._store.count_rows(self._store.find_sides(self._tag).place("old"))

    def build_index(self) -> None:
        self._store.wait_for_index(self._require("open", "between", "cut").new)
        self._filling = False

    # --- changes of clients -------------------------------------------------------------------

    def changes(self, limit: int) -> Changes:
        """Return rows that differ between the sides. After the last ones, the next call begins a
        new comparison.
        """
        sides = self._store.find_sides(self._tag)
        source: Side = "new" if sides.phase == "cut" else "old"
        if self._filling or sides.phase not in ("open", "cut"):
            return Changes([], stack_rows([], self._dim), [], (source, []))
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
        return Changes([row.id for row in rows], vectors, gone, (source, rows))

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

    def cutover(self, translate: TranslateRows) -> Switch:
        return self._switch("old", translate)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        return self._switch("new", translate_back)

    def _switch(self, source: Side, translate: TranslateRows) -> Switch:
        """Let clients see the other side than `source`, after it has all that `source` has."""
        sides = self._require("open", "between", "cut")
        done: Phase = "cut" if source == "old" else "open"
        if sides.phase == done:
            return Switch(0.0)
        if source == "old":
            self._store.wait_for_index(sides.new)
        seen = self._bring(source, translate)
        sides = self._source_sides(source)
        pause = self._store.swap(sides, opposite(source))
        self._comparison, self._rows, self._gone = None, [], []
        self._bring_late(source, seen, translate)
        return Switch(pause)

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
