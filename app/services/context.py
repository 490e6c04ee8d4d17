"""The services that every use case takes as its first argument; `app.wiring` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from app.encoders.pool import EncoderPool
from app.heads.onnx.process import OnnxRunner
from app.maths.translators.translator import RowFlags, Translator
from app.services.image_lanes import ImageLanes
from app.services.lanes import Lanes
from app.services.work_slots import WorkSlots
from app.storage.blobs import BlobStore
from app.storage.cache import Cache
from app.storage.db import Database
from app.storage.name_cache import NameCache
from app.stores.addresses import StoreAddress
from app.stores.handles import StoreHandles

#: a worker loses its job when it has not renewed its lease for this long
LEASE_S = 30.0

#: most requests answered in threads at once; most of them wait for a slot or a database
ANSWER_THREADS = 128

#: most fits, evaluations and model loads that run at once in one process, and that wait for a slot:
#: each occupies one of the threads that answer requests
FITS, FITS_WAITING = 2, 6
EVALUATIONS, EVALUATIONS_WAITING = 2, 6
LOADS, LOADS_WAITING = 2, 14
#: how long a request waits for a slot
TURN_WAIT_S = 30.0

#: numbers that an answer may have for each vector that a request may have
ANSWER_NUMBERS_A_VECTOR = 2_048

#: most requests that wait for their inputs' vectors: three quarters of the threads
ENCODINGS = ANSWER_THREADS * 3 // 4

#: most requests that wait in a thread for a store
STORE_REQUESTS = ANSWER_THREADS // 4

#: most steps of reindexings that requests wait for: a step has no deadline, and holds a thread
STEPS = 8

#: most requests that wait to create a resource under a name deleted less than a second ago
MOST_WAITING_FOR_NAMES = 16


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


class DeviceAway(Exception):
    """The device cannot translate now. The CPU can."""


class TranslationDevice(Protocol):
    """A device that translates many vectors faster than the CPU. `lanes` wait for it."""

    lanes: Lanes

    def pays(self, translator: Translator, vectors: Tensor) -> bool:
        """Return whether the device is the faster way for these vectors."""
        ...

    def translate(
        self, id: str, translator: Translator, vectors: Tensor, out: Tensor
    ) -> RowFlags | None:
        """Translate vectors (n, d_x) into `out` (n, d_y), both on the CPU, and return the flags.

        Raises NonFinite, OutOfRange and DeviceAway.
        """
        ...

    def close(self) -> None:
        """Stop the lanes."""
        ...


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
    #: translates many vectors; None: the CPU does
    translation_device: TranslationDevice | None = None
    #: wakes idle workers when a job has been queued; never waits and never raises
    notify_workers: Callable[[], None] = lambda: None
    retention: Retention = field(default_factory=Retention)
    #: addresses of stores that the operator allows, by name
    store_addresses: Mapping[str, StoreAddress] = field(default_factory=dict)
    #: the stores that this process has opened
    stores: StoreHandles = field(default_factory=StoreHandles)
    #: how long to wait for a slot; None, in workers: without a limit
    turn_wait_s: float | None = TURN_WAIT_S
    _fits: WorkSlots = field(default_factory=lambda: WorkSlots("fits", FITS, FITS_WAITING))
    _evaluations: WorkSlots = field(
        default_factory=lambda: WorkSlots("evaluations", EVALUATIONS, EVALUATIONS_WAITING)
    )
    _loads: WorkSlots = field(
        default_factory=lambda: WorkSlots("encoder loads", LOADS, LOADS_WAITING)
    )
    #: tests and runs ONNX heads in other processes
    onnx: OnnxRunner = field(default_factory=OnnxRunner)
    #: decodes images
    images: ImageLanes = field(default_factory=ImageLanes)
    _settling: WorkSlots = field(
        default_factory=lambda: WorkSlots("requests for a deleted name", MOST_WAITING_FOR_NAMES, 0)
    )
    _verifications: WorkSlots = field(
        default_factory=lambda: WorkSlots("encoder verifications", 1, 2)
    )
    _encodings: WorkSlots = field(
        default_factory=lambda: WorkSlots("requests with inputs", ENCODINGS, 0)
    )
    _store_calls: WorkSlots = field(
        default_factory=lambda: WorkSlots("requests to stores", STORE_REQUESTS, 0)
    )
    _steps: WorkSlots = field(default_factory=lambda: WorkSlots("steps of reindexings", STEPS, 0))

    def close(self) -> None:
        """Close connections, threads and processes. Later calls reconnect or fail."""
        self.stores.close()
        self.lanes.close()
        if self.translation_device is not None:
            self.translation_device.close()
        self.images.close()
        self.encoders.close()
        self.onnx.close()
        self.db.close()
        self.cache.close()

    def fitting(self) -> AbstractContextManager[None]:
        """A slot for fitting a translator. Raises Overloaded when none becomes free."""
        return self._fits.take(self.turn_wait_s)

    def evaluating(self) -> AbstractContextManager[None]:
        """A slot for measuring a translation. Raises Overloaded when none becomes free."""
        return self._evaluations.take(self.turn_wait_s)

    def loading(self) -> AbstractContextManager[None]:
        """A slot for loading an encoder. Raises Overloaded when none becomes free."""
        return self._loads.take(self.turn_wait_s)

    def verifying(self) -> AbstractContextManager[None]:
        """A slot for comparing two encoders. Raises Overloaded when none becomes free."""
        return self._verifications.take(self.turn_wait_s)

    def settling(self) -> AbstractContextManager[None]:
        """A slot for waiting until a deleted name is free. Raises Overloaded when all are taken."""
        return self._settling.take(self.turn_wait_s)

    def encoding(self) -> AbstractContextManager[None]:
        """A slot for waiting for inputs' vectors. Raises Overloaded when all are taken."""
        return self._encodings.take(self.turn_wait_s)

    def calling_store(self) -> AbstractContextManager[None]:
        """A slot for waiting in a thread for a store. Raises Overloaded when all are taken."""
        return self._store_calls.take(self.turn_wait_s)

    def stepping(self) -> AbstractContextManager[None]:
        """A slot for a step of a reindexing. Raises Overloaded when all are taken."""
        return self._steps.take(self.turn_wait_s)

    @property
    def patient(self) -> bool:
        """Whether work waits for a slot without a limit, as in a worker."""
        return self.turn_wait_s is None
