"""The connector to LanceDB: a folder, or a prefix in an object store."""

from app.stores.lancedb.store import LancedbStore as LancedbStore
