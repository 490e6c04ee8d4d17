"""Rows of a Chroma collection: reading, writing, and digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.stores.base import StoreVectors
from app.stores.common import as_json, row_number

#: most ids in one call
IDS_A_CALL = 1000

#: the members of a payload that are no metadata; Chroma reserves names that begin so
DOCUMENT, RESOURCE = "chroma:document", "chroma:uri"


@dataclass(frozen=True, eq=False)
class ChromaRow:
    """One record. `payload` is all but the vector: metadata, document and URI."""

    id: str
    vector: StoreVectors | None
    document: str | None
    metadata: Mapping[str, Any] | None
    uri: str | None

    @property
    def payload(self) -> dict[str, Any]:
        extra = {DOCUMENT: self.document, RESOURCE: self.uri}
        return dict(self.metadata or {}) | {k: v for k, v in extra.items() if v is not None}

    def digest(self) -> str:
        """Return 16 hexadecimal digits that depend on everything that the record holds."""
        vector = b"" if self.vector is None else np.ascontiguousarray(self.vector).tobytes()
        return hashlib.blake2b(vector + as_json(self.payload), digest_size=8).hexdigest()

    def number(self) -> int:
        """Return a number that depends on the id and the payload."""
        return row_number(as_json(self.id), as_json(self.payload))


def read_rows(
    collection: Any, *, vectors: bool = True, payload: bool = True, **choice: Any
) -> list[ChromaRow]:
    """Return the records of a `get` with the arguments `choice`, in the collection's order."""
    include = ["embeddings"] * vectors + ["documents", "metadatas", "uris"] * payload
    answer = collection.get(include=include, **choice)
    ids = answer["ids"]
    empty = [None] * len(ids)
    found = np.asarray(answer["embeddings"], np.float32) if vectors and ids else empty
    return [
        ChromaRow(id, vector, document, metadata or None, uri)
        for id, vector, document, metadata, uri in zip(
            ids,
            found,
            answer["documents"] if payload else empty,
            answer["metadatas"] if payload else empty,
            answer["uris"] if payload else empty,
            strict=True,
        )
    ]


def read_ids(collection: Any, ids: Sequence[str], **include: bool) -> dict[str, ChromaRow]:
    """Return the records of these ids that exist."""
    found: dict[str, ChromaRow] = {}
    for start in range(0, len(ids), IDS_A_CALL):
        part = list(ids[start : start + IDS_A_CALL])
        found |= {row.id: row for row in read_rows(collection, ids=part, **include)}
    return found


def read_all(collection: Any, start: int = 0, **choice: Any) -> Iterator[list[ChromaRow]]:
    """Yield all records from the position `start` on, in pages."""
    while page := read_rows(collection, limit=IDS_A_CALL, offset=start, **choice):
        yield page
        start += len(page)


def all_ids(collection: Any) -> list[str]:
    """Return all ids in the collection's order."""
    ids: list[str] = collection.get(include=[])["ids"]
    return ids


def add_rows(collection: Any, rows: Sequence[ChromaRow], vectors: StoreVectors) -> None:
    """Add records with these vectors (n, d); those that exist stay as they are."""
    for start in range(0, len(rows), IDS_A_CALL):
        part = rows[start : start + IDS_A_CALL]
        collection.add(
            ids=[row.id for row in part],
            embeddings=np.asarray(vectors[start : start + IDS_A_CALL], np.float32),
            documents=[row.document for row in part],
            metadatas=[row.metadata for row in part],
            uris=[row.uri for row in part],
        )


def delete_rows(collection: Any, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), IDS_A_CALL):
        collection.delete(ids=list(ids[start : start + IDS_A_CALL]))
