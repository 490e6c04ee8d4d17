"""A store whose migration is a second collection, and the rows that are copied to it.

A connector subclasses `PairedStore`, which names the verbs that a store must have.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from app.errors import MigrationActive, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores import port as base
from app.stores.answers import MAX_CONTENT_BYTES, read_parts, rows_a_read
from app.stores.common import as_json, attempts, fill_text, find_text, page_of
from app.stores.port import Cursor, Hits, Page, Search, Side, StoreId, StoreVectors

#: rows that are compared, copied or deleted at once
ROWS_A_PAGE = 1000

#: most rows of one call that writes, and most numbers of their vectors: 10 bytes each in JSON
ROWS_A_WRITE, NUMBERS_A_WRITE = 256, 1_000_000

#: longest wait for the index of the new vectors
INDEX_S = 24 * 3600

#: most results of one call that searches
RESULTS_A_CALL = 50_000

#: served pages whose rows are remembered until they are written
PAGES_REMEMBERED = 8

NOT_COMPARED = base.StoreNote(
    "writes-not-captured",
    "The store does not report writes of other clients. `run`, `sync`, `verify` and `cutover` find "
    "them by comparing ids and all that a row holds besides this vector, so a write that changes "
    "only the vector is not found. Stop writes during the cutover.",
)

#: none: there is no migration; open: clients see the old vectors; between: a crash left the
#: collection without its name, in the middle of a swap; cut: clients see the new vectors
Phase = Literal["none", "open", "between", "cut"]


@dataclass(frozen=True, eq=False)
class StoredRow:
    """One row of a collection.

    vector   None: it has none, or it was not read
    payload  what clients see of it besides its vectors; others: its other vectors, by their names
    digest   a number of what a copy of the row must follow: its id, its payload and `others`

    Without its content only the id and the vector were read.
    """

    id: StoreId
    vector: StoreVectors | None
    payload: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    digest: int = 0


@dataclass(frozen=True, eq=False)
class Sides:
    """Where the old and the new vectors are, and the tag of the migration; None: there is none.

    A place is the connector's own: a collection, its name, or a column.
    """

    phase: Phase
    tag: str | None
    old: Any
    new: Any = None

    @property
    def visible(self) -> Any:
        """The place that clients see; in the middle of a swap, the old one."""
        return self.new if self.phase == "cut" else self.old

    def place(self, side: Side) -> Any:
        """Return the place of a side. Raises StoreChanged if there is none."""
        found = self.old if side == "old" else self.new
        if found is None:
            raise StoreChanged(
                f"The store has no {side} vectors of a migration. Plan a migration first."
            )
        return found


class PairedStore(base.Store):
    """A store whose migration is a second collection. A connector defines the verbs; each can be
    repeated after a crash.

    connection  to the store's server or folder, opened when it is first used
    """

    def __init__(self, location: base.StoreLocation, connection: Any) -> None:
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
    def facts_of(self, place: Any) -> base.StoreFacts:
        """Return a place as it is now, with the notes of this kind of store."""

    def copy_problem(self, place: Any) -> base.StoreNote | None:
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

    def count_found(self, place: Any) -> int:
        """Return the number of rows with a vector that clients find in every way they search."""
        return self.count_rows(place)

    @abstractmethod
    def dim_of(self, place: Any) -> int:
        """Return the dimensions of the vectors of a place."""

    @abstractmethod
    def write_rows(
        self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        """Insert or replace at most ROWS_A_WRITE rows, with these vectors; None: without."""

    def write_vectors(self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors) -> None:
        """Replace the vectors of rows that clients see, and, where the store can, nothing else."""
        self.write_all(place, rows, vectors)

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

    def facts(self) -> base.StoreFacts:
        place = self.find_sides().visible
        facts, problem = self.facts_of(place), self.copy_problem(place)
        notes = (problem or NOT_COMPARED, *facts.notes)
        return replace(facts, can_migrate=problem is None, notes=notes)

    def require_dim(self, dim: int) -> None:
        self.refuse_others(None)

    def refuse_others(self, own: str | None) -> None:
        """Raises MigrationActive while the collection has another migration than this one."""
        if (tag := self.find_sides().tag) not in (None, own):
            raise MigrationActive(
                f"The collection has another migration, {tag}. Finish or abandon it first, in the "
                "service that began it."
            )

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
        place, keep = sides.place(side), side == "old" and sides.phase == "open"
        rows, cursor = self._serve(place, cursor, limit, content=keep, keep=keep)
        return Page([row.id for row in rows], stack_rows(rows, self.dim_of(place)), cursor)

    def scroll_texts(self, cursor: Cursor | None, limit: int) -> base.TextPage:
        template, sides = self.text_template(), self.find_sides()
        keep = sides.phase == "open"
        rows, cursor = self._serve(sides.old, cursor, limit, content=True, keep=keep)
        texts = [fill_text(template, row.payload) for row in rows]
        return base.TextPage([row.id for row in rows], texts, cursor)

    def _serve(
        self, place: Any, cursor: Cursor | None, limit: int, *, content: bool, keep: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        """Return the next rows with a vector.

        keep  for `write`: it copies rows as they were when their new vectors were made, and not
              what a client writes meanwhile
        """
        while True:
            rows, cursor = self.rows_after(place, cursor, limit, vectors=True, content=content)
            rows = [row for row in rows if row.vector is not None]
            if keep and rows:  # pages without a vector must not push out those that are embedded
                with self._served_lock:
                    self._served.append({row.id: row for row in rows})
            if rows or cursor is None:
                return rows, cursor

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
        kept = [
            (id, score, row)
            for id, score in zip(hits.ids, hits.scores, strict=True)
            if (row := rows.get(id)) and (not wanted.vectors or row.vector is not None)
        ]
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

    def take_served(self, ids: Collection[StoreId]) -> dict[StoreId, StoredRow]:
        """Return the rows that a scroll served last, as it served them."""
        with self._served_lock:
            return {id: page[id] for page in self._served for id in ids if id in page}


def choose_vector(collection: str, names: Collection[str], wanted: str | None) -> str:
    """Return the name of the vectors to read. Raises StoreUnsupported if it is not clear."""
    if wanted is None and ("" in names or len(names) == 1):
        return "" if "" in names else next(iter(names))
    if wanted is not None and wanted in names:
        return wanted
    problem = "several dense vectors or none" if wanted is None else f"no dense vector {wanted!r}"
    raise StoreUnsupported(
        f"{collection!r} has {problem}. Name one in `vector_field`; its dense vectors are: "
        f"{', '.join(map(repr, sorted(names))) or 'none'}.",
        field="vector_field",
    )


def stack_rows(rows: Sequence[StoredRow], dim: int) -> StoreVectors:
    """Return the vectors (n, dim) of rows that all have one."""
    if not rows:
        return np.zeros((0, dim), np.float32)
    return np.ascontiguousarray([row.vector for row in rows], np.float32)
