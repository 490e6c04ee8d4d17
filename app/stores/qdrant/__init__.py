"""Qdrant: collections of a server, or of a folder in local mode."""

from app.stores.qdrant.strategies import QdrantStore as QdrantStore
