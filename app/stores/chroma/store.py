"""Chroma as a Store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from app.errors import StoreChanged, StoreUnsupported
from app.stores.base import (
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
    StoreNote,
    StoreVectors,
)
from app.stores.chroma import rows as chroma_rows
from app.stores.chroma.beside import ChromaBeside
from app.stores.chroma.connection import ChromaConnection
from app.stores.chroma.rows import ChromaRow, rank_exactly, rank_with_index
from app.stores.chroma.sides import ChromaSides, find_sides
from app.stores.common import rows_checksum

#: spaces of Chroma
SPACES: dict[str, Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}

#: rows of the last pages that are remembered until they are written
ROWS_REMEMBERED = 5000

#: ids of a page that its cursor holds
IDS_IN_CURSOR = 8

CHROMA_NOTES = (
    StoreNote(
        "cutover-has-a-gap",
        "Chroma renames one collection at a time. A cutover and a rollback are two renames; "
        "between them, for some milliseconds, no collection has the name.",
    ),
    StoreNote(
        "clients-keep-handles",
        "A Chroma client that opened the collection before a cutover keeps the old "
        "vectors until it calls `get_collection` again. Restart clients after a cutover.",
    ),
    StoreNote(
        "embedding-function-not-kept",
        "The new collection has no embedding function, because the stored one makes old vectors. "
        "Clients must send vectors, or pass the embedding function of the new encoder.",
    ),
    StoreNote(
        "changes-by-comparison",
        "Chroma has no log of changes. Writes of clients are found by reading the whole "
        "collection again, when the new vectors are complete and at a cutover.",
    ),
)

Result = TypeVar("Result")


class ChromaStore(Store):
    """A collection on a Chroma server or in a folder."""

    capabilities = Capabilities(strategies=("collection",), captures_writes=True, filters=True)

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.connection = ChromaConnection(location)
        self._sides: ChromaSides | None = None
        self._served: OrderedDict[str, ChromaRow] = OrderedDict()
        self._lock = threading.Lock()

    # --- handles ------------------------------------------------------------------------------

    def sides(self) -> ChromaSides:
        """Return the collections as they are now, of the reindexing that Chroma has."""
        self._sides = self.sides_of(None)
        return self._sides

    def sides_of(self, tag: str | None) -> ChromaSides:
        """Return the collections of a reindexing as they are now; None: of the one that exists.

        Another process may end a reindexing and begin one, so that no tag is remembered.
        """
        client = self.connection.client
        with self.connection.faults():
            return find_sides(client, self.location.collection, tag)

    def _on(self, side: Side, call: Callable[[Any], Result]) -> Result:
        """Call with the collection of a side, found anew if it is unknown or was deleted."""
        sides = self._sides or self.sides()
        if side == "new" and sides.new is None:
            sides = self.sides()
        try:
            with self.connection.faults():
                return call(_one_of(sides, side))
        except StoreChanged:
            again = self.sides()
            if _same(again, sides, side):
                raise
        with self.connection.faults():
            return call(_one_of(again, side))

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        sides = self.sides()
        with self.connection.faults():
            count = sides.visible.count()
            dim = sides.visible.get_model().dimension
            space = _space(sides.visible)
        if dim is None:
            raise StoreUnsupported(
                f"The collection `{self.location.collection}` is empty, so its vectors have no "
                "dimension yet. Add rows first."
            )
        return StoreFacts(
            rows=count,
            dim=dim,
            metric=space,
            indexed=True,
            strategies=self.capabilities.strategies,
            vector_bytes=4 * count * dim,
            notes=CHROMA_NOTES,
        )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        return self._on(side, lambda collection: self._page(collection, cursor, limit, side))

    def _page(self, collection: Any, cursor: Cursor | None, limit: int, side: Side) -> Page:
        start = 0 if cursor is None else _resume(collection, cursor["at"], cursor["last"])
        keep = side == "old" and self._sides is not None and self._sides.new is not None
        found = chroma_rows.read_rows(collection, payload=keep, limit=limit, offset=start)
        if keep:
            self._remember(found)
        page = _page_of(found, collection)
        if len(found) < limit:
            return page
        last = [row.id for row in found[-IDS_IN_CURSOR:]]
        return Page(page.ids, page.vectors, {"at": start + len(found), "last": last})

    def sample(self, count: int, seed: int = 0) -> Page:
        ids = self._on("old", chroma_rows.all_ids)
        draw = np.random.default_rng(seed).permutation(len(ids))[:count]
        return self.fetch([ids[each] for each in sorted(draw)])

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        def read(collection: Any) -> Page:
            found = chroma_rows.read_ids(collection, [str(id) for id in ids], payload=False)
            return _page_of([found[str(id)] for id in ids if str(id) in found], collection)

        return self._on(side, read)

    def texts(self, ids: Sequence[StoreId]) -> Sequence[str | None]:
        name = self.location.text_field or chroma_rows.DOCUMENT
        keys = [str(id) for id in ids]
        found = self._on("old", lambda each: chroma_rows.read_ids(each, keys, vectors=False))
        texts = [found[key].payload.get(name) if key in found else None for key in keys]
        return [text if isinstance(text, str) else None for text in texts]

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
        choice = _read_filter(filter)
        rank = rank_exactly if exact else rank_with_index

        def search(collection: Any) -> Sequence[Hits]:
            return rank(collection, queries, k, _space(collection), choice, vectors, payload)

        return self._on(side, search) if len(queries) else []

    def checksum(self) -> RowsChecksum:
        visible = self.sides().visible
        with self.connection.faults():
            pages = chroma_rows.read_all(visible, vectors=False)
            return rows_checksum(row.number() for page in pages for row in page)

    # --- a reindexing -------------------------------------------------------------------------

    def beside(self, tag: str, dim: int, strategy: str | None = None) -> ChromaBeside:
        self.chosen_strategy(strategy)
        self._sides = None
        return ChromaBeside(self, tag, dim)

    def _remember(self, found: Sequence[ChromaRow]) -> None:
        with self._lock:
            for row in found:
                self._served[row.id] = row
                self._served.move_to_end(row.id)
            while len(self._served) > ROWS_REMEMBERED:
                self._served.popitem(last=False)

    def take_served(self, ids: Sequence[str]) -> dict[str, ChromaRow]:
        """Return the rows that a scroll served last, as it served them, and forget them."""
        with self._lock:
            return {id: self._served.pop(id) for id in ids if id in self._served}

    def close(self) -> None:
        self._sides = None
        self.connection.close()

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Find the collections anew after the block."""
        try:
            with self.connection.faults():
                yield
        finally:
            self._sides = None


