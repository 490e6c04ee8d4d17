"""The lease of the job that this process runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.context import Services
from app.db import leases
from app.jobs import queries as jobs
from app.ops import metrics
from app.types import JobState


class Leases:
    """The lease of the job that this process runs. One thread renews it while another works."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: str | None = None

    @contextmanager
    def hold(self, lease: str) -> Iterator[None]:
        """Have the lease renewed inside this context."""
        self._held = lease
        try:
            yield
        finally:
            self._held = None

    def renew(self) -> None:
        """Extend the lease. Raises DatabaseUnavailable."""
        metrics.LEASES_RENEWED.set_to_current_time()
        if (held := self._held) is not None:
            with self._services.db.transaction() as session:
                jobs.renew_leases(session, [held], seconds=self._services.lease_s)

    def hand_back(self) -> None:
        """Return the running job to the queue: this process stops."""
        if (held := self._held) is not None:
            hand_back(self._services, held)


def hand_back(services: Services, lease: str, *, to_the_end: bool = False) -> None:
    """Return a job to its place in the queue, or to its end. The attempt does not count."""
    with services.db.transaction() as session:
        row = jobs.leased_job(session, lease)
        if row is None:
            return
        back: dict[str, Any] = {
            "state": JobState.queued,
            "lease": None,
            "attempts": row.attempts - 1,
        }
        if to_the_end:
            back["due_at"] = leases.database_now(session)
        jobs.change_leased(session, lease, **back)
    services.notify_workers()
