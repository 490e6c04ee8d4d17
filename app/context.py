"""What every use case takes: the services, which `app.wiring` makes, and for whom it works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.db.blobs import BlobStore
from app.db.budget import TextBudget
from app.db.cache import Cache, NameCache
from app.db.session import Database
from app.encoders.models.pool import EncoderPool
from app.lanes import Lanes
from app.stores.handles import StoreHandles
from app.turns import SingleFlight, Turns
from app.types import Scope

if TYPE_CHECKING:
    from app.db import tables

#: a worker loses its job when it has not renewed its lease for this long
LEASE_S = 30.0

#: the longest fit that a request of the API makes itself, in seconds of one core. `auto` costs 1 s
#: with 1,000 anchors of 768 dimensions, and 10 s with 6,000
REQUEST_FIT_S = 10.0

#: how long a request waits for its turn
TURN_WAIT_S = 30.0

#: numbers that an answer may have for each vector that a request may have
ANSWER_NUMBERS_A_VECTOR = 2_048

#: bytes of a number in an answer: as float32, and as text or base64
ANSWER_NUMBER_BYTES = 16


@dataclass(frozen=True)
class Limits:
    """The most that requests may ask for.

    vectors           vectors, inputs or anchors of one request
    input_characters  characters of one input text
    pool              items of one side of a bootstrap
    numbers           numbers in one answer: a few vectors can become gigabytes in a large space
    native_remote     addresses of stores whose texts may be sent to remote encoders
    """

    vectors: int = 16_384
    input_characters: int = 32_768
    pool: int = 200_000
    numbers: int = ANSWER_NUMBERS_A_VECTOR * 16_384
    native_remote: frozenset[str] = frozenset()


class WorkTurns:
    """The turns of one process at what requests need. Jobs need none: workers have few threads."""

    def __init__(self) -> None:
        self.fits = Turns("fits", 3, 12)
        self.evaluations = Turns("evaluations", 3, 12)
        self.loads = Turns("loads of encoders", 2, 14)
        self.checks = Turns("checks of encoders", 2, 4)
        self.inputs = Turns("requests with inputs", 128)
        self.stores = Turns("requests that wait for stores", 64)
        self.steps = Turns("steps of migrations", 8)  # a step has no deadline


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
    #: the longest fit of a request, in seconds of one core; a job makes longer ones. None: no
    #: limit, as in workers and commands
    request_fit_s: float | None = None
    #: the texts that are embedded for native scores
    native_budget: TextBudget = field(default_factory=TextBudget)
    #: the stores that this process has opened
    stores: StoreHandles = field(default_factory=StoreHandles)
    turns: WorkTurns = field(default_factory=WorkTurns)
    #: how long a request waits for its turn; None: this is a worker, whose jobs need none
    turn_wait_s: float | None = TURN_WAIT_S
    #: of equal requests, for a long fit or vectors of the same texts, one works
    one_of_equal: SingleFlight = field(default_factory=SingleFlight)
    #: the operator's folder of ONNX heads
    heads_dir: Path | None = None

    def close(self) -> None:
        """Close connections, threads and processes. Later calls reconnect or fail."""
        self.stores.close()
        self.lanes.close()
        self.encoders.close()
        self.db.close()
        self.cache.close()

    def take(self, turns: Turns, project: str) -> AbstractContextManager[None]:
        """Hold one of these turns. Raises TooMuchAtOnce and Overloaded."""
        return nullcontext() if self.turn_wait_s is None else turns.take(project, self.turn_wait_s)


@dataclass(frozen=True)
class Caller:
    """The caller of a request. Without keys: the project `default`, with every scope.

    project     owns everything that the request reads and writes
    key_id      the caller's API key; None without one
    """

    project: str = "default"
    key_id: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)

    def may(self, scope: Scope) -> bool:
        """Whether one of the scopes is this scope or includes it."""
        order = list(Scope)
        return scope in self.scopes or any(
            order.index(own) >= order.index(scope) for own in self.scopes
        )


@dataclass(frozen=True)
class RequestContext(Caller):
    """One request of a client, a job, or a command.

    origin          the source of a write in the audit log: the request's id, `job <id>`, or the
                    command line
    reserve_bytes   reserves memory for an answer, until the request ends. Raises Overloaded and
                    TooMuchAtOnce. A job's answer has no reader that could be slow: it reserves none
    on_departure    registers a function to call when the client leaves before its answer
    """

    origin: str = "command line"
    reserve_bytes: Callable[[int], None] = lambda size: None
    on_departure: Callable[[Callable[[], object]], None] = lambda call: None

    @classmethod
    def of_job(cls, job: tables.JobRow) -> RequestContext:
        """The context in which a worker runs the job."""
        return cls(project=job.project, origin=f"job {job.id}")
