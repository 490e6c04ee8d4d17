"""The progress of a running job: steps, checkpoints, and why it stops."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from app.errors import (
    BlobMissing,
    DatabaseUnavailable,
    StorageUnavailable,
)
from app.services.context import Services
from app.storage import tables
from app.storage.queries import jobs

log = logging.getLogger("anchorage.jobs")

#: progress is written at most this often
PROGRESS_EVERY_S = 0.25

#: a checkpoint is written at most this often, and takes at most this share of a job's time
CHECKPOINT_EVERY_S = 2.0
CHECKPOINT_SHARE = 0.1

#: how the tensors of a job's state are told from the others in its checkpoint
STATE_PREFIX = "state."


class Cancelled(Exception):
    """Raised inside a job whose cancellation was asked for; not an error of the service."""


class HandedBack(Exception):
    """Raised inside a job whose worker is asked to stop: the job waits for the next one."""


class LeaseLost(Exception):
    """Raised inside a job that another worker has taken over: what this one still does is not recorded."""


class Progress:
    """What a running job tells of itself: how far it is, and where it stands. Here it learns that it should stop.

    Everything is recorded under the job's lease. A database or a disk that is away is no reason to stop.
    """

    def __init__(
        self, services: Services, job: tables.JobRow, lease: str, stopping: Callable[[], bool]
    ) -> None:
        self._services = services
        self._job_id = job.id
        self._lease = lease
        self._stopping = stopping
        self._told: dict[str, Any] = {}
        #: what a try before this one told last, for one that goes on from where that stood
        self._before = {
            name: value for name, value in job.progress.items() if name not in ("done", "total")
        }
        self._facts: dict[str, Any] = {}
        self._done = 0
        self._checkpoint = job.checkpoint
        self._asked_at = self._due_at = -math.inf
        #: the first checkpoint beyond this step is kept at once: with it the try has got further than any before
        self._beyond: float = job.furthest
        #: the last state that was not kept, and its step
        self._skipped: tuple[int, Mapping[str, Tensor]] | None = None
        #: this try began at a checkpoint, and has kept no other since
        self.stuck = False

    def __call__(self, done: int, total: int, extra: Mapping[str, Any] | None = None) -> None:
        """`done` steps of `total`, and what else a reader wants to know. Cheap: it may be called at every step and between.

        A step that tells less than the one before, because it is only a sign of life, takes nothing back.
        Raises HandedBack, Cancelled, LeaseLost.
        """
        if self._stopping():
            if self._skipped is not None:
                self._keep(*self._skipped)
            raise HandedBack
        self._done = max(done, self._done)
        self._facts.update(extra or {})
        now = null_nonfinite({"done": self._done, "total": total, **self._facts})
        ended = done >= total and now != self._told
        if ended or time.monotonic() - self._asked_at >= PROGRESS_EVERY_S:
            self._asked_at = time.monotonic()
            self._tell(now)

    def checkpoint(self, done: int, state: Mapping[str, Tensor]) -> None:
        """Keep where the job stands after `done` steps, now and then: a later try goes on from the last one. Raises LeaseLost.

        The first state that is further on than in any try before is kept in any case, and the last one before a worker stops.
        """
        begun = time.monotonic()
        if not (done > self._beyond or begun >= self._due_at or self._stopping()):
            self._skipped = (done, state)
            return
        self._skipped = None
        if done > self._beyond:
            self._beyond = math.inf
        self._keep(done, state)
        now = time.monotonic()
        self._due_at = now + max(CHECKPOINT_EVERY_S, (now - begun) / CHECKPOINT_SHARE)

    def resume(self) -> dict[str, Tensor] | None:
        """The state that an earlier try kept last; None without one, or when it cannot be read: the job begins anew."""
        if self._checkpoint is None:
            return None
        try:
            kept = self._services.blobs.get(self._checkpoint)
        except (StorageUnavailable, BlobMissing, SafetensorError) as error:
            log.warning("the checkpoint cannot be read, the job begins anew: %s", error)
            return None
        self.stuck = True
        self._done, self._facts = int(kept["done"]), self._before
        return {
            name.removeprefix(STATE_PREFIX): tensor
            for name, tensor in kept.items()
            if name.startswith(STATE_PREFIX)
        }

    def _tell(self, now: dict[str, Any]) -> None:
        try:
            with self._services.db.transaction() as session:
                if now != self._told:
                    jobs.change_leased(session, self._lease, progress=now)
                asked = jobs.asked_to_stop(session, self._lease)
        except DatabaseUnavailable as error:
            log.warning("progress not recorded: %s", error.detail)
            return
        self._told = now
        if asked is None:
            raise LeaseLost
        if asked:
            raise Cancelled

    def _keep(self, done: int, state: Mapping[str, Tensor]) -> None:
        try:
            digest = self._services.blobs.put(self._named(done, state))
            if digest == self._checkpoint:
                return
            with self._services.db.transaction() as session:
                held = jobs.keep_checkpoint(session, self._lease, digest, done=done)
        except (StorageUnavailable, DatabaseUnavailable) as error:
            log.warning("checkpoint not kept: %s", error.detail)
            return
        if not held:
            raise LeaseLost
        if self._checkpoint is not None:
            self._services.blobs.remove(self._checkpoint)
        self._checkpoint, self.stuck = digest, False

    def _named(self, done: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state, its step, and the job's id: no other row can ever name the same blob, so it may be deleted at once."""
        # Copies: what shares memory cannot be written.
        copies = {
            STATE_PREFIX + name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in state.items()
        }
        return {
            "job": torch.tensor(list(self._job_id.encode()), dtype=torch.uint8),
            "done": torch.tensor(done),
            **copies,
        }


def null_nonfinite(value: Any) -> Any:
    """The same, where JSON has no word for it None: no number, or one without end."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: null_nonfinite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [null_nonfinite(each) for each in value]
    return value
