"""Alembic runs this file.

The URL comes from the caller (app.db.session.alembic_config) or from `alembic -x url=...`.
"""

from alembic import context
from sqlalchemy import event, text

from app.db.session import make_engine, with_driver
from app.db.tables import Base, UtcDateTime

#: the key of the lock that makes one of two starting processes wait for the other; any number
LOCK = 4_126_077_329


def render_item(kind, item, _context):
    """Write UtcDateTime as the plain type, so that migrations do not change with the class."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def leave_transactions(driver, _record):
    """Let SQLAlchemy begin transactions: the driver would commit before each change of a table."""
    driver.isolation_level = None
    # SQLite changes a constraint by a copy of the table; dropping the original would delete the
    # rows that refer to it.
    driver.execute("PRAGMA foreign_keys=OFF")


url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
engine = make_engine(with_driver(url))
if engine.dialect.name == "sqlite":
    event.listen(engine, "connect", leave_transactions)
    # the lock of writers: a second process waits
    event.listen(engine, "begin", lambda each: each.exec_driver_sql("BEGIN IMMEDIATE"))
try:
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=True,
            transactional_ddl=True,  # SQLite can, although its driver does not by default
            render_item=render_item,
        )
        with context.begin_transaction():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET lock_timeout = 0"))  # however long the other one takes
                connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
            context.run_migrations()
finally:
    engine.dispose()
