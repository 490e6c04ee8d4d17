"""The worker inside the API process: the same actors on an in-memory broker."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

from dramatiq import Worker

from app.services import jobs
from app.services.context import Services
from app.storage.queue import memory_broker
from workers.actors import declare

#: jobs share the machine with requests
THREADS = 1

#: how long an idle worker waits before it looks whether it should stop
POLL_MS = 100

#: how long a stop waits for a running job's next step, at which it is handed back
STOP_TIMEOUT_MS = 5_000


class EmbeddedWorker:
    """Runs jobs in threads of this process. `services` is what requests should use: it can enqueue."""

    def __init__(self, services: Services) -> None:
        self._broker = memory_broker()
        self._worker = Worker(self._broker, worker_threads=THREADS, worker_timeout=POLL_MS)
        self._stopping = Event()
        actor = declare(self._broker, services, self._stopping.is_set)

        def enqueue(job_id: str) -> None:
            actor.send(job_id)

        self.services = replace(services, enqueue=enqueue)

    @property
    def alive(self) -> bool:
        threads = self._worker.workers
        return bool(threads) and all(thread.is_alive() for thread in threads)

    def start(self) -> int:
        """Begin, with the jobs that an earlier process left unfinished; returns how many there were."""
        self._worker.start()
        return jobs.recover(self.services)

    def stop(self) -> None:
        self._stopping.set()
        self._worker.stop(timeout=STOP_TIMEOUT_MS)
        jobs.hand_back(self.services)  # a job in the middle of a long step; what it still does is not recorded
        self._broker.close()
