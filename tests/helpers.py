"""What the tests of services do again and again; their fixtures are in conftest.py."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from sqlalchemy import select
from torch import Tensor

from app.context import RequestContext, Services
from app.db import tables
from app.db.blobs import ORPHAN_AGE_S
from app.encoders import service as encoders
from app.encoders.schemas import NewEncoder
from app.jobs import worker as runner
from app.jobs.worker import Leases
from app.settings import Settings
from app.wiring import make_services
from workers.main import RUNNERS

PROJECT = "p"
CONTEXT = RequestContext(PROJECT)

#: for what the two databases could do differently: requests at one moment, and bulk statements
ON_EACH_DATABASE = pytest.mark.parametrize("services", ["on_sqlite", "on_postgres"], indirect=True)


def some(k: int, d: int, seed: int = 0) -> Tensor:
    """Vectors that equal seeds and dimensions draw alike."""
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed + d))


def create_encoder(
    services: Services, name: str, dim: int, context: RequestContext = CONTEXT
) -> tables.EncoderRow:
    return encoders.create_encoder(services, context, NewEncoder(name=name, dim=dim))


def again(services: Services, row: Any) -> Any:
    """The row as the database has it now."""
    with services.db.transaction() as session:
        return session.get_one(type(row), row.id)


def alter(services: Services, row: Any, **values: Any) -> None:
    """Change a row behind the service's back."""
    with services.db.transaction() as session:
        found = session.get_one(type(row), row.id)
        for name, value in values.items():
            setattr(found, name, value)


def run(services: Services, job: tables.JobRow, **more: Any) -> tables.JobRow:
    """A worker's turn with the job, which is the only one."""
    runner.run_next(services, RUNNERS, Leases(services), **more)
    row: tables.JobRow = again(services, job)
    return row


#: what `another_process` made in the present test
OTHER_PROCESSES: list[Services] = []


def audited(services: Services) -> list[tables.AuditRow]:
    """The rows of the audit log, the newest first."""
    with services.db.transaction() as session:
        query = select(tables.AuditRow).where(tables.AuditRow.project == PROJECT)
        return list(session.scalars(query.order_by(tables.AuditRow.created_at.desc())))


def another_process(services: Services, **settings: Any) -> Services:
    """The same deployment as another process sees it: the same database and blobs, its own
    memory. A fixture closes it.
    """
    places = {
        "data_dir": services.blobs.root.parent,
        "database_url": services.db.url.render_as_string(hide_password=False),
    }
    OTHER_PROCESSES.append(make_services(Settings(**{**places, **settings})))
    return OTHER_PROCESSES[-1]


def files(services: Services) -> set[str]:
    return {path.name for path in services.blobs.root.glob("??/*")}


def age(services: Services) -> None:
    """Make every blob old enough for a sweep."""
    moment = time.time() - 2 * ORPHAN_AGE_S
    for path in services.blobs.root.glob("??/*"):
        os.utime(path, (moment, moment))
