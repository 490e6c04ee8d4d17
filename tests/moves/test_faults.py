"""Faults of the store, of the service's database and of workers: a clear stop, the cursor kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.anchors import service as anchor_sets
from app.context import Services
from app.db import tables
from app.encoders import service as encoders
from app.errors import DatabaseUnavailable, InUse
from app.moves import steps
from app.settings import Settings
from app.stores import service as stores
from app.stores.handles import StoreAddress
from app.types import JobState
from app.wiring import make_services
from scripts.servers import Postgres
from tests.disks import remount, small_disk
from tests.helpers import CONTEXT, again, alter
from tests.moves.moving import ROWS, Moving, begin_moving, old_vectors, same
from tests.pgvector_server import PgvectorServer
from tests.waiting import until


def complete(moving: Moving) -> bool:
    """Whether the migration is filled, row for row as an undisturbed run does it."""
    return moving.state == "filled" and same(moving, old_vectors(ROWS))


@contextmanager
def running(moving: Moving, rows: int = 200) -> Iterator[tables.JobRow]:
    """A run in another thread that has read as many rows; ends with the job."""
    job = moving.queue("run")

    def work() -> None:
        ended = False
        while not ended:
            with suppress(DatabaseUnavailable):
                alter(moving.services, job, due_at=job.created_at)
                moving.work()
                ended = again(moving.services, job).finished_at is not None

    worker = threading.Thread(target=work)
    worker.start()
    try:
        until(lambda: moving.now.row.position.get("rows", 0) >= rows)
        yield job
    finally:
        worker.join(120)
    assert not worker.is_alive()


def stopped(moving: Moving, *codes: str) -> str:
    """What stopped the migration: it is paused, its cursor is kept, and a run is possible."""
    now = moving.now
    assert now.row.state == "paused"
    assert now.error["code"] in codes, now.error
    assert now.next == ["run", "abandon"]
    assert again(moving.services, now.job).state == JobState.failed
    return now.error["detail"]


def test_vectors_of_another_dimension(moving: Moving) -> None:
    moving.execute(
        "ALTER TABLE {} ALTER embedding TYPE vector(10) USING subvector(embedding, 1, 10)"
    )
    moving.do("run")
    assert "10 dimensions, and the migration was planned for 24" in stopped(moving, "store-changed")


def connect_by(services: Services, url: str) -> None:
    services.stores.addresses = {"main": StoreAddress(url, frozenset({CONTEXT.project}))}


def test_a_store_that_refuses_writes_until_it_allows_them(
    moving: Moving, pgvector_server: PgvectorServer
) -> None:
    role = f"reader_{id(moving)}"
    pgvector_server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hidden-secret'")
    connect_by(moving.services, pgvector_server.url_of(role, "hidden-secret"))
    moving.execute(f"GRANT SELECT ON {{}} TO {role}")
    moving.do("run")
    assert "hidden-secret" not in stopped(moving, "store-refused")
    moving.execute(f"ALTER TABLE {{}} OWNER TO {role}")
    moving.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    moving.do("run")
    assert complete(moving)


def test_a_full_disk(on_sqlite: Services, own_pgvector: PgvectorServer) -> None:
    """The new vectors lie in a tablespace whose disk is full after a part of them."""
    with small_disk(own_pgvector.folder / "disk", 160) as disk:
        own_pgvector.own(disk)
        own_pgvector.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        moving = begin_moving(on_sqlite, own_pgvector)
        connect_by(on_sqlite, f"{own_pgvector.url}&options=-cdefault_tablespace%3Dsmall")
        moving.do("run")
        assert "No space left on device" in stopped(moving, "store-full")
        kept = moving.now.row.position
        assert kept["cursor"] is not None
        assert len(moving.new_vectors()) == kept["rows"] < ROWS
        remount(disk, "size=64m")
        moving.do("run")
        assert complete(moving)
        steps.take_step(moving.services, CONTEXT, moving.id, "abandon")
        on_sqlite.stores.close()
        own_pgvector.execute("DROP TABLESPACE small")


def test_dropped_connections(begin: Callable[..., Moving]) -> None:
    moving = begin(rows_per_second=1500)
    with running(moving) as job:
        for _ in range(2):
            rows = moving.now.row.position["rows"]
            moving.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'anchorage' AND pid <> pg_backend_pid()"
            )
            until(
                lambda rows=rows: moving.now.row.position["rows"] > rows or moving.state == "filled"
            )
    assert again(moving.services, job).state == JobState.succeeded
    assert complete(moving)


def test_what_a_migration_needs_cannot_be_deleted(filled: Moving) -> None:
    services = filled.services
    for delete, name in (
        (stores.delete_store, filled.table),
        (encoders.delete_encoder, "old"),
        (encoders.delete_encoder, "new"),
        (anchor_sets.delete_anchor_set, "pairs"),
    ):
        with pytest.raises(InUse):
            delete(services, CONTEXT, name)


@pytest.mark.long
def test_a_database_of_the_service_that_is_away_for_some_seconds(
    own_postgres: Postgres, pgvector_server: PgvectorServer, tmp_path: Path
) -> None:
    services = make_services(Settings(data_dir=tmp_path, database_url=own_postgres.url))
    services.db.upgrade()
    moving = begin_moving(services, pgvector_server, rows_per_second=1000)
    with running(moving):
        own_postgres.freeze()
        assert not threading.Event().wait(3.0)
        own_postgres.thaw()
    until(lambda: services.db.away is False)
    assert complete(moving)
    services.close()
