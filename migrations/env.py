"""Run by alembic. The URL comes from the caller (app.storage.db.alembic_config) or from `alembic -x url=...`."""

from alembic import context
from sqlalchemy import text

from app.storage.db import make_engine, with_driver
from app.storage.tables import Base, UtcDateTime

#: two processes that start at once must not both create the tables: one waits for the other (any number will do)
LOCK = 4_126_077_329


def render_item(kind, item, _context):
    """Write our column type as the plain one beneath it: a migration must not change when the class does."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
engine = make_engine(with_driver(url))
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, render_item=render_item)
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET lock_timeout = 0"))  # however long the other one takes
            connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        context.run_migrations()
engine.dispose()
