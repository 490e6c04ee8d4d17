"""A worker: threads that run jobs, and threads that renew leases, delete old rows, check encoders
and synchronise stores.

It runs in the process of the API, or in a separate one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event

from app.anchors.embedding import run_embed
from app.bootstrap.run import run_bootstrap
from app.context import Services
from app.device_failures import is_device_failure
from app.encoders.check import check_all
from app.errors import DatabaseUnavailable
from app.jobs import worker as runner
from app.jobs.leases import Leases
from app.moves.run import run_migration
from app.moves.sync import sync_all
from app.ops import metrics, retention
from app.search.compare import run_compare
from app.search.evaluate import run_evaluation
from app.translate.fit import run_translator
from app.translate.service import run_fit
from app.types import JobKind

log = logging.getLogger("anchorage.worker")

#: what runs each kind of job
RUNNERS: dict[str, runner.JobRunner] = {
    JobKind.bootstrap: run_bootstrap,
    JobKind.embed: run_embed,
    JobKind.translator: run_translator,
    JobKind.fit: run_fit,
    JobKind.evaluate: run_evaluation,
    JobKind.migrate: run_migration,
    JobKind.compare: run_compare,
}

#: how often an idle thread queries for a job that another process has queued
IDLE_POLL_S = 0.25

#: how long a stop waits for running jobs, which are handed back at their next step
STOP_TIMEOUT_S = 5.0

#: leases are renewed this often, and at least RENEWALS times in their life
RENEW_S = 2.0
RENEWALS = 3

#: how often old rows and blobs are deleted
DELETE_OLD_S = 3600.0

#: how often a worker looks for encoders that no worker has checked today
CHECK_ENCODERS_S = 900.0

#: how often writes to stores that are migrated are brought to the other side, and how long a stop
#: waits for a store: a change that was not applied stays in the store for the next worker
SYNC_S = 3.0
SYNC_STOP_S = 0.5


class Worker:
    """Runs jobs in threads of this process. `wakeup` is set when this process queues a job."""

    def __init__(self, services: Services, wakeup: Event, *, threads: int = 1) -> None:
        self.services = replace(
            services, notify_workers=wakeup.set, turn_wait_s=None, request_fit_s=None
        )
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
        self._watch = Periodic("check encoders", CHECK_ENCODERS_S, self._check_encoders)
        #: when each migration is next synchronised, by its id
        self._sync_due: dict[str, float] = {}
        self._synchroniser = Periodic("synchronise stores", SYNC_S, self._sync)

    @property
    def alive(self) -> bool:
        """Return whether every thread runs. One ends when the device has failed."""
        return all(each.is_alive() for each in (*self._threads, *self._periodics))

    @property
    def _periodics(self) -> tuple[Periodic, ...]:
        return self._caretaker, self._deleter, self._synchroniser, self._watch

    def start(self) -> None:
        """Start all threads."""
        for thread in (*self._periodics, *self._threads):
            thread.start()

    def stop(self) -> None:
        """Hand running jobs back, at their next step or after STOP_TIMEOUT_S, and stop."""
        self._stopping.set()
        self._wakeup.set()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        try:
            # These jobs are in a long step, whose result is not recorded.
            self._leases.hand_back()
        except DatabaseUnavailable as error:
            log.warning(
                "running jobs could not be handed back and restart when their leases expire: %s",
                error.detail,
            )
        for each in (self._synchroniser, self._watch):
            each.stop(SYNC_STOP_S)
        self._deleter.stop()
        self._caretaker.stop()

    def _work(self) -> None:
        answers = True
        while not self._stopping.is_set():
            found = False
            try:
                found = runner.run_next(
                    self.services, RUNNERS, self._leases, stopping=self._stopping.is_set
                )
                answers = True
            except runner.DeviceBroken as stop:
                self.services.encoders.check_device(stop)  # where the API runs in this process too
                log.error(
                    "the device %s has failed, and only a new process can use it: this worker ends",
                    self.services.device,
                )
                return
            except DatabaseUnavailable as error:
                if answers:
                    log.warning("waiting for the database before taking jobs: %s", error.detail)
                answers = False
            except Exception:
                log.exception("cannot take a job")
            if not found:
                self._wakeup.wait(IDLE_POLL_S)
                self._wakeup.clear()

    def _renew(self) -> None:
        metrics.LEASES_RENEWED.set_to_current_time()
        self._leases.renew()

    def _delete_old(self) -> None:
        retention.delete_old(self.services, stopping=self._stopping.is_set)

    def _sync(self) -> None:
        sync_all(self.services, due=self._sync_due, stopping=self._stopping.is_set)

    def _check_encoders(self) -> None:
        check_all(self.services, stopping=self._stopping.is_set)


class Periodic(threading.Thread):
    """A thread that calls `do` at once and then every `every_s` seconds.

    It logs errors, and ends when the device has failed.
    """

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
            except Exception as error:
                log.exception("cannot %s", self.name)
                if is_device_failure(error):
                    return
            if self._ended.wait(self._every_s):
                return

    def stop(self, wait_s: float = STOP_TIMEOUT_S) -> None:
        """Stop after the current call, for which it waits up to `wait_s`."""
        self._ended.set()
        if self.is_alive():
            self.join(wait_s)
