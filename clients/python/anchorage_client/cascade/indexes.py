"""Indexes that return candidates with their vectors: Qdrant, and PostgreSQL with pgvector."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from anchorage_client.vectors import Float32s

if TYPE_CHECKING:
    import psycopg
    from qdrant_client import QdrantClient

OPERATORS = {"cosine": "<=>", "dot": "<#>", "euclidean": "<->"}

#: pgvector's default of `hnsw.ef_search`, which bounds the rows that an HNSW index returns, and
#: its largest value
DEFAULT_EF_SEARCH, LARGEST_EF_SEARCH = 40, 1_000


@dataclass(frozen=True)
class Candidate:
    """An item of an index.

    vector    its numbers, by the index's encoder
    text      its text; empty if the index has none
    metadata  what else the index says about it
    payload   all that the index stores about it
    """

    id: Any
    vector: list[float]
    text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    payload: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class SearchableIndex(Protocol):
    """What a cascade needs of an index."""

    def search(self, vector: Float32s, limit: int, filter: Any = None) -> list[Candidate]:
        """Return the nearest items of a vector (d,), nearest first, with their vectors.

        filter  which items count, in the index's own terms
        """


@dataclass(frozen=True)
class QdrantIndex:
    """A collection of Qdrant.

    using         name of the vector; None: the collection's only one
    text_key      where a payload holds the text; as langchain-qdrant writes it
    metadata_key  where it holds the metadata; None: all other keys are metadata
    query_filter  a `qdrant_client.models.Filter`
    """

    client: QdrantClient
    collection: str
    using: str | None = None
    text_key: str = "page_content"
    metadata_key: str | None = "metadata"
    query_filter: Any = None

    def search(self, vector: Float32s, limit: int, filter: Any = None) -> list[Candidate]:
        """Return the nearest points of a vector (d,) that pass both filters, nearest first."""
        from qdrant_client.models import Filter

        filters = [each for each in (self.query_filter, filter) if each is not None]
        found = self.client.query_points(
            self.collection,
            query=vector.tolist(),
            using=self.using,
            query_filter=Filter(must=filters) if filters else None,
            limit=limit,
            with_payload=True,
            with_vectors=True if self.using is None else [self.using],
        )
        return [self._candidate(point) for point in found.points]

    def _candidate(self, point: Any) -> Candidate:
        payload = dict(point.payload or {})
        vector = point.vector
        if isinstance(vector, dict):  # next to others, a vector without a name is called ""
            vector = vector[self.using or ""]
        if self.metadata_key is None:
            metadata = {key: value for key, value in payload.items() if key != self.text_key}
        else:
            metadata = _as_mapping(payload.get(self.metadata_key), f"key {self.metadata_key!r}")
        text = str(payload.get(self.text_key) or "")
        return Candidate(point.id, vector, text, metadata, payload)


class ConnectionPool(Protocol):
    """What `psycopg_pool.ConnectionPool` offers."""

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Lend a connection, which no other thread uses meanwhile."""


@dataclass(frozen=True)
class PgvectorIndex:
    """A table of PostgreSQL with a column of pgvector's type vector or halfvec.

    connection  a `psycopg_pool.ConnectionPool`, or one connection of psycopg, where searches of
                several threads wait for each other and nothing reconnects
    table       name, or schema and name with a point between them
    id, vector, text, metadata  names of columns; None for `text` and `metadata`: there is none
    distance    that of the column's index
    equal       values of columns, which every result has, such as `{"collection_id": ...}`
    """

    connection: psycopg.Connection[Any] | ConnectionPool
    table: str
    id: str = "id"
    vector: str = "embedding"
    text: str | None = "document"
    metadata: str | None = None
    distance: Literal["cosine", "dot", "euclidean"] = "cosine"
    equal: Mapping[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.distance not in OPERATORS:
            raise ValueError(f"`distance` is {self.distance!r}: choose {', '.join(OPERATORS)}.")

    def search(
        self, vector: Float32s, limit: int, filter: Mapping[str, Any] | None = None
    ) -> list[Candidate]:
        """Return the nearest rows of a vector (d,), nearest first.

        filter  further values of columns, as in `equal`
        """
        from psycopg.errors import UndefinedColumn

        equal = [*self.equal.items(), *(filter or {}).items()]
        try:
            rows = self._rows(vector, limit, equal)
        except UndefinedColumn as error:
            raise ValueError(
                f"{str(error).splitlines()[0]}. {self.table} has the columns "
                f"{', '.join(self._columns())}: name them in `id`, `vector`, `text` and "
                "`metadata` of PgvectorIndex; None for `text` or `metadata` that it has not."
            ) from error
        return [self._candidate(*row) for row in rows]

    def _rows(self, vector: Float32s, limit: int, equal: list[tuple[str, Any]]) -> list[Any]:
        from psycopg.rows import tuple_row

        numbers = "[" + ",".join(map(repr, vector.tolist())) + "]"
        with self._connected() as connection, connection.transaction():
            cursor = connection.cursor(row_factory=tuple_row)
            cursor.execute(
                # an HNSW index returns no more rows than this
                "SELECT set_config('hnsw.ef_search', GREATEST(COALESCE(NULLIF("
                "current_setting('hnsw.ef_search', true), '')::int, %s), %s)::text, true)",
                (DEFAULT_EF_SEARCH, min(limit, LARGEST_EF_SEARCH)),
            )
            query = self._query([column for column, _ in equal])
            cursor.execute(query, (*(value for _, value in equal), numbers, limit))
            return cursor.fetchall()

    def _columns(self) -> list[str]:
        """Return the names of the table's columns."""
        from psycopg import sql

        table = sql.Identifier(*self.table.split("."))
        with self._connected() as connection, connection.transaction():
            found = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table))
            return [column.name for column in found.description or ()]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection that no other search uses."""
        import psycopg

        if isinstance(self.connection, psycopg.Connection):
            with self._lock:
                yield self.connection
        else:
            with self.connection.connection() as connection:
                yield connection

    def _query(self, equal: list[str]) -> Any:
        from psycopg import sql

        named = {"id": self.id, "vector": self.vector, "text": self.text, "metadata": self.metadata}
        return sql.SQL(
            "SELECT {id}, {vector}::real[], {text}, {metadata} FROM {table} "
            "WHERE {vector} IS NOT NULL{equal} ORDER BY {vector} {operator} %s LIMIT %s"
        ).format(
            table=sql.Identifier(*self.table.split(".")),
            operator=sql.SQL(OPERATORS[self.distance]),
            equal=sql.SQL("").join(
                sql.SQL(" AND {} = %s").format(sql.Identifier(column)) for column in equal
            ),
            **{
                name: sql.SQL("NULL") if column is None else sql.Identifier(column)
                for name, column in named.items()
            },
        )

    def _candidate(
        self, id: Any, vector: list[float], text: str | None, metadata: Any
    ) -> Candidate:
        known = _as_mapping(metadata, f"column {self.metadata!r}")
        return Candidate(id, vector, text or "", known, {"text": text, "metadata": metadata})


def _as_mapping(metadata: Any, where: str) -> dict[str, Any]:
    """Return metadata as a dictionary. Raises ValueError for another value."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ValueError(
            f"The {where} holds {type(metadata).__name__}, and metadata is a JSON object. "
            "Name another one, or None."
        )
    return dict(metadata)
