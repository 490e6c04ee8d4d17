"""Batches of inputs from many requests.

A *lane* is a thread that runs one batch after another. Turns go round the owners of requests:
nobody waits behind all inputs of somebody else. A batch takes one item of each owner, then another
of each, until it is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from heapq import nlargest
from itertools import chain, islice, zip_longest

import torch
from torch import Tensor

from app.encoders.models.base import EncoderModel, Item
from app.errors import AnchorageError, EncoderChanged, EncoderFailed, TooMuchAtOnce
from app.lanes import use_threads
from app.ops import metrics
from app.ops.devices import is_device_failure

log = logging.getLogger("anchorage.encoders")

#: `retry_after_s` of a refusal
WAITING_RETRY_S = 5


class EncodeTask:
    """The items of one request. `future` will hold the vectors (n, dim), in the items' order."""

    def __init__(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, is_limited: bool
    ) -> None:
        self.model = model
        self.owner = owner
        self.is_limited = is_limited
        self.future: Future[Tensor] = Future()
        self.started = time.perf_counter()
        #: the waiting items, by their places in the request, the longest first
        self.waiting = dict(sorted(enumerate(items), key=lambda entry: -entry[1].length))
        self._vectors = torch.empty(len(items), model.dim)
        self._unfinished = len(items)
        self._lock = threading.Lock()

    def deliver(self, places: Sequence[int], vectors: Tensor) -> None:
        """Store the vectors of these items. The last delivery sets the future's result."""
        with self._lock:  # several lanes may deliver at once
            self._vectors[list(places)] = vectors
            self._unfinished -= len(places)
            complete = self._unfinished == 0
        if complete:
            with suppress(InvalidStateError):  # cancelled or failed at this moment
                self.future.set_result(self._vectors)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


#: an item with its task and its place there
BatchEntry = tuple[EncodeTask, int, Item]


