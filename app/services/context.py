"""The services that every use case takes as its first argument; `app.wiring` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from threading import BoundedSemaphore

from app.encoders.pool import EncoderPool
from app.errors import Overloaded
from app.services.image_lanes import ImageLanes
from app.services.lanes import Lanes
from app.storage.blobs import BlobStore
from app.storage.cache import Cache
from app.storage.db import Database
from app.storage.name_cache import NameCache
from app.stores.handles import StoreHandles

#: a worker loses its job when it has not renewed its lease for this long
LEASE_S = 30.0

#: most requests answered in threads at once; most of them wait for a slot or a database
ANSWER_THREADS = 128

#: how long a request waits for a slot
TURN_WAIT_S = 30.0

#: numbers that an answer may have for each vector that a request may have
ANSWER_NUMBERS_A_VECTOR = 2_048

#: work that a process runs a limited number of times at once: its name in errors, the number, and
#: how many more wait. Each occupies one of the threads that answer requests
SLOTS = {
    "fits": (2, 6),
    "evaluations": (2, 6),
    "encoder loads": (2, 14),
    "encoder verifications": (1, 2),
    "requests with inputs": (ANSWER_THREADS * 3 // 4, 0),
    "requests to stores": (ANSWER_THREADS // 4, 0),
    "steps of reindexings": (8, 0),  # a step has no deadline
}


@dataclass(frozen=True)
class Limits:
    """The most that requests may ask for.

    vectors           vectors, inputs or anchors of one request
    input_characters  characters of one input text
    pool              items of one side of a bootstrap
    numbers           numbers in one answer: a few vectors can become gigabytes in a large space
    jobs              unfinished jobs of all projects together
    project_jobs      unfinished jobs of one project
    """

    vectors: int = 16_384
    input_characters: int = 32_768
    pool: int = 200_000
    numbers: int = ANSWER_NUMBERS_A_VECTOR * 16_384
    jobs: int = 10_000
    project_jobs: int = 1_000


@dataclass(frozen=True)
class Retention:
    """Days after which unused rows are deleted; 0: never.

    jobs_days         after a job ended
    audit_days        after the write that the audit row records
    translators_days  after the last use of a translator
    """

    jobs_days: int = 30
    audit_days: int = 365
    translators_days: int = 90


class WorkSlots:
    """Slots for one kind of work: `at_once` callers run, `waiting` more wait, others fail."""

    def __init__(self, what: str, at_once: int, waiting: int) -> None:
        self._busy = f"The server is busy: no further {what} can start now. Try again in 5 s."
        self._running = BoundedSemaphore(at_once)
        self._places = BoundedSemaphore(at_once + waiting)

    @contextmanager
    def take(self, wait_s: float | None) -> Iterator[None]:
        """Hold a slot, after waiting up to `wait_s`; None: without a limit. Raises Overloaded."""
        if not self._places.acquire(blocking=wait_s is None):
            raise Overloaded(self._busy, retry_after_s=5)
        try:
            if not self._running.acquire(timeout=wait_s):
                raise Overloaded(self._busy, retry_after_s=5)
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._places.release()


@dataclass(frozen=True)
class Services:
    db: Database
    blobs: BlobStore
    cache: Cache
    encoders: EncoderPool
    names: NameCache
    lanes: Lanes
    limits: Limits = field(default_factory=Limits)
    lease_s: float = LEASE_S
    #: the torch device of jobs
    device: str = "cpu"
    #: wakes idle workers when a job has been queued; never waits and never raises
    notify_workers: Callable[[], None] = lambda: None
    retention: Retention = field(default_factory=Retention)
    #: the stores that this process has opened
    stores: StoreHandles = field(default_factory=StoreHandles)
    #: how long to wait for a slot; None, in workers: without a limit
    turn_wait_s: float | None = TURN_WAIT_S
    _slots: Mapping[str, WorkSlots] = field(
        default_factory=lambda: {work: WorkSlots(work, *sizes) for work, sizes in SLOTS.items()}
    )
    #: the operator's folder of ONNX heads
    heads_dir: Path | None = None
    #: decodes images
    images: ImageLanes = field(default_factory=ImageLanes)

    def close(self) -> None:
        """Close connections, threads and processes. Later calls reconnect or fail."""
        self.stores.close()
        self.lanes.close()
        self.images.close()
        self.encoders.close()
        self.db.close()
        self.cache.close()

    def take_slot(self, work: str) -> AbstractContextManager[None]:
        """A slot for work that SLOTS names. Raises Overloaded when none becomes free."""
        return self._slots[work].take(self.turn_wait_s)

    #: slots for fitting or measuring a translator, and for loading or comparing encoders
    fitting = partialmethod(take_slot, "fits")
    evaluating = partialmethod(take_slot, "evaluations")
    loading = partialmethod(take_slot, "encoder loads")
    verifying = partialmethod(take_slot, "encoder verifications")
    #: slots for waiting for inputs' vectors, for a store in a thread, for a step of a reindexing
    encoding = partialmethod(take_slot, "requests with inputs")
    calling_store = partialmethod(take_slot, "requests to stores")
    stepping = partialmethod(take_slot, "steps of reindexings")

    @property
    def patient(self) -> bool:
        """Whether work waits for a slot without a limit, as in a worker."""
        return self.turn_wait_s is None
