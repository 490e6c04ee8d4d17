"""A worker: threads that run jobs, one that renews leases, and one that deletes old rows.

It runs in the API's process, or in a separate one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event

from app.errors import DatabaseUnavailable
from app.observability import metrics
from app.services.context import Services
from app.services.jobs import runner
from app.services.jobs.leases import Leases
from app.services.upkeep import retention
from app.storage.wakeup import LocalWakeup
from workers.runners import RUNNERS

log = logging.getLogger("anchorage.worker")

#: how often an idle thread looks for a job, unless it is woken
IDLE_POLL_S = 0.5

#: how long a stop waits for the next step of running jobs, at which they return to the queue
STOP_TIMEOUT_S = 5.0

#: how often leases are renewed: at least this often, and RENEWALS times in a lease
RENEW_S = 2.0
RENEWALS = 3

#: how often old rows and blobs are deleted
DELETE_OLD_S = 3600.0


class Worker:
    """Runs jobs in threads of this process."""

    def __init__(self, services: Services, wakeup: LocalWakeup, *, threads: int = 1) -> None:
        self.services = replace(services, notify_workers=wakeup.notify, turn_wait_s=None)
        self._wakeup = wakeup
        self._stopping = Event()
        self._leases = Leases(self.services)
        self._threads = [
            threading.Thread(target=self._work, name=f"jobs-{number}", daemon=True)
            for number in range(threads)
        ]
        renew_s = min(RENEW_S, self.services.lease_s / RENEWALS)
        self._caretaker = Periodic("renew leases", renew_s, self._renew)
        self._deleter = Periodic("delete old rows", DELETE_OLD_S, self._delete_old)

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return all(each.is_alive() for each in (*self._threads, self._caretaker, self._deleter))

    def start(self) -> None:
        """Start the threads."""
        for thread in (self._caretaker, self._deleter, *self._threads):
            thread.start()

    def stop(self) -> None:
        """Stop the threads; running jobs return to the queue."""
        self._stopping.set()
        self._wakeup.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        try:
            # Jobs in the middle of a long step. Nothing that they still do is recorded.
            self._leases.hand_back()
        except DatabaseUnavailable as error:
            log.warning(
                "running jobs cannot be returned to the queue, their leases have to end: %s",
                error.detail,
            )
        self._deleter.stop()
        self._caretaker.stop()

    def _work(self) -> None:
        database_answers = True
        while not self._stopping.is_set():
            has_job = False
            try:
                has_job = runner.run_next(
                    self.services, RUNNERS, self._leases, stopping=self._stopping.is_set
                )
                database_answers = True
            except DatabaseUnavailable as error:
                if database_answers:
                    log.warning("no jobs are claimed until the database answers: %s", error.detail)
                database_answers = False
            except Exception:
                log.exception("cannot claim a job")
            if not has_job:
                self._wakeup.wait(IDLE_POLL_S)

    def _renew(self) -> None:
        metrics.CARETAKER.set_to_current_time()
        self._leases.renew()

    def _delete_old(self) -> None:
        retention.delete_old(self.services, stopping=self._stopping.is_set)


class Periodic(threading.Thread):
    """Calls a function now and at a regular interval, until it is stopped. Logs errors."""

    def __init__(self, what: str, every_s: float, do: Callable[[], None]) -> None:
        super().__init__(name=what, daemon=True)
        self._every_s = every_s
        self._do = do
        self._ended = Event()

    def run(self) -> None:
        while True:
            try:
                self._do()
            except DatabaseUnavailable as error:
                log.warning("cannot %s: %s", self.name, error.detail)
            except Exception:
                log.exception("cannot %s", self.name)
            if self._ended.wait(self._every_s):
                return

    def stop(self) -> None:
        """Stop after the current call, and wait for it up to STOP_TIMEOUT_S."""
        self._ended.set()
        if self.is_alive():
            self.join(STOP_TIMEOUT_S)
