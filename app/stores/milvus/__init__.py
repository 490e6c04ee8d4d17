"""The connector to a Milvus server."""

from app.stores.milvus.store import MilvusStore as MilvusStore
