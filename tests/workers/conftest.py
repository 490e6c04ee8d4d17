"""Workers on a real PostgreSQL, and jobs small enough to be many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from app.bootstrap import service as bootstrapping
from app.bootstrap.schemas import BootstrapRequest
from app.context import RequestContext, Services
from app.db import tables
from app.encoders import service as encoders
from app.encoders.schemas import NewEncoder
from app.errors import DatabaseUnavailable, NameTaken
from app.settings import Settings
from app.wiring import make_services
from tests.waiting import slack
from workers.main import Worker

PROJECT = "default"
CONTEXT = RequestContext(PROJECT)


class Deployment:
    """The settings and services of an API process, and the workers of a test."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.services = make_services(settings)
        self._workers: list[tuple[Worker, Services]] = []

    def worker(self, **changes: Any) -> Worker:
        """Another worker with its own connections, not started yet."""
        settings = self.settings.model_copy(update=changes)
        services = make_services(settings)
        worker = Worker(services, threading.Event())
        self._workers.append((worker, services))
        return worker

    def bootstrap(self, name: str, *, items: int = 100, attempts: int = 1) -> str:
        """A job queued as the API does it; two encoders `a` and `b` come with the first. The pools
        have nothing in common, so no two attempts agree.
        """
        self._encoders(a=16, b=12)
        draw = torch.Generator().manual_seed(0)
        body = BootstrapRequest(
            name=name,
            source="a",
            target="b",
            source_pool=torch.randn(items, 16, generator=draw),
            target_pool=torch.randn(items, 12, generator=draw),
            seeds=[[0, 0], [1, 1], [2, 2]],
            size=6,
            options={"attempts": attempts},
            min_precision=0,
        )
        row = bootstrapping.request_bootstrap(self.services, CONTEXT, body)
        return row.id

    def _encoders(self, **dims: int) -> None:
        for name, dim in dims.items():
            with suppress(NameTaken):
                encoders.create_encoder(self.services, CONTEXT, NewEncoder(name=name, dim=dim))

    def row(self, job_id: str) -> tables.JobRow:
        """The job's row; a database that is too busy to answer is asked again."""
        deadline = time.monotonic() + 60 * slack()
        while True:
            try:
                with self.services.db.transaction() as session:
                    return session.get_one(tables.JobRow, job_id)
            except DatabaseUnavailable:
                if time.monotonic() > deadline:
                    raise

    def alter(self, job_id: str, **values: Any) -> None:
        with self.services.db.transaction() as session:
            row = session.get_one(tables.JobRow, job_id)
            for name, value in values.items():
                setattr(row, name, value)

    def wait(self, job_id: str, true: Callable[[tables.JobRow], Any]) -> tables.JobRow:
        """The job's row once it is so: generous, because machines are busy."""
        deadline = time.monotonic() + 120 * slack()
        while not true(row := self.row(job_id)):
            assert time.monotonic() < deadline, (row.state, row.attempts, row.progress, row.error)
            time.sleep(0.02)
        return row

    def close(self) -> None:
        for worker, services in self._workers:
            worker.stop()
            services.close()
        self.services.close()


@pytest.fixture
def deployment(postgres_url: str, tmp_path: Path) -> Iterator[Deployment]:
    settings = Settings(data_dir=tmp_path, database_url=postgres_url, lease_s=2, devices="cpu")
    found = Deployment(settings)
    found.services.db.upgrade()
    yield found
    found.close()
