"""Backups: a folder with all rows in a SQLite file, and a copy of each blob that they name.

The rows are read in one snapshot, and no process deletes blobs meanwhile, so rows and blobs always
match. A backup of either database can be restored into SQLite and into PostgreSQL.
"""

from __future__ import annotations

import hashlib
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

#: the files of a backup's rows, before and after it is complete, and the folder of its blobs
UNFINISHED_FILE, ROWS_FILE, BLOBS_FOLDER = "unfinished.db", "anchorage.db", "blobs"

#: the checksum of the rows, as `sha256sum` writes it
CHECKSUM_FILE = f"{ROWS_FILE}.sha256"

#: rows that are copied at once
ROWS_PER_BATCH = 1000

#: most missing blobs that a message names
MAX_NAMED_BLOBS = 20

#: counts the other sessions of a PostgreSQL database
COUNT_OTHER_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    "pg_backend_pid() AND backend_type = 'client backend'"
)


#: how long a session may outlive its process
SESSION_END_S = 3.0


class BackupError(Exception):
    """Why a backup cannot be written or restored."""


@dataclass(frozen=True)
class BackupSummary:
    """The numbers of copied rows and blobs, and the blobs that were missing or damaged before."""

    rows: int
    blobs: int
    lacking: Sequence[str] = ()


def back_up(services: Services, folder: Path) -> BackupSummary:
    """Write a backup into an empty or new folder, while the service runs.

    Missing blobs are named in the result. Raises BackupError, SchemaOutdated, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty. Name a new folder for each backup")
    services.db.require_schema()
    blobs = BlobStore(folder / BLOBS_FOLDER)
    with services.blobs.unswept():
        rows, names = _dump_rows(services.db, folder / UNFINISHED_FILE)
        lacking = [name for name in sorted(names) if not blobs.take(name, services.blobs)]
    checksum = _sha256(folder / UNFINISHED_FILE)
    (folder / CHECKSUM_FILE).write_text(f"{checksum}  {ROWS_FILE}\n")
    (folder / UNFINISHED_FILE).rename(folder / ROWS_FILE)
    return BackupSummary(rows, len(names) - len(lacking), lacking)


def restore(services: Services, folder: Path, *, force: bool = False) -> BackupSummary:
    """Restore a backup into an empty database; with `force`, replace the rows of a database.

    Raises BackupError, before any row changes, when the backup is incomplete, when its rows are
    damaged, when the database is in use, and, without `force`, when the backup lacks blobs or the
    database has rows. Raises SchemaOutdated for a backup of a newer version.
    """
    for name in (ROWS_FILE, CHECKSUM_FILE):
        if not (folder / name).is_file():
            raise BackupError(f"{folder} holds no complete backup: it has no {name}")
    require_alone(services.db)
    with services.blobs.unswept(), tempfile.TemporaryDirectory(dir=services.blobs.root) as copies:
        file = Path(copies) / ROWS_FILE
        shutil.copy(folder / ROWS_FILE, file)  # migrated to this version's schema there
        if (folder / CHECKSUM_FILE).read_bytes().split()[:1] != [_sha256(file).encode()]:
            raise BackupError(
                f"{folder / ROWS_FILE} has changed since the backup: it does not match "
                f"{CHECKSUM_FILE}. Use another copy of the backup, or an earlier one"
            )
        with closing(Database(sqlite_url(file))) as source:
            source.upgrade()
            with source.transaction() as session:
                names = resources.named_blobs(session)
        lacking = [
            name
            for name in sorted(names)
            if not services.blobs.take(name, BlobStore(folder / BLOBS_FOLDER))
        ]
        if lacking and not force:
            raise BackupError(
                f"{len(lacking)} of {len(names)} blobs of the backup are missing or damaged: "
                f"{', '.join(lacking[:MAX_NAMED_BLOBS])}. With --force the rest is restored, and "
                "requests that need these fail with blob-missing"
            )
        services.db.upgrade()
        rows = _load_rows(services.db, file, force=force)
    return BackupSummary(rows, len(names) - len(lacking), lacking)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _dump_rows(db: Database, file: Path) -> tuple[int, set[str]]:
    """Write all rows to a SQLite file; return their number, and the blobs that they name."""
    with closing(Database(sqlite_url(file))) as copy:
        copy.upgrade()
        with (
            _connect(db.url, isolation_level="SERIALIZABLE") as source,
            copy.engine.begin() as target,
        ):
            if is_sqlite(db.url):
                source.exec_driver_sql("BEGIN")  # one snapshot for all queries
            else:
                source.execute(text("SET idle_in_transaction_session_timeout = 0"))
            rows = _copy_rows(source, target)
        with copy.transaction() as session:
            # A job may replace its checkpoint during the backup. Without one it starts over.
            session.execute(update(tables.JobRow).values(checkpoint=None))
            names = resources.named_blobs(session)
    return rows, names


def require_alone(db: Database) -> None:
    """Raises BackupError when other processes use the database.

    For SQLite, the caller holds the lock of the data directory instead.
    """
    if is_sqlite(db.url):
        return
    deadline = time.monotonic() + SESSION_END_S
    with _connect(db.url, isolation_level="AUTOCOMMIT") as connection:
        while others := connection.scalar(text(COUNT_OTHER_SESSIONS)):
            if time.monotonic() >= deadline:
                raise BackupError(
                    f"{others} other sessions use the database. Stop all API processes and "
                    "workers first"
                )
            time.sleep(0.1)


def _load_rows(db: Database, file: Path, *, force: bool) -> int:
    """Copy all rows of a SQLite file to the database, in one transaction."""
    with _connect(sqlite_url(file)) as source, _connect(db.url) as target, target.begin():
        occupied = [
            name
            for name, table in _tables().items()
            if target.scalar(select(func.count()).select_from(table))
        ]
        if occupied and not force:
            raise BackupError(
                f"the database has rows already ({', '.join(occupied)}). Replace them with --force"
            )
        for table in reversed(_tables().values()):
            target.execute(table.delete())
        return _copy_rows(source, target)


@contextmanager
def _connect(url: URL, **options: Any) -> Iterator[Connection]:
    """A connection without a time limit for statements."""
    engine = make_engine(url)
    try:
        with engine.execution_options(**options).connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _copy_rows(source: Connection, target: Connection) -> int:
    """Copy all rows between databases of the same schema; return their number."""
    count = 0
    for table in _tables().values():
        with source.execution_options(yield_per=ROWS_PER_BATCH).execute(select(table)) as result:
            for batch in result.mappings().partitions():
                target.execute(insert(table), [dict(row) for row in batch])
                count += len(batch)
    return count


def _tables() -> dict[str, Table]:
    """All tables, referenced ones first. A JSON column without a value stays NULL.

    Native vectors are left out: they can be large, and the encoder makes them again.
    """
    metadata = MetaData()
    copies = {
        table.name: table.to_metadata(metadata)
        for table in tables.Base.metadata.sorted_tables
        if table.name != tables.NativeVectorRow.__tablename__
    }
    for table in copies.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return copies
