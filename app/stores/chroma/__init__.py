"""The connector to Chroma: a server over HTTP, or a folder."""

from app.stores.chroma.store import ChromaStore as ChromaStore
