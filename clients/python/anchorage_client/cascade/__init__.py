"""A new encoder in front of an index of an old one, without a write to the index."""

from anchorage_client.cascade.indexes import (
    Candidate,
    PgvectorIndex,
    QdrantIndex,
    SearchableIndex,
)
from anchorage_client.cascade.search import Cascade, Hit

__all__ = ["Candidate", "Cascade", "Hit", "PgvectorIndex", "QdrantIndex", "SearchableIndex"]
