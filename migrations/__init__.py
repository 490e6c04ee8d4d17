"""The schema migrations: `env.py` configures Alembic, and `versions/` holds one file per change."""
