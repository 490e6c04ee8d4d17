"""The connector to PostgreSQL with pgvector."""

from app.stores.pgvector.store import PgvectorStore as PgvectorStore
