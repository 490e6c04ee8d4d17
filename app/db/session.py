"""The database engine, and the one place that commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import CursorResult, Delete, Engine, Update, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from app.errors import Conflict, DatabaseUnavailable, InvalidRequest

if TYPE_CHECKING:
    from app.db.postgres import ServerWatch

#: how long a SQLite writer waits for another one
BUSY_TIMEOUT_S = 30

#: how long connecting to PostgreSQL is retried before a transaction; inside one nothing is retried
CONNECT_FOR_S = 3.0
CONNECT_PAUSE_S = 0.1

#: timeout of the check of a pooled connection, which usually takes a millisecond
CHECKOUT_S = 1.0

#: connections of one process, and how long a request waits for one
POOL_SIZE = 10
POOL_OVERFLOW = 10
POOL_WAIT_S = 5

#: how long PostgreSQL lets an idle transaction hold its locks, and another one wait for them
STALLED_MS = 10_000

AWAY = "The database does not answer. Try again."

#: exceptions of a lost, full or restarting database
LOST = (OperationalError, InterfaceError, InternalError, PoolExhausted)


class SchemaOutdated(Exception):
    """The schema of the database belongs to another version of the service."""


class Database:
    """SQLite or PostgreSQL behind one interface."""

    def __init__(self, url: str | URL) -> None:
        self.url = with_driver(url)
        self.engine = make_engine(self.url)
        self._watch: ServerWatch | None = None
        if not is_sqlite(self.url):
            from app.db.postgres import ServerWatch  # its driver takes 7 MiB

            self._watch = ServerWatch(self.engine)
        self._session = sessionmaker(self.engine, expire_on_commit=False)

    @property
    def away(self) -> bool:
        """Return whether PostgreSQL did not answer the last time. Resets when it answers."""
        return self._watch is not None and self._watch.away

    @contextmanager
    def transaction(self, *, wait_s: float | None = None) -> Iterator[Session]:
        """Run one use case in one transaction: commit at the end, roll back on any exception.

        Waits up to `wait_s` (default CONNECT_FOR_S) for a database that refuses connections. Raises
        DatabaseUnavailable when it does not answer or the connection is lost: only the caller knows
        whether to repeat the work. Raises Conflict for a constraint that a concurrent request
        broke; callers check all others first.
        """
        with self._session() as session:
            try:
                self._begin(session, CONNECT_FOR_S if wait_s is None else wait_s)
                yield session
                session.commit()
            except (IntegrityError, StaleDataError) as error:
                session.rollback()
                raise Conflict(
                    "Another request changed the same resource at the same time. Try again."
                ) from error
            except DataError as error:
                raise InvalidRequest("The database cannot store one of the values.") from error
            except LOST as error:
                session.rollback()  # a caller may add its new rows again
                raise DatabaseUnavailable(AWAY, retry_after_s=2) from error

    def ping(self) -> None:
        """Raises SQLAlchemyError when the database does not answer within CHECKOUT_S."""
        bound = nullcontext() if self._watch is None else self._watch.within(CHECKOUT_S)
        with bound, self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def upgrade(self) -> None:
        """Upgrade the schema to the newest revision. Raises SchemaOutdated if it is unknown."""
        try:
            command.upgrade(alembic_config(self.url), "head")
        except CommandError as error:
            raise SchemaOutdated(
                "Another version of the service made the database, and this one cannot read it "
                f"({error}). Use that version, or begin with an empty database and data dir."
            ) from error

    def require_schema(self) -> None:
        """Raises SchemaOutdated unless the schema has the newest revision."""
        newest = set(ScriptDirectory.from_config(alembic_config(self.url)).get_heads())
        found = self.revisions()
        if found != newest:
            raise SchemaOutdated(
                f"the database has revision {', '.join(found) or 'none'}, and this version needs "
                f"{', '.join(newest)}: run `anchorage db upgrade`"
            )

    def revisions(self) -> set[str]:
        """Return the revision of the schema, or none if the database has no schema."""
        with self.engine.connect() as connection:
            return set(MigrationContext.configure(connection).get_current_heads())

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self.engine.dispose()

    def _begin(self, session: Session, wait_s: float) -> None:
        if self._watch is None:
            session.connection()
            return
        deadline = time.monotonic() + wait_s
        while not self._watch.silent:
            try:
                with self._watch.within(CHECKOUT_S):
                    session.connection()
            except LOST as error:
                session.rollback()
                if not isinstance(error, PoolExhausted):
                    self._watch.lost()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(CONNECT_PAUSE_S)
            else:
                self._watch.answered()
                return
        raise DatabaseUnavailable(AWAY, retry_after_s=2)


def changed_rows(session: Session, statement: Update | Delete) -> int:
    """Run the statement and return the number of rows it changed."""
    options = {"synchronize_session": False}
    done = cast("CursorResult[Any]", session.execute(statement, execution_options=options))
    return done.rowcount


def with_driver(url: str | URL) -> URL:
    """Return the URL with psycopg 3 as the driver of PostgreSQL."""
    parsed = make_url(url)
    return (
        parsed.set(drivername="postgresql+psycopg")
        if parsed.drivername in ("postgresql", "postgres")
        else parsed
    )


def make_engine(url: URL) -> Engine:
    """Return an engine with the settings that its database needs."""
    engine = create_engine(url, **_engine_options(url))
    if is_sqlite(url):
        event.listen(engine, "connect", _tune_sqlite)
    return engine


def sqlite_url(file: Path) -> URL:
    """Return the URL of a SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(file.absolute()))


def is_sqlite(url: str | URL) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def alembic_config(url: str | URL) -> Config:
    """Return a configuration without an ini file, so that an installed package can migrate."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["url"] = url
    return config


def _engine_options(url: URL) -> dict[str, Any]:
    if is_sqlite(url):
        return {"connect_args": {"timeout": BUSY_TIMEOUT_S}}
    return {
        "connect_args": {
            "connect_timeout": 3,
            "client_encoding": "utf8",
            # A frozen process must not hold the locks of its transaction indefinitely.
            "options": (
                f"-c idle_in_transaction_session_timeout={STALLED_MS} -c lock_timeout={STALLED_MS}"
            ),
            # Detects a network or a server that disappears silently.
            "tcp_user_timeout": STALLED_MS,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        },
        "pool_pre_ping": True,
        "pool_size": POOL_SIZE,
        "max_overflow": POOL_OVERFLOW,
        "pool_timeout": POOL_WAIT_S,
    }


def _tune_sqlite(connection: Any, _record: object) -> None:
    # WAL lets readers continue while one request writes. Foreign keys are off by default.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
