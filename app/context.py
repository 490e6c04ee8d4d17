"""The services that every use case takes as its first argument; `app.wiring` makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path

from app.db.blobs import BlobStore
from app.db.cache import Cache
from app.db.name_cache import NameCache
from app.db.session import Database
from app.encoders.models.image_lanes import ImageLanes
from app.encoders.models.pool import EncoderPool
from app.errors import Overloaded
from app.lanes import Lanes
from app.single_flight import SingleFlight
from app.stores.handles import StoreHandles

#: a worker loses its job when it has not renewed its lease for this long
LEASE_S = 30.0

#: most requests answered in threads at once; most of them wait for a slot or a database
ANSWER_THREADS = 128

#: the longest fit that a request of the API makes itself, in seconds of one core. `auto` costs 1 s
#: with 1,000 anchors of 768 dimensions, and 10 s with 6,000
REQUEST_FIT_S = 10.0

#: most requests of a project that wait for fits or make them; each occupies a thread
FIT_PLACES = 6

#: how long a request waits for a slot
TURN_WAIT_S = 30.0

#: numbers that an answer may have for each vector that a request may have
ANSWER_NUMBERS_A_VECTOR = 2_048

#: work that a process runs a limited number of times at once: its name in errors, the number, and
#: how many more wait. Each occupies one of the threads that answer requests
SLOTS = {
    "fits": (4, 6),  # one of each project, and six that wait
    "evaluations": (4, 6),
    "encoder loads": (2, 14),
    "encoder checks": (1, 2),
    "requests with inputs": (ANSWER_THREADS * 3 // 4, 0),
    "requests to stores": (ANSWER_THREADS // 4, 0),
    "steps of migrations": (8, 0),  # a step has no deadline
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
    native_texts_a_minute, native_texts_a_day
                      texts of one project that are embedded for native scores
    native_remote     addresses of stores whose texts may be sent to remote encoders for that
    """

    vectors: int = 16_384
    input_characters: int = 32_768
    pool: int = 200_000
    numbers: int = ANSWER_NUMBERS_A_VECTOR * 16_384
    jobs: int = 10_000
    project_jobs: int = 1_000
    native_texts_a_minute: int = 6_000
    native_texts_a_day: int = 500_000
    native_remote: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Retention:
    """Days after which unused rows are deleted; 0: never.

    jobs_days         after a job ended
    audit_days        after the write that the audit row records
    translators_days  after the last use of a translator
    native_bytes      of stored native vectors, above which the oldest are deleted
    """

    jobs_days: int = 30
    audit_days: int = 365
    translators_days: int = 90
    native_bytes: int = 2**30


class WorkSlots:
    """Slots for one kind of work: `at_once` callers run, `waiting` more wait, others fail.

    Callers may name a project: it holds one slot at a time, `waiting` counts its own callers, and
    the next slot is for the project that was served longest ago.
    """

    def __init__(self, what: str, at_once: int, waiting: int) -> None:
        self._busy = f"The server is busy: no further {what} can start now. Try again in 5 s."
        self._at_once, self._max_waiting = at_once, waiting
        self._running: list[str | None] = []
        self._waiting: list[_Place] = []
        #: the turn in which each project was last served
        self._served: dict[str | None, int] = {}
        self._turn = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, wait_s: float | None, project: str | None = None) -> Iterator[None]:
        """Hold a slot, after waiting up to `wait_s`; None: without a limit. Raises Overloaded."""
        with self._changed:
            self._wait(_Place(project), wait_s)
            self._running.append(project)
            self._turn += 1
            self._served[project] = self._turn
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(project)
                self._changed.notify_all()

    def _wait(self, place: _Place, wait_s: float | None) -> None:
        """Return when it is this place's turn."""
        ahead = sum(each.project == place.project for each in self._waiting)
        self._waiting.append(place)
        try:
            if self._next() is place:
                return
            if wait_s is not None and ahead >= self._max_waiting:
                raise Overloaded(self._busy, retry_after_s=5)
            if not self._changed.wait_for(lambda: self._next() is place, wait_s):
                raise Overloaded(self._busy, retry_after_s=5)
        finally:
            self._waiting.remove(place)

    def _next(self) -> _Place | None:
        if len(self._running) >= self._at_once:
            return None
        served = {project for project in self._running if project is not None}
        places = (each for each in self._waiting if each.project not in served)
        return min(places, key=lambda each: self._served.get(each.project, 0), default=None)


@dataclass(frozen=True, eq=False)
class _Place:
    """A place in the queue of a caller, who may work for a project."""

    project: str | None


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
    #: the longest fit of a request, in seconds of one core; a job makes longer ones. None: no
    #: limit, as in workers and commands
    request_fit_s: float | None = None
    #: the stores that this process has opened
    stores: StoreHandles = field(default_factory=StoreHandles)
    #: how long to wait for a slot; None, in workers: without a limit
    turn_wait_s: float | None = TURN_WAIT_S
    _slots: Mapping[str, WorkSlots] = field(
        default_factory=lambda: {work: WorkSlots(work, *sizes) for work, sizes in SLOTS.items()}
    )
    _fit_places: dict[str, WorkSlots] = field(default_factory=dict)
    #: of equal requests for a long fit, one looks for its job or queues one
    fit_requests: SingleFlight = field(default_factory=SingleFlight)
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

    def take_turn(self, work: str, project: str) -> AbstractContextManager[None]:
        """A slot of a project, one at a time. Raises Overloaded when none becomes free.

        Jobs take none: the worker's threads limit them, and a request does not wait for a job.
        """
        if self.patient:
            return nullcontext()
        return self._slots[work].take(self.turn_wait_s, project)

    def take_fit_place(self, project: str) -> AbstractContextManager[None]:
        """One of the project's FIT_PLACES. Jobs take none. Raises Overloaded at once."""
        if self.patient:
            return nullcontext()
        places = WorkSlots("fits of this project", FIT_PLACES, 0)
        return self._fit_places.setdefault(project, places).take(0.0)

    #: slots for fitting or measuring a translator
    fitting = partialmethod(take_turn, "fits")
    evaluating = partialmethod(take_turn, "evaluations")
    #: slots for loading or comparing encoders
    loading = partialmethod(take_slot, "encoder loads")
    checking = partialmethod(take_slot, "encoder checks")
    #: slots for waiting for inputs' vectors, for a store in a thread, for a step of a migration
    encoding = partialmethod(take_slot, "requests with inputs")
    calling_store = partialmethod(take_slot, "requests to stores")
    stepping = partialmethod(take_slot, "steps of migrations")

    @property
    def patient(self) -> bool:
        """Whether work waits for a slot without a limit, as in a worker."""
        return self.turn_wait_s is None
