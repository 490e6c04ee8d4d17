"""The port to somebody's vector store: what a search and a migration need of it.

A connector subclasses Store and `Migration`, and declares what its store can do in Capabilities.
All calls block, and raise StoreUnavailable, StoreRefused, StoreFull and StoreChanged for faults of
the store. tests/stores/test_contract.py holds for every connector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from app.errors import InvalidFilter, StoreUnsupported
from app.stores.text_templates import TextTemplate, parse_template

#: the id of a row, in the store's own type; UUIDs are text
StoreId = str | int

#: vectors (n, d), float32, C order
StoreVectors = NDArray[np.float32]

#: a position in a scroll: a value that JSON can hold, and only the connector understands
Cursor = Any

#: `old`: the vectors that the store had before a migration; `new`: those written next to them.
#: The names stay the same after a cutover.
Side = Literal["old", "new"]

Metric = Literal["cosine", "dot", "euclidean"]

#: hears how many rows a long call has read; what it raises ends the call
HearRows = Callable[[int], None]

#: translates the old vectors of rows; after a cutover, the new vectors back
TranslateRows = Callable[[Sequence[StoreId], StoreVectors], StoreVectors]


@dataclass(frozen=True)
class StoreLocation:
    """Where vectors are.

    kind          kind of store: the connector
    url           address from the operator's settings; it may hold a password: never show it
    collection    table, collection or file below that address
    vector_field  column or named vector; None: the only one
    id_field      column of ids; None: the primary key
    text_field    column or payload field with the text that was encoded, or a template of several;
                  None: there is none
    options       options of the kind
    """

    kind: str
    url: str = field(repr=False)
    collection: str
    vector_field: str | None = None
    id_field: str | None = None
    text_field: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Capabilities:
    """What this kind of store can do."""

    captures_writes: Annotated[
        bool, Field(description="Writes during a migration reach the other side.")
    ] = False
    atomic_cutover: Annotated[
        bool, Field(description="No search sees both old and new vectors.")
    ] = False
    keeps_lengths: Annotated[bool, Field(description="Vectors keep their lengths.")] = True
    filters: Annotated[bool, Field(description="Searches take a filter.")] = False
    exact_search: Annotated[bool, Field(description="Searches can be exact.")] = True


#: code of the note about a trigger that names vectors of the old size
OLD_SIZE = "old-size-trigger"


@dataclass(frozen=True)
class StoreNote:
    """Something to know before a migration."""

    code: Annotated[str, Field(description="Stable code of the note.")]
    detail: Annotated[str, Field(description="What it means.")]


@dataclass(frozen=True)
class StoreFacts:
    """A collection as it is now.

    rows          rows with a vector; all rows where counting those would read the vectors
    dtype         type of the stored numbers, as `float32` or `float16`
    indexed       the vectors have an approximate index
    can_migrate   the collection can be migrated; else, `notes` say why not
    vector_bytes  approximate size of the vectors and their index, if the store tells
    vector_field  the field that was read; None if this kind of store does not report it
    """

    rows: int
    dim: int
    metric: Metric
    dtype: str = "float32"
    indexed: bool = False
    can_migrate: bool = True
    vector_bytes: int | None = None
    vector_field: str | None = None
    notes: tuple[StoreNote, ...] = ()


@dataclass(frozen=True, eq=False)
class Page:
    """Rows with their vectors (n, d). cursor: where the next page begins; None at the end."""

    ids: Sequence[StoreId]
    vectors: StoreVectors
    cursor: Cursor | None = None


@dataclass(frozen=True, eq=False)
class TextPage:
    """Rows with their texts; None where there is none. cursor: as that of a Page."""

    ids: Sequence[StoreId]
    texts: Sequence[str | None]
    cursor: Cursor | None = None


@dataclass(frozen=True, eq=False)
class Search:
    """What a search asks for: the k nearest rows of each query (q, d).

    filter   in the store's own language, as JSON
    exact    without an approximate index
    vectors  return the stored vectors too; payload: all else that the store holds of each row
    """

    queries: StoreVectors
    k: int
    filter: Any = None
    side: Side = "old"
    exact: bool = False
    vectors: bool = False
    payload: bool = False


@dataclass(frozen=True, eq=False)
class Hits:
    """The results of one query, best first.

    scores    as the store computes them: larger is nearer
    vectors   (n, d) stored vectors, if requested
    payloads  everything else that the store holds of each row, if requested
    """

    ids: Sequence[StoreId]
    scores: Sequence[float]
    vectors: StoreVectors | None = None
    payloads: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class RowsChecksum:
    """Number of rows, and a hash of all that is not the vector; the order does not matter."""

    rows: int
    digest: str


@dataclass(frozen=True, eq=False)
class Changes:
    """Rows that other clients wrote or deleted since the last call of `apply`.

    vectors    (n, d) present vectors of `ids` on the side that clients write
    same_text  those of `ids` whose text is known to be that of the other side, so that a vector
               which was made of it there is still right
    deleted    ids whose rows no longer exist
    token      what `apply` acknowledges
    truncated  a client deleted all rows at once
    cut_over   whether the store says that clients see the new vectors; None if it cannot say
    writes     how many `apply` acknowledges: a store may record each write of a row
    """

    ids: Sequence[StoreId]
    vectors: StoreVectors
    deleted: Sequence[StoreId] = ()
    same_text: Sequence[StoreId] = ()
    token: Any = None
    truncated: bool = False
    cut_over: bool | None = None
    writes: int = 0

    def __len__(self) -> int:
        return self.writes


class Store(ABC):
    """One collection of a vector store."""

    capabilities: Capabilities
    location: StoreLocation

    @abstractmethod
    def facts(self) -> StoreFacts:
        """Return the collection as it is. Raises StoreUnsupported, StoreChanged."""

    @abstractmethod
    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        """Return the next rows in the order of their keys; the first without a cursor.

        Rows without a vector are left out.
        """

    @abstractmethod
    def sample(self, count: int, seed: int = 0) -> Page:
        """Return at most `count` rows of the old side, spread over the whole collection."""

    @abstractmethod
    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        """Return the rows of these ids that exist, in the order of `ids`."""

    def scroll_texts(self, cursor: Cursor | None, limit: int) -> TextPage:
        """Return the texts of the rows that `scroll` returns of the old side.

        Raises StoreUnsupported.
        """
        page = self.scroll(cursor, limit)
        return TextPage(page.ids, self.texts(page.ids), page.cursor)

    def texts(self, ids: Sequence[StoreId]) -> Sequence[str | None]:
        """Return the text of each row, by `text_field`; None where there is none.

        Raises StoreUnsupported.
        """
        template = self.text_template()
        columns = {name: self.read_field(ids, name) for name in template.fields}
        return [
            template.fill({name: texts[row] for name, texts in columns.items()})
            for row in range(len(ids))
        ]

    def text_template(self) -> TextTemplate:
        """Return how the text of a row is made. Raises StoreUnsupported."""
        if self.location.text_field is None:
            raise StoreUnsupported(
                "The store was registered without `text_field`, so there are no texts. Register "
                "it again with the field that holds the text.",
                field="text_field",
            )
        return parse_template(self.location.text_field)

    @abstractmethod
    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        """Return the text in a field of each row; None without. Raises StoreUnsupported."""

    def search(self, wanted: Search) -> Sequence[Hits]:
        """Return the rows of each query. Raises StoreUnsupported, InvalidFilter."""
        if wanted.exact and not self.capabilities.exact_search:
            raise StoreUnsupported(
                f"Stores of kind {self.location.kind!r} have no exact searches. Remove `exact`.",
                field="exact",
            )
        if wanted.filter is not None and not self.capabilities.filters:
            raise InvalidFilter(
                f"Stores of kind {self.location.kind!r} have no filters. Remove `filter`.",
                field="filter",
            )
        return self.find_nearest(wanted)

    @abstractmethod
    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        """Do a search that the capabilities allow."""

    @abstractmethod
    def migration(self, tag: str, dim: int) -> NewVectors:
        """Return the new vectors of the migration `tag`, without connecting.

        tag  eight lower-case hexadecimal digits, part of every name that is created
        dim  dimensions of the new vectors
        """

    def search_advice(self) -> str:
        """Return what makes searches of the new vectors find more, as a person types it."""
        return "Build the index of the new vectors anew with larger settings."

    def require_dim(self, dim: int) -> None:  # noqa: B027 (few stores have a limit)
        """Raises StoreUnsupported where new vectors cannot have this dimension, StoreRefused and
        MigrationActive where the collection has a migration already.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections. Later calls reconnect."""


class NewVectors(ABC):
    """The new vectors of one migration, next to the old ones. Every call can be repeated.

    It is all that a store has whose only application opens the new vectors itself.
    """

    @abstractmethod
    def prepare(self) -> None:
        """Create what is missing, and begin to capture writes of clients."""

    @abstractmethod
    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        """Write new vectors (n, d), all or none. `replace`: also of rows that have one."""

    @abstractmethod
    def read(self, ids: Sequence[StoreId]) -> Page:
        """Return the new vectors of these ids that exist, in the order of `ids`."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows with a new vector; 0 before `prepare`."""

    def count_old(self) -> int | None:
        """Return the exact number of rows with an old vector; None: the store's facts have it."""
        return None

    def checksum(self, hear: HearRows) -> RowsChecksum | None:
        """Return a checksum of the rows without their vectors; None: both sides are compared."""
        return None

    @abstractmethod
    def build_index(self) -> None:
        """Build the index of the new vectors like that of the old ones, without blocking writes."""

    @abstractmethod
    def finish(self) -> None:
        """End the migration, and delete all its traces.

        After a cutover, it deletes the old vectors. Without one, it deletes nothing else.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Delete the new vectors, before a cutover or after a rollback, and all traces."""


