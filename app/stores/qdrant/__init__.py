"""Qdrant: collections of a server, of a folder in local mode, and shards of the edge engine."""

from app.stores.qdrant.store import QdrantStore as QdrantStore
