"""What every use case needs, passed in by whoever wires the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import BoundedSemaphore

from app.encoders.registry import EncoderPool
from app.errors import Overloaded
from app.storage.blobs import BlobStore
from app.storage.cache import Cache
from app.storage.db import Database

#: a running job belongs to its worker for this long after the worker's last sign of life
LEASE_S = 30.0

#: fits at once in one process, and how long a request waits for its turn: it occupies a thread that could answer others
FITS = 2
FITS_WAITING = 6
FIT_WAIT_S = 30.0
BUSY_FITTING = "the server is fitting as many translators as it can"


@dataclass(frozen=True)
class Limits:
    """vectors  most vectors, inputs or anchors of one request
    input_characters  longest input text
    numbers  most numbers in one answer, so that few vectors of a small encoder cannot ask for gigabytes
    pool     most items of one side of a bootstrap: its plan is a dense table
    jobs     most unfinished jobs of all projects together
    project_jobs  most unfinished jobs of one project
    """

    vectors: int = 16_384
    input_characters: int = 32_768
    pool: int = 4_096
    numbers: int = 2**25
    jobs: int = 10_000
    project_jobs: int = 1_000


@dataclass(frozen=True)
class Services:
    db: Database
    blobs: BlobStore
    cache: Cache
    encoders: EncoderPool
    limits: Limits = field(default_factory=Limits)
    lease_s: float = LEASE_S
    #: where long work is computed: a torch device
    device: str = "cpu"
    #: hands a job's id to a worker, after so many seconds; raises QueueAway
    enqueue: Callable[[str, float], None] = lambda job_id, pause_s: None
    #: how long to wait for a turn at heavy work; None: for as long as it takes
    fit_wait_s: float | None = FIT_WAIT_S
    _fits: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(FITS))
    _places: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(FITS + FITS_WAITING))

    def close(self) -> None:
        """Give connections back. What comes after fails or connects anew."""
        self.db.close()
        self.cache.close()

    @contextmanager
    def heavy(self) -> Iterator[None]:
        """A turn at work that keeps all cores busy. Raises Overloaded when none comes."""
        # A place among those who fit or wait; a worker's threads are few, and may wait for as long as it takes.
        if not self._places.acquire(blocking=self.fit_wait_s is None):
            raise Overloaded(BUSY_FITTING, retry_after_s=5)
        try:
            if not self._fits.acquire(timeout=self.fit_wait_s):
                raise Overloaded(BUSY_FITTING, retry_after_s=5)
            try:
                yield
            finally:
                self._fits.release()
        finally:
            self._places.release()


@dataclass(frozen=True)
class Repeat:
    """A creating request that its client may send again: the Idempotency-Key, and what the request was."""

    key: str
    fingerprint: str


@dataclass(frozen=True)
class Origin:
    """On whose behalf this context works, for the audit log: the key, and a request's id, `job <id>` or the command line."""

    text: str = "command line"
    key_id: str | None = None
    repeat: Repeat | None = None
    #: the row id and the claim of this try in `idempotent_requests`, while it makes what it is asked for
    claim: tuple[str, str] | None = None


#: set where work comes in: by the HTTP edge, the worker and the command line
origin: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039 -- it is frozen
