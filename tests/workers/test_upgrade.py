"""The jobs of the previous version, which had a queue in Redis, run after an upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from alembic import command
from sqlalchemy import Connection, MetaData, Table, create_engine, select

from app.maths.anchors.health import examine
from app.maths.geometry.space import fit_space
from app.services.context import Services
from app.settings import Settings
from app.storage import tables
from app.storage.db import alembic_config
from app.storage.queries import access, jobs, resources
from app.wiring import make_services, make_wakeup
from tests.waiting import until
from workers.main import Worker

#: the revision of the version whose jobs a queue in Redis carried
BEFORE = "0006"

NOW = tables.now()
MINUTE = timedelta(minutes=1)

#: the arguments that version wrote for `POST /translators` with `Prefer: respond-async`
ARGUMENTS = {"source": "a", "target": "b", "anchor_set": "s", "method": "ridge"}
ARGUMENTS |= {"options": {}, "prefer": "retrieval", "min_quality": {}}

WAITING = {"state": "queued", "attempts": 0, "created_at": NOW - 30 * MINUTE}
RUNNING = {
    "state": "running",
    "attempts": 1,
    "lease": "f" * 32,
    "created_at": NOW - 20 * MINUTE,
    "started_at": NOW,
}

JOBS: dict[str, dict[str, Any]] = {
    # Its message was to be lost for five minutes before anybody looked for it.
    "queued": {**WAITING, "due_at": NOW + 5 * MINUTE},
    "lost": {**RUNNING, "lease_until": NOW - MINUTE, "due_at": NOW + 5 * MINUTE},
    "tried": {**WAITING, "attempts": 2, "due_at": NOW + 60 * MINUTE},
    "running elsewhere": {
        **RUNNING,
        "lease": "e" * 32,
        "lease_until": NOW + 60 * MINUTE,
        "due_at": NOW - MINUTE,
    },
    "ended": {
        "state": "succeeded",
        "attempts": 1,
        "created_at": NOW - MINUTE,
        "finished_at": NOW,
        "due_at": NOW - MINUTE,
    },
    "ended long ago": {
        "state": "failed",
        "attempts": 5,
        "created_at": NOW - 60 * MINUTE,
        "finished_at": None,
        "due_at": NOW,
    },
}


@pytest.fixture(params=["sqlite", "postgresql"])
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    """On a database of the version before, with its rows."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    services = make_services(Settings(data_dir=tmp_path, database_url=url, lease_s=30))
    command.upgrade(alembic_config(services.db.url), BEFORE)
    draw = torch.Generator().manual_seed(0)
    anchors = {name: torch.randn(12, 3, generator=draw) for name in "ab"}
    spaces = {
        name: {
            "blob": services.blobs.put({"anchors": rows}),
            "health": asdict(examine(rows.double(), fit_space(rows))),
        }
        for name, rows in anchors.items()
    }
    engine = create_engine(services.db.url)
    with engine.begin() as connection:
        put_rows(connection, spaces)
    engine.dispose()
    yield services
    services.close()


def put_rows(connection: Connection, spaces: dict[str, dict[str, Any]]) -> None:
    """By the tables as they are there, not as this version knows them."""
    schema = MetaData()
    schema.reflect(connection)

    def put(table: str, *rows: dict[str, Any]) -> None:
        found: Table = schema.tables[table]
        common = {"project": "default", "created_at": NOW}
        connection.execute(found.insert(), [{**common, **row} for row in rows])

    encoder = {"kind": "external", "dim": 3, "modality": "text", "options": {}}
    put("encoders", *({"id": name, "name": name, **encoder} for name in "ab"))
    put("anchor_sets", {"id": "s", "name": "s", "size": 12})
    put(
        "spaces",
        *(
            {**space, "id": f"s{name}", "anchor_set_id": "s", "encoder_id": name}
            for name, space in spaces.items()
        ),
    )
    put(
        "translators",
        {
            "id": "t",
            "content": "tr_0",
            "source_id": "sa",
            "target_id": "sb",
            "method": "irp",
            "options": {},
        },
    )
    put(
        "audit",
        {"id": "1", "action": "create", "resource": "translator", "name": "tr_0", "origin": "o"},
    )
    put(
        "idempotent_requests",
        {
            "id": "1",
            "key": "k",
            "fingerprint": "f",
            "claim": "c",
            "claimed_until": NOW,
            "made": "t",
        },
    )
    empty = {
        "kind": "translator",
        "arguments": ARGUMENTS,
        "version": 1,
        "furthest": 0,
        "cancel_requested": False,
        "progress": {},
    }
    nothing = dict.fromkeys(("lease", "lease_until", "started_at", "finished_at"))
    put(
        "jobs",
        *({**nothing, **empty, **row, "id": name.replace(" ", "-")} for name, row in JOBS.items()),
    )


def put_by_the_version_before(services: Services) -> None:
    """Insert as the previous version does, which does not know the column `used_at`."""
    engine = create_engine(services.db.url)
    with engine.begin() as connection:
        schema = MetaData()
        schema.reflect(connection)
        translator = {"source_id": "sa", "target_id": "sb", "method": "irp", "options": {}}
        common = {"project": "default", "created_at": NOW, "content": "tr_1"}
        connection.execute(
            schema.tables["translators"].insert(), {**common, **translator, "id": "t1"}
        )
    engine.dispose()


def state(services: Services, name: str) -> str:
    with services.db.transaction() as session:
        return session.get_one(tables.JobRow, name.replace(" ", "-")).state


def test_jobs_of_the_version_before_run_to_their_end(services):
    services.db.migrate()
    put_by_the_version_before(services)
    wakeup = make_wakeup(Settings())
    worker = Worker(services, wakeup)
    worker.start()
    until(lambda: {state(services, "queued"), state(services, "lost")} == {"succeeded"})
    worker.stop()
    assert state(services, "tried") == "queued"  # it waits for its next try
    assert state(services, "running elsewhere") == "running"  # by a worker of the version before
    assert state(services, "ended") == "succeeded"
    with services.db.transaction() as session:
        results = session.scalars(
            select(tables.JobRow.result).where(tables.JobRow.id.in_(["queued", "lost"]))
        ).all()
        reported = {row.content for row in resources.newest_reports(session, "default", limit=9)}
        assert {row["translator"] for row in results} < reported
        assert jobs.count_by_state(session) == {"queued": 1, "running": 1}
        for content in (
            "tr_0",
            "tr_1",
        ):  # nobody knows when they were used last: it counts from now
            assert (
                NOW - MINUTE
                < resources.translator(session, "default", content).used_at
                <= tables.now()
            )
        assert access.idempotent_request(session, "default", "k").made == "t"
        assert [row.name for row in access.audit(session, "default", before=None, limit=9)][
            -1
        ] == "tr_0"


def test_the_way_back_leaves_every_job_and_translator(services):
    services.db.migrate()
    services.db.close()
    command.downgrade(alembic_config(services.db.url), BEFORE)
    engine = create_engine(services.db.url)
    with engine.connect() as connection:
        schema = MetaData()
        schema.reflect(connection)
        states = dict(
            connection.execute(
                select(schema.tables["jobs"].c.id, schema.tables["jobs"].c.state)
            ).all()
        )
        assert "used_at" not in schema.tables["translators"].c
        assert len(connection.execute(select(schema.tables["translators"])).all()) == 1
    engine.dispose()
    assert states == {name.replace(" ", "-"): row["state"] for name, row in JOBS.items()}
    services.db.migrate()
    services.db.require_schema()
