"""The engine, and the one place that commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from app.errors import Conflict

#: how long a writer waits for another before SQLite gives up
BUSY_TIMEOUT_S = 30


class Database:
    """SQLite or PostgreSQL behind one interface."""

    def __init__(self, url: str | URL) -> None:
        self.url = url
        arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S} if is_sqlite(url) else {}
        self.engine = create_engine(url, connect_args=arguments, pool_pre_ping=not is_sqlite(url))
        if is_sqlite(url):
            event.listen(self.engine, "connect", _tune_sqlite)
        self._session = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One use case, one transaction: committed at the end, rolled back by any exception.

        A constraint that only a concurrent request can have broken is a Conflict; callers check the foreseeable ones first.
        """
        with self._session() as session:
            try:
                yield session
                session.commit()
            except (IntegrityError, StaleDataError) as error:
                session.rollback()
                raise Conflict("another request changed what this one uses at the same moment; try again") from error

    def ping(self) -> None:
        """Raise when the database does not answer."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def migrate(self) -> None:
        """Bring the schema to the newest revision."""
        command.upgrade(alembic_config(self.url), "head")

    def close(self) -> None:
        self.engine.dispose()


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


def _tune_sqlite(connection: Any, _record: object) -> None:
    # WAL lets readers go on while one request writes; foreign keys are off by default.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
