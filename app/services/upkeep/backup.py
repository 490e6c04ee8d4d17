"""Backups: a folder with every row in one SQLite file, and a copy of every blob that the rows name.

The rows are read in one snapshot, and no process deletes blobs meanwhile, so the two always belong together, whichever database
they come from. The same folder can be restored into SQLite and into PostgreSQL.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, URL, Connection, MetaData, Table, func, insert, select, text, update

from app.services.context import Services
from app.storage import tables
from app.storage.blobs import BlobStore
from app.storage.db import Database, is_sqlite, make_engine, sqlite_url
from app.storage.queries import resources

#: where a backup has its rows, while it is written and once it is complete
UNFINISHED_FILE, ROWS_FILE, BLOBS_FOLDER = "unfinished.db", "anchorage.db", "blobs"

#: rows copied at once
ROWS_PER_BATCH = 1000

#: lacking blobs that a message names
MOST_NAMED_BLOBS = 20

#: sessions of PostgreSQL that use this database, beside the one that asks
COUNT_OTHER_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


#: a session may take this long to end after its process has
SESSION_END_S = 3.0


class BackupError(Exception):
    """Why a backup cannot be made or restored, in a sentence."""


@dataclass(frozen=True)
class BackupSummary:
    """How many rows and blobs were copied, and which blobs were missing or damaged already."""

    rows: int
    blobs: int
    lacking: Sequence[str] = ()


def back_up(services: Services, folder: Path) -> BackupSummary:
    """Write a backup into an empty or new folder, while the service runs. Raises BackupError, SchemaOutdated, OSError.

    A blob that the service lacks already is left out and named in the result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty: name a new folder for each backup")
    services.db.require_schema()
    kept = BlobStore(folder / BLOBS_FOLDER)
    with services.blobs.unswept():
        rows, names = _dump_rows(services.db, folder / UNFINISHED_FILE)
        lacking = [name for name in sorted(names) if not kept.take(name, services.blobs)]
    (folder / UNFINISHED_FILE).rename(folder / ROWS_FILE)
    return BackupSummary(rows, len(names) - len(lacking), lacking)


def restore(services: Services, folder: Path, *, force: bool = False) -> BackupSummary:
    """Put a backup's rows and blobs into a database without rows, or in the place of those it has, if `force`.

    Raises BackupError, before any row changes, when the backup is not complete, when the database is in use, and, unless `force`,
    when the backup lacks blobs or the database has rows. Raises SchemaOutdated for a backup of a newer version.
    """
    if not (folder / ROWS_FILE).is_file():
        raise BackupError(f"{folder} holds no complete backup: {ROWS_FILE} is missing")
    require_alone(services.db)
    with services.blobs.unswept(), tempfile.TemporaryDirectory(dir=services.blobs.root) as copies:
        file = Path(copies) / ROWS_FILE
        shutil.copy(folder / ROWS_FILE, file)  # migrated to this version's schema there
        with closing(Database(sqlite_url(file))) as source:
            source.migrate()
            with source.transaction() as session:
                names = resources.named_blobs(session)
        lacking = [
            name
            for name in sorted(names)
            if not services.blobs.take(name, BlobStore(folder / BLOBS_FOLDER))
        ]
        if lacking and not force:
            raise BackupError(
                f"the backup lacks {len(lacking)} of {len(names)} blobs, or they are damaged: {', '.join(lacking[:MOST_NAMED_BLOBS])}. With "
                "--force the rest is restored, and what needs these answers blob-missing"
            )
        services.db.migrate()
        rows = _load_rows(services.db, file, force=force)
    return BackupSummary(rows, len(names) - len(lacking), lacking)


def _dump_rows(db: Database, file: Path) -> tuple[int, set[str]]:
    """All rows of one moment as a SQLite file; returns how many, and the blobs they name."""
    with closing(Database(sqlite_url(file))) as copy:
        copy.migrate()
        with (
            _connect(db.url, isolation_level="SERIALIZABLE") as source,
            copy.engine.begin() as target,
        ):
            if is_sqlite(db.url):
                source.exec_driver_sql("BEGIN")  # or each query would see another moment
            else:
                source.execute(text("SET idle_in_transaction_session_timeout = 0"))
            rows = _copy_rows(source, target)
        with copy.transaction() as session:
            # A job replaces its checkpoint at any moment; without one it begins anew.
            session.execute(update(tables.JobRow).values(checkpoint=None))
            names = resources.named_blobs(session)
    return rows, names


def require_alone(db: Database) -> None:
    """Raises BackupError when other processes use the database. Of SQLite, the caller holds the data dir."""
    if is_sqlite(db.url):
        return
    deadline = time.monotonic() + SESSION_END_S
    with _connect(db.url, isolation_level="AUTOCOMMIT") as connection:
        while others := connection.scalar(text(COUNT_OTHER_SESSIONS)):
            if time.monotonic() >= deadline:
                raise BackupError(
                    f"{others} other sessions use the database: stop every API and worker first"
                )
            time.sleep(0.1)


def _load_rows(db: Database, file: Path, *, force: bool) -> int:
    """Put all rows of a SQLite file into the database, in one transaction. Raises BackupError."""
    with _connect(sqlite_url(file)) as source, _connect(db.url) as target, target.begin():
        occupied = [
            name
            for name, table in _tables().items()
            if target.scalar(select(func.count()).select_from(table))
        ]
        if occupied and not force:
            raise BackupError(
                f"the database has rows already ({', '.join(occupied)}): --force replaces them"
            )
        for table in reversed(_tables().values()):
            target.execute(table.delete())
        return _copy_rows(source, target)


@contextmanager
def _connect(url: URL, **options: Any) -> Iterator[Connection]:
    """A connection whose statements take as long as they take."""
    engine = make_engine(url)
    try:
        with engine.execution_options(**options).connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _copy_rows(source: Connection, target: Connection) -> int:
    """Copy every row from one database to another of the same schema; returns how many."""
    count = 0
    for table in _tables().values():
        with source.execution_options(yield_per=ROWS_PER_BATCH).execute(select(table)) as result:
            for batch in result.mappings().partitions():
                target.execute(insert(table), [dict(row) for row in batch])
                count += len(batch)
    return count


def _tables() -> dict[str, Table]:
    """All tables, those that others refer to first; a JSON column without a value stays NULL."""
    metadata = MetaData()
    copies = {
        table.name: table.to_metadata(metadata) for table in tables.Base.metadata.sorted_tables
    }
    for table in copies.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return copies
