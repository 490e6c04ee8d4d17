"""The progress of a running job: its steps, its checkpoints, and when to stop.

A worker claims a job by a lease, which it renews while it runs. It writes progress, checkpoints
and the result under that lease: a job may run twice, but its effect happens once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from app.context import Services
from app.db import tables
from app.errors import BlobMissing, DatabaseUnavailable, StorageUnavailable
from app.jobs import queries as jobs

log = logging.getLogger("anchorage.jobs")

#: least time between two writes of progress
PROGRESS_EVERY_S = 0.25

#: least time between two checkpoints, and the most they may take of a job's time
CHECKPOINT_EVERY_S = 2.0
CHECKPOINT_SHARE = 0.1

#: how long a job that can be divided runs before it lets others go first
TURN_S = 10.0

#: the names of the state's tensors begin with this in a checkpoint
STATE_PREFIX = "state."


class Cancelled(Exception):
    """Raised inside a job that a client cancels."""


class Requeued(Exception):
    """Raised inside a job whose worker stops: the job returns to the queue."""


class Yielded(Requeued):
    """Raised inside a long job while others wait: it returns to the end of the queue."""


class LeaseLost(Exception):
    """Raised inside a job that another worker has taken over: nothing is recorded any more."""


class Progress:
    """Records steps and checkpoints of a running job, and tells the job when to stop.

    A job continues while the database or the disk is away, and records less.
    """

    def __init__(
        self, services: Services, job: tables.JobRow, lease: str, stopping: Callable[[], bool]
    ) -> None:
        self._services = services
        self._job_id = job.id
        self._lease = lease
        self._stopping = stopping
        self._recorded: dict[str, Any] = {}
        #: the facts that the last attempt recorded, for a job that resumes
        self._before = {
            name: value for name, value in job.progress.items() if name not in ("done", "total")
        }
        self._facts: dict[str, Any] = {}
        self._done = 0
        self._checkpoint = job.checkpoint
        self._checked_at = self._due_at = -math.inf
        self._turn_ends = time.monotonic() + TURN_S
        #: the first checkpoint beyond this step is written at once: no attempt got further
        self._beyond: float = job.furthest
        #: the last checkpoint that was not written: its step and state
        self._skipped: tuple[int, Mapping[str, Tensor]] | None = None
        #: whether this attempt began at a checkpoint and has not written another
        self.stuck = False

    def __call__(self, done: int, total: int, extra: Mapping[str, Any] | None = None) -> None:
        """Record that `done` of `total` steps are done, with `extra` facts for the client.

        A call costs little: a job may call it at every step. A smaller `done` than before counts
        as a sign of life.
        """
        if self._stopping():
            if self._skipped is not None:
                self._write_checkpoint(*self._skipped)
            raise Requeued
        self._done = max(done, self._done)
        self._facts.update(extra or {})
        now = null_nonfinite({"done": self._done, "total": total, **self._facts})
        ended = done >= total and now != self._recorded
        if ended or time.monotonic() - self._checked_at >= PROGRESS_EVERY_S:
            self._checked_at = time.monotonic()
            self._record(now)

    def give_way(self) -> None:
        """Raise Yielded if the job has run for TURN_S and others wait.

        A job calls it where a later attempt can continue without a loss.
        """
        if time.monotonic() < self._turn_ends:
            return
        try:
            with self._services.db.transaction() as session:
                others_wait = jobs.others_wait(session, self._job_id)
        except DatabaseUnavailable as error:
            log.warning("cannot see whether other jobs wait: %s", error.detail)
            others_wait = False
        if others_wait:
            raise Yielded
        self._turn_ends = time.monotonic() + TURN_S

    def checkpoint(self, done: int, state: Mapping[str, Tensor]) -> None:
        """Write the state after `done` steps, from which a later attempt resumes. Raises LeaseLost.

        Skips most calls, but writes the first state that is further than any earlier attempt,
        and the last one before a worker stops.
        """
        begun = time.monotonic()
        if not (done > self._beyond or begun >= self._due_at or self._stopping()):
            self._skipped = (done, state)
            return
        self._skipped = None
        if done > self._beyond:
            self._beyond = math.inf
        self._write_checkpoint(done, state)
        now = time.monotonic()
        self._due_at = now + max(CHECKPOINT_EVERY_S, (now - begun) / CHECKPOINT_SHARE)

    def resume(self) -> dict[str, Tensor] | None:
        """Return the last checkpoint's state. None without a readable one: the job starts over."""
        if self._checkpoint is None:
            return None
        try:
            checkpoint_tensors = self._services.blobs.get(self._checkpoint)
        except (StorageUnavailable, BlobMissing, SafetensorError) as error:
            log.warning("the checkpoint cannot be read, the job starts over: %s", error)
            return None
        self.stuck = True
        self._done, self._facts = int(checkpoint_tensors["done"]), self._before
        return {
            name.removeprefix(STATE_PREFIX): tensor
            for name, tensor in checkpoint_tensors.items()
            if name.startswith(STATE_PREFIX)
        }

    def _record(self, now: dict[str, Any]) -> None:
        try:
            with self._services.db.transaction() as session:
                if now != self._recorded:
                    jobs.change_leased(session, self._lease, progress=now)
                cancelled = jobs.asked_to_stop(session, self._lease)
        except DatabaseUnavailable as error:
            log.warning("progress is not recorded: %s", error.detail)
            return
        self._recorded = now
        if cancelled is None:
            raise LeaseLost
        if cancelled:
            raise Cancelled

    def _write_checkpoint(self, done: int, state: Mapping[str, Tensor]) -> None:
        try:
            digest = self._services.blobs.put(self._build_checkpoint(done, state))
            if digest == self._checkpoint:
                return
            with self._services.db.transaction() as session:
                is_ours = jobs.keep_checkpoint(session, self._lease, digest, done=done)
        except (StorageUnavailable, DatabaseUnavailable) as error:
            log.warning("the checkpoint is not written: %s", error.detail)
            return
        if not is_ours:
            raise LeaseLost
        if self._checkpoint is not None:
            self._services.blobs.remove(self._checkpoint)
        self._checkpoint, self.stuck = digest, False

    def _build_checkpoint(self, done: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state, its step and the job's id, so that no other row can name the same blob."""
        # safetensors refuses tensors that share memory.
        copies = {
            STATE_PREFIX + name: tensor.detach().to(
                "cpu", copy=True, memory_format=torch.contiguous_format
            )
            for name, tensor in state.items()
        }
        return {
            "job": torch.tensor(list(self._job_id.encode()), dtype=torch.uint8),
            "done": torch.tensor(done),
            **copies,
        }


def null_nonfinite(value: Any) -> Any:
    """Return the value with None for numbers that JSON lacks: NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: null_nonfinite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [null_nonfinite(each) for each in value]
    return value
