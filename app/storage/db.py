"""The engine, and the one place that commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, event, text
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
from app.storage.postgres import ServerWatch, within

#: how long a writer waits for another before SQLite gives up
BUSY_TIMEOUT_S = 30

#: how long a lost PostgreSQL is tried again before a transaction has begun; in the middle of one nothing is tried again
CONNECT_FOR_S = 3.0
CONNECT_PAUSE_S = 0.1

#: how long a pooled connection may take to show that its server is there: a well one takes a millisecond
CHECKOUT_S = 1.0

#: connections of one process, and how long a request waits for one of them
POOL_SIZE = 10
POOL_OVERFLOW = 10
POOL_WAIT_S = 5

#: how long PostgreSQL lets a silent transaction keep its locks, and another one wait for them
STALLED_MS = 10_000

AWAY = "the database does not answer now; try again"

#: what a lost, full or restarting database raises
LOST = (OperationalError, InterfaceError, InternalError, PoolExhausted)


class SchemaOutdated(Exception):
    """The database's schema is not this version's."""


class Database:
    """SQLite or PostgreSQL behind one interface."""

    def __init__(self, url: str | URL) -> None:
        self.url = with_driver(url)
        self.engine = make_engine(self.url)
        self._watch = None if is_sqlite(self.url) else ServerWatch(self.engine)
        self._session = sessionmaker(self.engine, expire_on_commit=False)

    @property
    def away(self) -> bool:
        """Whether the last try to reach PostgreSQL failed. It clears by itself once the server answers."""
        return self._watch is not None and self._watch.away

    @contextmanager
    def transaction(self, *, wait_s: float | None = None) -> Iterator[Session]:
        """One use case, one transaction: committed at the end, rolled back by any exception.

        A constraint that only a concurrent request can have broken is a Conflict; callers check the foreseeable ones first. A
        database that refuses connections is waited for before the transaction begins, `wait_s` at most or CONNECT_FOR_S. One that
        is silent, or lost on the way, is DatabaseUnavailable, because only the caller knows what may be done twice.
        """
        with self._session() as session:
            try:
                self._begin(session, CONNECT_FOR_S if wait_s is None else wait_s)
                yield session
                session.commit()
            except (IntegrityError, StaleDataError) as error:
                session.rollback()
                raise Conflict(
                    "another request changed what this one uses at the same moment; try again"
                ) from error
            except DataError as error:
                raise InvalidRequest("a value that the database cannot hold") from error
            except LOST as error:
                session.rollback()  # new rows are new again: a caller may add them once more
                raise DatabaseUnavailable(AWAY, retry_after_s=2) from error

    def ping(self) -> None:
        """Raise SQLAlchemyError when the database does not answer at once."""
        with within(CHECKOUT_S), self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def migrate(self) -> None:
        """Bring the schema to the newest revision. Raises SchemaOutdated when a newer version of the service has been here."""
        try:
            command.upgrade(alembic_config(self.url), "head")
        except CommandError as error:
            raise SchemaOutdated(
                f"the database's schema is not this version's, but a newer one's: {error}"
            ) from error

    def require_schema(self) -> None:
        """Raises SchemaOutdated unless the schema is at the newest revision."""
        newest = set(ScriptDirectory.from_config(alembic_config(self.url)).get_heads())
        with self.engine.connect() as connection:
            found = set(MigrationContext.configure(connection).get_current_heads())
        if found != newest:
            raise SchemaOutdated(
                f"the database is at revision {', '.join(found) or 'none'}, this version needs {', '.join(newest)}: "
                "run `anchorage migrate`"
            )

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
                with within(CHECKOUT_S):
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


def with_driver(url: str | URL) -> URL:
    """The URL as people paste it, with psycopg 3 as PostgreSQL's driver."""
    parsed = make_url(url)
    return (
        parsed.set(drivername="postgresql+psycopg")
        if parsed.drivername in ("postgresql", "postgres")
        else parsed
    )


def make_engine(url: URL) -> Engine:
    """An engine with the settings that both databases want of us."""
    engine = create_engine(url, **_engine_options(url))
    if is_sqlite(url):
        event.listen(engine, "connect", _tune_sqlite)
    return engine


def sqlite_url(file: Path) -> URL:
    """The URL of a SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(file.absolute()))


def is_sqlite(url: str | URL) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def alembic_config(url: str | URL) -> Config:
    """Alembic's configuration without its ini file, so that an installed package can migrate too."""
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
            # A process that is frozen or cut off in the middle of a transaction must not hold its rows from the others for ever.
            "options": f"-c idle_in_transaction_session_timeout={STALLED_MS} -c lock_timeout={STALLED_MS}",
            # A network that swallows what is sent, or a server that is gone without a word.
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
    # WAL lets readers go on while one request writes; foreign keys are off by default.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
