"""The leases under which this process runs jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from app.services.context import Services
from app.storage import tables
from app.storage.queries import jobs
from app.types import JobState


class Leases:
    """The jobs that this process runs now, so that one thread can renew their leases while others work."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def until(self) -> datetime:
        return tables.now() + timedelta(seconds=self._services.lease_s)

    @contextmanager
    def hold(self, lease: str) -> Iterator[None]:
        with self._lock:
            self._held.add(lease)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(lease)

    def held(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def renew(self) -> None:
        """Tell the database that this process lives."""
        if held := self.held():
            with self._services.db.transaction() as session:
                jobs.renew_leases(session, held, until=self.until())

    def hand_back(self) -> None:
        """When a process stops: what it still runs waits for another one, and the try does not count."""
        for lease in self.held():
            hand_back(self._services, lease)


def hand_back(services: Services, lease: str) -> None:
    """Let a job wait for another worker, at its place in the queue; the try does not count."""
    with services.db.transaction() as session:
        row = jobs.leased_job(session, lease)
        if row is None:
            return
        back = {"state": JobState.queued, "lease": None, "attempts": row.attempts - 1}
        jobs.change_leased(session, lease, **back)
    services.notify_workers()