def _one_of(sides: ChromaSides, side: Side) -> Any:
    collection = sides.old if side == "old" else sides.new
    if collection is None:
        raise StoreChanged("The store has no new vectors. Prepare a reindexing first.")
    return collection


def _same(first: ChromaSides, second: ChromaSides, side: Side) -> bool:
    """Whether a side is the same collection in both."""
    one, other = (getattr(each, side) for each in (first, second))
    return one is None or (other is not None and one.id == other.id)


def _space(collection: Any) -> Metric:
    configuration = collection.configuration_json
    index = configuration.get("hnsw") or configuration.get("spann") or {}
    return SPACES[index.get("space", "l2")]


def _page_of(found: Sequence[ChromaRow], collection: Any) -> Page:
    dim = collection.get_model().dimension or 0
    vectors = np.stack([row.vector for row in found]) if found else np.zeros((0, dim), np.float32)  # type: ignore[misc]
    return Page([row.id for row in found], np.ascontiguousarray(vectors, np.float32))


def _resume(collection: Any, at: int, last: Sequence[str]) -> int:
    """Return the position after the row that was read last.

    Chroma orders rows by their first insertion, so a deletion before `at` moves them towards the
    beginning. Without this, as many rows would be lost as were deleted.
    """
    window, known = IDS_IN_CURSOR, {id: place for place, id in enumerate(last)}
    while True:
        start = max(0, at - window)
        ids = collection.get(include=[], limit=at - start, offset=start)["ids"]
        places = [place for place, id in enumerate(ids) if id in known]
        if places:
            return start + places[-1] + 1
        if start == 0:
            return 0  # all of them were deleted: reading a row twice is harmless
        window *= 8


def _read_filter(filter: Any) -> Mapping[str, Any]:
    """Return arguments of `get` and `query`: a `where`, or an object with both kinds."""
    if not filter:
        return {}
    if isinstance(filter, dict) and set(filter) <= {"where", "where_document"}:
        return filter
    return {"where": filter}