class Migration(NewVectors):
    """New vectors that clients see after a cutover, and that follow the writes of clients."""

    @abstractmethod
    def is_cut_over(self) -> bool:
        """Return whether clients see the new vectors, also in the middle of a step."""

    @abstractmethod
    def changes(self, limit: int) -> Changes:
        """Return changes that wait for `apply`; none without `captures_writes`.

        Before a cutover they are changes of the old vectors; after it, of the new ones.
        """

    @abstractmethod
    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        """Write the translated vectors (n, d) of changes to the other side, and acknowledge."""

    @abstractmethod
    def rewrite(self, seen: Page, vectors: StoreVectors) -> Sequence[StoreId]:
        """Replace vectors (n, d) that clients see, where they are still those of `seen`.

        seen  rows as they were before their texts were read, of which `vectors` are made
        Returns the ids of the rows that were written; others are newer, or locked by a client.
        They are no changes of a client: `changes` names such a row at most in `same_text`.
        """

    def same_text(self, ids: Sequence[StoreId]) -> Sequence[StoreId]:
        """Return the rows with the same text on both sides; a store that captures writes is not
        asked.
        """
        return []

    @abstractmethod
    def count_different(self, hear: HearRows, apply: Callable[[], object]) -> int | None:
        """Return how many rows differ on both sides in more than the vector, though no change
        waits; None while all rows are being deleted. Afterwards they wait for `apply`.

        apply  applies what clients wrote meanwhile, where the store does not report it
        """

    @abstractmethod
    def cutover(self, translate: TranslateRows) -> float:
        """Make clients see the new vectors, after the last changes are applied by `translate`.

        Rows without a new vector stay visible. Returns the longest wait of a write, in seconds.
        Raises StoreChanged if the collection no longer has the form that `prepare` found.
        """

    @abstractmethod
    def rollback(self, translate_back: TranslateRows) -> float:
        """Undo a cutover: clients see the old vectors, and of rows written since, translated ones.

        The new vectors stay. Returns as `cutover`.
        """