class Batcher:
    """The tasks that wait, and the lanes that run them.

    lanes    batches at once
    threads  torch threads of each lane; None: the lanes do not compute
    budget   length of one batch with padding, as if each item were as long as its longest
    most     length of one owner's items that may wait
    device   device on which the lanes compute
    """

    def __init__(
        self, *, lanes: int, threads: int | None, budget: int, most: int, device: str = "cpu"
    ) -> None:
        self._threads, self._budget, self._most, self._device = threads, budget, most, device
        self._lanes = ThreadPoolExecutor(lanes, "lane", self._start_lane)
        self._free = lanes
        self._lock = threading.Lock()
        #: the waiting tasks of each owner; the owner whose turn was longest ago first
        self._owners: dict[str, list[EncodeTask]] = {}
        self._closed = False
        #: whether the device failed; only another process can compute on it again
        self.broken = False

    def submit(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, is_limited: bool = True
    ) -> EncodeTask:
        """Queue one item or more, and return their task.

        Raises TooMuchAtOnce for a limited task while too much of its owner's waits, and
        EncoderFailed after `close`.
        """
        task = EncodeTask(model, items, owner, is_limited=is_limited)
        with self._lock:
            if self._closed:
                raise _stop_error()
            if is_limited:
                self._require_room(owner)
            self._owners.setdefault(owner, []).append(task)
            metrics.ENCODE_WAITING.inc(len(items))
            self._lanes.submit(self._run_batch)
        task.future.add_done_callback(lambda _: self._forget(task))
        return task

    @contextmanager
    def lane_without_thread(self) -> Iterator[bool]:
        """Hold a lane for a batch that the caller runs; yields whether one is free."""
        with self._lock:
            is_free = self._free > 0 and not self._owners and not self._closed
            self._free -= is_free
        try:
            yield is_free
        finally:
            if is_free:
                self._leave_lane()

    def close(self) -> None:
        """Fail all waiting tasks, and end each lane after its current batch.

        Waits for lanes that compute, as long as their batches run: torch aborts a process that
        exits meanwhile.
        """
        with self._lock:
            self._closed = True
            tasks = list(chain.from_iterable(self._owners.values()))
        for task in tasks:
            task.fail(_stop_error())
        self._lanes.shutdown(wait=self._threads is not None, cancel_futures=True)

    def _forget(self, task: EncodeTask) -> None:
        """Drop the waiting items of a task whose client has left, or whose batch has failed."""
        with self._lock:
            dropped = len(task.waiting)
            task.waiting = {}
            self._remove_finished()
        metrics.ENCODE_WAITING.dec(dropped)
        if task.future.cancelled():
            metrics.ENCODE_DROPPED.inc(dropped)

    def _remove_finished(self) -> None:
        left = {
            owner: [task for task in tasks if task.waiting] for owner, tasks in self._owners.items()
        }
        self._owners = {owner: tasks for owner, tasks in left.items() if tasks}

    def _require_room(self, owner: str) -> None:
        """Raises TooMuchAtOnce."""
        tasks = [task for task in self._owners.get(owner, ()) if task.is_limited]
        waiting = sum(item.length for task in tasks for item in task.waiting.values())
        if waiting >= self._most:
            raise TooMuchAtOnce(
                f"Inputs of {waiting} tokens of this project wait to be encoded; the limit is "
                f"{self._most}. Try again in {WAITING_RETRY_S} s, or send fewer requests at once.",
                retry_after_s=WAITING_RETRY_S,
            )

    def _start_lane(self) -> None:
        try:
            if self._threads is not None:
                use_threads(self._threads)
            if torch.device(self._device).type == "cuda":
                # One lane copies and hands out while another computes.
                stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
                torch.cuda.set_stream(stream)
        except Exception:  # the models will fail too, and their requests learn it
            log.exception("a lane cannot use the device %s", self._device)
            self.broken = True

    def _run_batch(self) -> None:
        """Run the next batch. What still waits is for the next free lane."""
        with self._lock:
            if self._closed or not self._owners or not self._free:
                return
            self._free -= 1
            batch = self._take_batch()
            if self._owners:
                self._lanes.submit(self._run_batch)
        started = time.perf_counter()
        for task in {task for task, _, _ in batch}:
            metrics.ENCODE_WAIT_SECONDS.observe(started - task.started)
        error = self._run(batch)
        self._leave_lane()
        if error is None:
            count_batch([item.length for _, _, item in batch])
        elif is_device_failure(error):
            self.broken = True

    def _leave_lane(self) -> None:
        with self._lock:
            self._free += 1
            if self._owners and not self._closed:
                self._lanes.submit(self._run_batch)

    def _take_batch(self) -> list[BatchEntry]:
        """Remove the items of the next batch from their tasks, and return them.

        It is the turn of the first owner. Its first task leads: the longest item is in the batch,
        and longer ones are not. Items for this model fill the batch, one an owner in each round,
        the longest of each first.
        """
        owner, tasks = next(iter(self._owners.items()))
        lead = tasks[0]
        longest = next(iter(lead.waiting.values())).length
        room = max(1, min(lead.model.batch, self._budget // max(1, longest)))
        of_owners = (
            nlargest(
                room,
                (
                    (task, place, item)
                    for task in others
                    if task.model is lead.model
                    for place, item in islice(
                        (each for each in task.waiting.items() if each[1].length <= longest), room
                    )
                ),
                key=lambda entry: entry[2].length,
            )
            for others in self._owners.values()
        )
        rounds = chain.from_iterable(zip_longest(*of_owners))
        batch = list(islice((entry for entry in rounds if entry is not None), room))
        for task, place, _ in batch:
            del task.waiting[place]
        self._owners[owner] = [*self._owners.pop(owner)[1:], lead]
        self._remove_finished()
        metrics.ENCODE_WAITING.dec(len(batch))
        return batch

    def _run(self, batch: list[BatchEntry]) -> AnchorageError | None:
        """Run one batch, and return its error; None if it succeeded.

        After a failure each task's part runs alone, so that one bad input fails only its own task.
        """
        parts: dict[EncodeTask, list[int]] = {}
        for row, (task, _, _) in enumerate(batch):
            parts.setdefault(task, []).append(row)
        try:
            vectors = self._compute(batch)
        except AnchorageError as error:
            # Each part would fail in the same way, perhaps after the endpoint's whole timeout.
            is_remote = batch[0][0].model.endpoint is not None
            is_same = is_remote and isinstance(error, (EncoderChanged, EncoderFailed))
            for task, rows in parts.items():
                if len(parts) == 1 or is_same:
                    own = copy(error)  # because each request names its own field in it
                    own.__cause__ = error.__cause__
                    task.fail(own)
                elif not task.future.done():
                    self._run([batch[row] for row in rows])
            return error
        for task, rows in parts.items():
            task.deliver([batch[row][1] for row in rows], vectors[rows])
        return None

    def _compute(self, batch: list[BatchEntry]) -> Tensor:
        """Return the vectors of a batch. Raises only AnchorageErrors, whatever the model raises or
        returns.
        """
        model = batch[0][0].model
        try:
            vectors = model.run(
                [item for _, _, item in batch],
                lambda: self._closed or all(task.future.done() for task, _, _ in batch),
            )
            if vectors.shape != (len(batch), model.dim):
                raise ValueError(
                    f"shape {tuple(vectors.shape)} for {len(batch)} inputs of {model.dim} "
                    "dimensions"
                )
            return vectors
        except AnchorageError:
            raise
        except BaseException as error:
            log.exception("model failed: %s", model.identity.model)
            raise EncoderFailed(
                f"Model {model.identity.model!r} failed with {type(error).__name__}. "
                "The server's log has the reason."
            ) from error


def count_batch(lengths: Sequence[int]) -> None:
    """Record the lengths of a batch's items in the metrics."""
    metrics.ENCODE_BATCH.observe(len(lengths))
    metrics.ENCODE_TOKENS.labels("read").inc(sum(lengths))
    metrics.ENCODE_TOKENS.labels("padding").inc(max(lengths) * len(lengths) - sum(lengths))


def _stop_error() -> EncoderFailed:
    return EncoderFailed("The server is stopping. Send the request again.")
