"""Qdrant: collections of a server, or of a folder in local mode."""

from app.stores.qdrant.store import QdrantStore as QdrantStore
