"""A worker: threads that run jobs, and one that takes care of them. In the API's process, or in one of its own."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from threading import Event

from dramatiq import Worker as Threads

from app import telemetry
from app.errors import DatabaseUnavailable
from app.services import jobs, spaces, writes
from app.services.context import Services
from app.storage.queue import Queue, QueueAway
from workers.actors import declare

log = logging.getLogger("anchorage.worker")

#: how long an idle thread waits before it looks again
POLL_MS = 100

#: how long a stop waits for running jobs' next step, at which they are handed back
STOP_TIMEOUT_MS = 5_000

#: leases are renewed so many times in their life
RENEWALS = 3

#: how often the caretaker looks for jobs whose worker or message is lost
SWEEP_S = 2.0

#: how often requests that nobody repeats any more are forgotten
FORGET_S = 3600


class Worker:
    """Runs jobs in threads of this process."""

    def __init__(self, services: Services, queue: Queue, *, threads: int = 1) -> None:
        self.services = replace(services, enqueue=queue.put, turn_wait_s=None)
        self._queue = queue
        self._threads = Threads(queue.broker, worker_threads=threads, worker_timeout=POLL_MS)
        self._threads.queue_prefetch = threads  # a job that waits behind another here could run elsewhere
        self._stopping = Event()
        self._leases = jobs.Leases(self.services)
        self._caretaker = Caretaker(self.services, queue, self._leases)
        declare(queue.broker, self.services, self._leases, self._stopping.is_set)

    @property
    def alive(self) -> bool:
        threads = self._threads.workers
        return bool(threads) and self._caretaker.is_alive() and all(thread.is_alive() for thread in threads)

    def start(self) -> None:
        """Begin. The first sweep takes up what an earlier process left."""
        self._threads.start()
        self._caretaker.start()

    def stop(self) -> None:
        self._stopping.set()
        self._threads.stop(timeout=STOP_TIMEOUT_MS)
        try:
            self._leases.hand_back()  # jobs in the middle of a long step; what they still do is not recorded
        except DatabaseUnavailable as error:
            log.warning("running jobs are not handed back, their leases will end: %s", error.detail)
        self._caretaker.stop()
        self._queue.broker.close()


class Caretaker(threading.Thread):
    """Renews this process's leases, and hands to the queue again what nobody runs."""

    def __init__(self, services: Services, queue: Queue, leases: jobs.Leases) -> None:
        super().__init__(name="caretaker", daemon=True)
        self._services = services
        self._queue = queue
        self._leases = leases
        self._ended = Event()
        self._incarnation: str | None = None
        self._forget_at = 0.0

    def run(self) -> None:
        pause = min(SWEEP_S, self._services.lease_s / RENEWALS)
        while True:
            telemetry.CARETAKER.set_to_current_time()
            for duty in (self._leases.renew, self._sweep, self._forget):
                try:
                    duty()
                except (DatabaseUnavailable, QueueAway) as error:
                    log.warning("%s: %s", duty.__name__.strip("_"), error)
                except Exception:
                    log.exception("%s", duty.__name__.strip("_"))
            if self._ended.wait(pause):
                return

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()

    def _forget(self) -> None:
        """Once in a while: requests that nobody repeats any more, and blobs that nothing names, such as ended jobs' inputs."""
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + FORGET_S
            writes.forget_requests(self._services)
            spaces.sweep_blobs(self._services)

    def _sweep(self) -> None:
        incarnation, empty = self._queue.incarnation(), self._queue.waiting() == 0
        # A process that has just started cannot know what was there before: what waits in the queue speaks for its memory.
        lost = empty if self._incarnation is None else incarnation != self._incarnation
        count = jobs.sweep(self._services, queue_lost=lost, queue_empty=empty)
        self._incarnation = incarnation
        if count:
            telemetry.SWEPT_JOBS.inc(count)
            log.info("handed %d jobs to the queue again", count)
