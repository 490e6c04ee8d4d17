"""A worker: a thread that runs jobs, and threads that renew leases, delete old rows, check encoders
and synchronise stores.

It runs in the process of the API, or in a separate one.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import partial
from threading import Event

from app.anchors.embedding import run_embed
from app.bootstrap.run import run_bootstrap
from app.context import Services
from app.encoders.check import check_all
from app.errors import DatabaseUnavailable
from app.jobs import worker as runner
from app.jobs.periodic import Periodic
from app.jobs.worker import Leases
from app.moves.run import run_migration
from app.moves.steps import complete_switches
from app.moves.sync import sync_all
from app.ops import retention
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

#: how often writes to stores that are migrated are brought to the other side
SYNC_S = 3.0

#: how long a stop waits for a store, an encoder or a deletion, which the next worker continues
OTHERS_STOP_S = 0.5


class Worker:
    """Runs jobs in a thread of this process. `wakeup` is set when this process queues a job."""

    def __init__(self, services: Services, wakeup: Event) -> None:
        self.services = services = replace(
            services, notify_workers=wakeup.set, turn_wait_s=None, request_fit_s=None
        )
        self._wakeup = wakeup
        self._stopping = Event()
        self._leases = Leases(services)
        self._jobs = threading.Thread(target=self._work, name="jobs", daemon=True)
        stopping = self._stopping.is_set
        renew_s = min(RENEW_S, services.lease_s / RENEWALS)
        self._renewals = Periodic("renew leases", renew_s, self._leases.renew)
        self._others = [
            Periodic(name, every_s, partial(call, services, stopping=stopping))
            for name, every_s, call in (
                ("complete switches", SYNC_S, complete_switches),
                ("synchronise stores", SYNC_S, partial(sync_all, due={})),
                ("check encoders", CHECK_ENCODERS_S, check_all),
                ("delete old rows", DELETE_OLD_S, retention.delete_old),
            )
        ]

    @property
    def alive(self) -> bool:
        """Return whether every thread runs. One ends when the device has failed."""
        return all(each.is_alive() for each in (self._jobs, self._renewals, *self._others))

    def start(self) -> None:
        """Start all threads."""
        for thread in (self._renewals, *self._others, self._jobs):
            thread.start()

    def stop(self) -> None:
        """Hand a running job back, at its next step or after STOP_TIMEOUT_S, and stop."""
        self._stopping.set()
        self._wakeup.set()
        if self._jobs.is_alive():
            self._jobs.join(STOP_TIMEOUT_S)
        try:
            # This job is in a long step, whose result is not recorded.
            self._leases.hand_back()
        except DatabaseUnavailable as error:
            log.warning(
                "the running job could not be handed back and restarts when its lease expires: %s",
                error.detail,
            )
        for each in self._others:
            each.stop(OTHERS_STOP_S)
        self._renewals.stop(STOP_TIMEOUT_S)

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
