"""A worker: threads that run jobs, and two that take care. In the API's process, or in one of its own."""

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
from app.services.jobs import queue
from app.services.jobs.leases import Leases
from app.services.upkeep import retention
from app.storage.wakeup import LocalWakeup
from workers.runners import RUNNERS

log = logging.getLogger("anchorage.worker")

#: an idle thread looks for a job this often, unless it is woken sooner
POLL_S = 0.5

#: how long a stop waits for running jobs' next step, at which they are handed back
STOP_TIMEOUT_S = 5.0

#: leases are renewed this often, or three times in their life if that is more often
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
        """Whether every thread runs."""
        return all(each.is_alive() for each in (*self._threads, self._caretaker, self._deleter))

    def start(self) -> None:
        """Begin."""
        for thread in (self._caretaker, self._deleter, *self._threads):
            thread.start()

    def stop(self) -> None:
        """Hand running jobs back, at their next step or after a while, and end."""
        self._stopping.set()
        self._wakeup.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        try:
            # Jobs in the middle of a long step; what they still do is not recorded.
            self._leases.hand_back()
        except DatabaseUnavailable as error:
            log.warning("running jobs are not handed back, their leases will end: %s", error.detail)
        self._deleter.stop()
        self._caretaker.stop()

    def _work(self) -> None:
        answers = True
        while not self._stopping.is_set():
            found = False
            try:
                found = queue.run_next(
                    self.services, RUNNERS, self._leases, stopping=self._stopping.is_set
                )
                answers = True
            except DatabaseUnavailable as error:
                if answers:
                    log.warning("no jobs are taken until the database answers: %s", error.detail)
                answers = False
            except Exception:
                log.exception("no job is taken")
            if not found:
                self._wakeup.wait(POLL_S)

    def _renew(self) -> None:
        metrics.LEASES_RENEWED.set_to_current_time()
        self._leases.renew()

    def _delete_old(self) -> None:
        retention.delete_old(self.services, stopping=self._stopping.is_set)


class Periodic(threading.Thread):
    """Does something at once and then every so often, until it is stopped. Errors are logged."""

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
        """End after what it does now, which is waited for a while."""
        self._ended.set()
        if self.is_alive():
            self.join(STOP_TIMEOUT_S)
