"""The leases of the jobs that this process runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.context import Services
from app.db import leases
from app.jobs import queries as jobs
from app.types import JobState


class Leases:
    """The leases that this process holds. One thread renews them while others work."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, lease: str) -> Iterator[None]:
        """Have the lease renewed inside this context."""
        with self._lock:
            self._held.add(lease)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(lease)

    def held(self) -> list[str]:
        """The leases of running jobs."""
        with self._lock:
            return list(self._held)

    def renew(self) -> None:
        """Extend all leases. Raises DatabaseUnavailable."""
        if held := self.held():
            with self._services.db.transaction() as session:
                jobs.renew_leases(session, held, seconds=self._services.lease_s)

    def hand_back(self) -> None:
        """Return all running jobs to the queue: this process stops."""
        for lease in self.held():
            hand_back(self._services, lease)


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
