"""Alembic's folder: `env.py` connects it to app.storage.tables, `versions/` holds one file a change."""
