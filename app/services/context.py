"""What every use case needs, passed in by whoever wires the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import BoundedSemaphore

from app.encoders.pool import EncoderPool
from app.heads.onnx.process import OnnxRunner
from app.services.lanes import Lanes
from app.services.work_slots import WorkSlots
from app.storage.blobs import BlobStore
from app.storage.cache import Cache
from app.storage.db import Database
from app.storage.name_cache import NameCache

#: a running job belongs to its worker for this long after the worker's last sign of life
LEASE_S = 30.0

#: requests answered in threads at once; most of them only wait
THREADS = 128

#: fits, evaluations and loads of models, at once in one process, and how many requests more wait for their turn, for how long:
#: each occupies one of the threads that could answer others
FITS, FITS_WAITING = 2, 6
EVALUATIONS, EVALUATIONS_WAITING = 2, 6
LOADS, LOADS_WAITING = 2, 14
TURN_WAIT_S = 30.0

#: requests that decode images at once: one may take half a gigabyte while it does
DECODINGS = 2

#: requests that wait for their inputs' vectors: three quarters of the threads
ENCODINGS = THREADS * 3 // 4

#: creating requests that wait for a name that was deleted less than a second ago
SETTLING = 16


@dataclass(frozen=True)
class Limits:
    """vectors  most vectors, inputs or anchors of one request
    input_characters  longest input text
    numbers  most numbers in one answer, so that few vectors of a small encoder cannot ask for gigabytes
    pool     most items of one side of a bootstrap
    bootstrap_bytes  memory of a bootstrap for tables that grow with both pools together
    jobs     most unfinished jobs of all projects together
    project_jobs  most unfinished jobs of one project
    """

    vectors: int = 16_384
    input_characters: int = 32_768
    pool: int = 200_000
    bootstrap_bytes: int = 256 * 2**20
    numbers: int = 2**25
    jobs: int = 10_000
    project_jobs: int = 1_000


@dataclass(frozen=True)
class Retention:
    """For how many days rows are kept that nobody needs any more; 0: for ever.

    jobs_days         after a job ended
    audit_days        after the write
    translators_days  after a translator was last used
    """

    jobs_days: int = 30
    audit_days: int = 365
    translators_days: int = 90


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
    #: where long work is computed: a torch device
    device: str = "cpu"
    #: wakes idle workers, when a job was queued; never waits and never raises
    notify_workers: Callable[[], None] = lambda: None
    retention: Retention = field(default_factory=Retention)
    #: how long to wait for a turn at heavy work; None: for as long as it takes
    turn_wait_s: float | None = TURN_WAIT_S
    _fits: WorkSlots = field(
        default_factory=lambda: WorkSlots("fitting translators,", FITS, FITS_WAITING)
    )
    _evaluations: WorkSlots = field(
        default_factory=lambda: WorkSlots(
            "evaluating translations,", EVALUATIONS, EVALUATIONS_WAITING
        )
    )
    _loads: WorkSlots = field(
        default_factory=lambda: WorkSlots("loading encoders,", LOADS, LOADS_WAITING)
    )
    #: tries and runs ONNX heads in other processes
    onnx: OnnxRunner = field(default_factory=OnnxRunner)
    #: taken by whoever decodes images
    decoding: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(DECODINGS))
    _settling: WorkSlots = field(
        default_factory=lambda: WorkSlots("waiting for deleted names,", SETTLING, 0)
    )
    _verifications: WorkSlots = field(
        default_factory=lambda: WorkSlots("verifying encoders,", 1, 2)
    )
    _encodings: WorkSlots = field(
        default_factory=lambda: WorkSlots("encoding inputs,", ENCODINGS, 0)
    )

    def close(self) -> None:
        """Give connections back. What comes after fails or connects anew."""
        self.lanes.close()
        self.encoders.close()
        self.onnx.close()
        self.db.close()
        self.cache.close()

    def fitting(self) -> AbstractContextManager[None]:
        """A turn at fitting a translator. Raises Overloaded when none comes."""
        return self._fits.take(self.turn_wait_s)

    def evaluating(self) -> AbstractContextManager[None]:
        """A turn at measuring a translation. Raises Overloaded when none comes."""
        return self._evaluations.take(self.turn_wait_s)

    def loading(self) -> AbstractContextManager[None]:
        """A turn at loading an encoder. Raises Overloaded when none comes."""
        return self._loads.take(self.turn_wait_s)

    def verifying(self) -> AbstractContextManager[None]:
        """A turn at finding out how an encoder differs. Raises Overloaded when none comes."""
        return self._verifications.take(self.turn_wait_s)

    def settling(self) -> AbstractContextManager[None]:
        """A thread to wait in until a deleted name is free. Raises Overloaded when there is none."""
        return self._settling.take(self.turn_wait_s)

    def encoding(self) -> AbstractContextManager[None]:
        """A thread to wait in for inputs' vectors. Raises Overloaded when there is none."""
        return self._encodings.take(self.turn_wait_s)

    @property
    def patient(self) -> bool:
        """Whether work here waits for as long as it takes: a worker's does."""
        return self.turn_wait_s is None


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

#: takes room for an answer of so many bytes, which its request gives back; raises Overloaded and TooMuchAtOnce. Set by the HTTP
#: edge: what a job makes goes to nobody who might not read it
answer_bytes: ContextVar[Callable[[int], None]] = ContextVar(
    "answer_bytes", default=lambda size: None
)

#: calls back when the client of this request leaves before its answer. Set by the HTTP edge
on_departure: ContextVar[Callable[[Callable[[], object]], None]] = ContextVar(
    "on_departure", default=lambda call: None
)
