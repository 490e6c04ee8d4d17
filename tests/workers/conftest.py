"""Workers on a real PostgreSQL, and jobs small enough to be many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.bootstrap import service as bootstrapping
from app.bootstrap.schemas import BootstrapRequest
from app.context import RequestContext
from app.db import tables
from app.errors import DatabaseUnavailable, NameTaken
from app.jobs.submission import submit_job
from app.settings import Settings
from app.wiring import make_services
from tests.helpers import create_encoder, some
from tests.waiting import until
from workers.main import Worker

PROJECT = "default"
CONTEXT = RequestContext(PROJECT)


class Deployment:
    """The settings and services of an API process, and the workers of a test."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.services = make_services(settings)
        self._workers: list[Worker] = []

    def worker(self, **changes: Any) -> Worker:
        """Another worker with its own connections, not started yet."""
        services = make_services(self.settings.model_copy(update=changes))
        self._workers.append(Worker(services, threading.Event()))
        return self._workers[-1]

    def submit(self, kind: str, **arguments: Any) -> str:
        return submit_job(self.services, CONTEXT, kind, arguments).id

    def bootstrap(self, name: str, *, items: int = 100, attempts: int = 1) -> str:
        """A job queued as the API does it; two encoders `a` and `b` come with the first. The pools
        have nothing in common, so no two attempts agree.
        """
        for encoder, dim in (("a", 16), ("b", 12)):
            with suppress(NameTaken):
                create_encoder(self.services, encoder, dim, CONTEXT)
        body = BootstrapRequest(
            name=name,
            source="a",
            target="b",
            source_pool=some(items, 16),
            target_pool=some(items, 12),
            seeds=[[0, 0], [1, 1], [2, 2]],
            size=6,
            options={"attempts": attempts},
            min_precision=0,
        )
        return bootstrapping.request_bootstrap(self.services, CONTEXT, body).id

    def row(self, job_id: str) -> tables.JobRow:
        """The job's row; a database that is too busy to answer is asked again."""

        def read() -> tables.JobRow | None:
            with suppress(DatabaseUnavailable), self.services.db.transaction() as session:
                return session.get_one(tables.JobRow, job_id)
            return None

        return until(read)  # type: ignore[no-any-return]

    def wait(self, job_id: str, true: Callable[[tables.JobRow], Any]) -> tables.JobRow:
        """The job's row once it is so: generous, because machines are busy."""

        def is_so() -> tables.JobRow | None:
            return row if true(row := self.row(job_id)) else None

        return until(is_so, 120)  # type: ignore[no-any-return]

    def ended(self, job_id: str) -> tables.JobRow:
        return self.wait(job_id, lambda row: row.finished_at is not None)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
            worker.services.close()
        self.services.close()


@pytest.fixture
def deployment(postgres_url: str, tmp_path: Path) -> Iterator[Deployment]:
    settings = Settings(data_dir=tmp_path, database_url=postgres_url, lease_s=2, devices="cpu")
    found = Deployment(settings)
    found.services.db.upgrade()
    yield found
    found.close()
