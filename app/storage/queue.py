"""The queue carries job ids to workers, and may lose or repeat them: job truth is a SQL row.

dramatiq brings them: on Redis between processes, in memory where the API and the worker are one process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, cast
from uuid import uuid4

from dramatiq import Broker, Message
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import BrokerConnectionError
from redis import Redis
from redis.exceptions import RedisError

from app.storage.connect import AWAY_S

QUEUE = "jobs"
ACTOR = "run_job"

#: a worker that has not been heard of for so long gives back the messages it took
HEARTBEAT_MS = 15_000

#: of a million calls, so many look for such workers
MAINTENANCE_CHANCE = 50_000


class QueueAway(Exception):
    """The queue does not answer now."""


class Queue(Protocol):
    """What the service needs of a queue."""

    @property
    def broker(self) -> Broker:
        """Where dramatiq's workers find it."""

    def put(self, job_id: str, pause_s: float = 0.0) -> None:
        """Hand a job's id to a worker, after a pause. Raises QueueAway."""

    def waiting(self) -> int:
        """How many ids no worker has taken yet. Raises QueueAway."""

    def incarnation(self) -> str:
        """The name of this memory: another one means that the queue has lost what it carried. Raises QueueAway."""


class MemoryQueue:
    """Within one process, which hands over to its successor through the database."""

    def __init__(self) -> None:
        self.broker = StubBroker(middleware=[])
        self.broker.emit_after("process_boot")
        self.broker.declare_queue(QUEUE)
        self._incarnation = uuid4().hex

    def put(self, job_id: str, pause_s: float = 0.0) -> None:
        self.broker.enqueue(_message(job_id), delay=int(pause_s * 1000) or None)

    def waiting(self) -> int:
        return int(self.broker.queues[QUEUE].qsize())

    def incarnation(self) -> str:
        return self._incarnation


class RedisQueue:
    """Between processes."""

    def __init__(self, client: Redis, prefix: str) -> None:
        self._client = client
        self._answers = False
        self._away_until = 0.0
        self._doubt = threading.Lock()
        self._namespace = f"{prefix}:queue"
        self.broker = RedisBroker(  # type: ignore[no-untyped-call]
            client=client,
            namespace=self._namespace,
            middleware=[],
            heartbeat_timeout=HEARTBEAT_MS,
            maintenance_chance=MAINTENANCE_CHANCE,
        )
        self.broker.declare_queue(QUEUE)

    def put(self, job_id: str, pause_s: float = 0.0) -> None:
        with self._reached():
            self.broker.enqueue(_message(job_id), delay=int(pause_s * 1000) or None)

    def waiting(self) -> int:
        with self._reached():
            return self._client.llen(f"{self._namespace}:{QUEUE}")

    def incarnation(self) -> str:
        name = f"{self._namespace}:incarnation"
        with self._reached():
            self._client.set(name, uuid4().hex, nx=True)
            return str(cast("bytes | None", self._client.get(name)))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """While it is not known that Redis answers, one thread asks and the others wait for what it learns."""
        with nullcontext() if self._answers else self._doubt:
            if time.monotonic() < self._away_until:
                raise QueueAway("Redis did not answer a moment ago")
            try:
                yield
            except (RedisError, BrokerConnectionError) as error:
                self._answers, self._away_until = False, time.monotonic() + AWAY_S
                raise QueueAway(str(error)) from error
            self._answers = True


def _message(job_id: str) -> Message[None]:
    return Message(queue_name=QUEUE, actor_name=ACTOR, args=(job_id,), kwargs={}, options={})
