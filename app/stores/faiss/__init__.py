"""The connector to FAISS: an index file, and its texts in a file of JSON Lines."""

from app.stores.faiss.store import FaissStore as FaissStore
