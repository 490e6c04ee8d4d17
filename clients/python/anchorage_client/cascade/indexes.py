"""Indexes that return candidates with their vectors: Qdrant, and PostgreSQL with pgvector."""

from __future__ import annotations

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

    def search(self, vector: Float32s, limit: int) -> list[Candidate]:
        """Return the nearest items of a vector (d,), nearest first, with their vectors."""


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

    def search(self, vector: Float32s, limit: int) -> list[Candidate]:
        """Return the nearest points of a vector (d,), nearest first."""
        found = self.client.query_points(
            self.collection,
            query=vector.tolist(),
            using=self.using,
            query_filter=self.query_filter,
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
            metadata = dict(payload.get(self.metadata_key) or {})
        text = str(payload.get(self.text_key) or "")
        return Candidate(point.id, vector, text, metadata, payload)


@dataclass(frozen=True)
class PgvectorIndex:
    """A table of PostgreSQL with a column of pgvector's type vector or halfvec.

    connection  of psycopg; threads may share it
    table       name, or schema and name with a point between them
    id, vector, text, metadata  names of columns; None for `text` and `metadata`: there is none
    distance    that of the column's index
    """

    connection: psycopg.Connection[Any]
    table: str
    id: str = "id"
    vector: str = "embedding"
    text: str | None = "document"
    metadata: str | None = None
    distance: Literal["cosine", "dot", "euclidean"] = "cosine"

    def search(self, vector: Float32s, limit: int) -> list[Candidate]:
        """Return the nearest rows of a vector (d,), nearest first."""
        from psycopg import sql

        columns = {
            name: sql.SQL("NULL") if column is None else sql.Identifier(column)
            for name, column in (("text", self.text), ("metadata", self.metadata))
        }
        query = sql.SQL(
            "SELECT {id}, {vector}::real[], {text}, {metadata} FROM {table} "
            "ORDER BY {vector} {operator} %s LIMIT %s"
        ).format(
            id=sql.Identifier(self.id),
            vector=sql.Identifier(self.vector),
            table=sql.Identifier(*self.table.split(".")),
            operator=sql.SQL(OPERATORS[self.distance]),
            **columns,
        )
        numbers = "[" + ",".join(map(repr, vector.tolist())) + "]"
        with self.connection.transaction():
            self.connection.execute(
                # an HNSW index returns no more rows than this
                "SELECT set_config('hnsw.ef_search', GREATEST(COALESCE(NULLIF("
                "current_setting('hnsw.ef_search', true), '')::int, %s), %s)::text, true)",
                (DEFAULT_EF_SEARCH, min(limit, LARGEST_EF_SEARCH)),
            )
            rows = self.connection.execute(query, (numbers, limit)).fetchall()
        return [
            Candidate(id, numbers, text or "", metadata or {}, {"text": text, "metadata": metadata})
            for id, numbers, text, metadata in rows
        ]
