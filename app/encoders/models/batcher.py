"""Batches of inputs from many requests.

A *lane* is a thread that runs one batch after another. No lane stays idle while items wait.
On a CPU, several lanes with few threads each are faster than one lane with many threads: the small
matrix products of a model scale poorly over threads, and well over batches.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy

import torch
from torch import Tensor

from app.device_failures import is_device_failure
from app.encoders.models.base import EncoderModel, Item
from app.errors import AnchorageError, EncoderFailed, Overloaded, TooMuchAtOnce
from app.ops import metrics
from app.threads import use_threads

log = logging.getLogger("anchorage.encoders")

#: share of the budget below which a batch wastes the machine
SMALL_BATCH = 0.5

#: smallest ratio of two lengths in one padded batch
LENGTH_RATIO = 0.5

#: `retry_after_s` of a refusal
WAITING_RETRY_S = 5

#: longest wait of `close` for running batches
LANES_STOP_S = 10.0


class EncodeTask:
    """The items of one request. `future` will hold the vectors (n, dim), in the items' order."""

    def __init__(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, patient: bool = False
    ) -> None:
        self.model = model
        self.owner = owner
        self.patient = patient
        self.future: Future[Tensor] = Future()
        self.started = time.perf_counter()
        #: the waiting items and their places in the request, the longest first
        self.waiting = sorted(enumerate(items), key=lambda entry: -entry[1].length)
        #: of the waiting items
        self.cost = sum(item.cost for item in items)
        self._vectors = torch.empty(len(items), model.dim)
        self._unfinished = len(items)
        self._lock = threading.Lock()

    def take(self, budget: int, longest: Item | None) -> list[tuple[int, Item]]:
        """Remove the longest waiting items up to a cost of `budget`, and return them.

        longest  the longest item of a padded batch: items that are longer or much shorter stay, and
                 each of them costs as much as this one
        """
        start = end = cost = 0
        if longest is not None:
            start = end = bisect_left(self.waiting, -longest.length, key=lambda e: -e[1].length)
        for _, item in self.waiting[start:]:
            cost += max(1, (longest or item).cost)
            if cost > budget or (longest and item.length < LENGTH_RATIO * longest.length):
                break
            end += 1
        taken = self.waiting[start:end]
        del self.waiting[start:end]
        self.cost -= sum(item.cost for _, item in taken)
        return taken

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


#: a task, and its items in one batch with their places
BatchPart = tuple[EncodeTask, list[tuple[int, Item]]]


class Batcher:
    """The tasks that wait for each model, and the lanes that run them. Tasks take turns.

    lanes    batches at once
    each     batches at once of one model; None: `lanes`
    threads  torch threads of each lane; None: the lanes do not compute
    budget   cost of one batch with padding, as if each item cost as much as its longest
    most     cost that may wait; one owner may use half of it
    device   device on which the lanes compute
    """

    def __init__(
        self,
        *,
        lanes: int,
        threads: int | None,
        budget: int,
        most: int,
        each: int | None = None,
        device: str = "cpu",
    ) -> None:
        self._count, self._threads, self._budget, self._most = lanes, threads, budget, most
        self._each = each or lanes
        self._device = device
        #: running batches by model
        self._running: Counter[int] = Counter()
        self._changed = threading.Condition()
        #: by the model's id, the next model and the next task first. An id stays unique while tasks
        #: hold the model
        self._queues: dict[int, deque[EncodeTask]] = {}
        self._cost = 0
        #: cost of tasks that may be refused, by owner
        self._costs: Counter[str] = Counter()
        #: lanes that wait for items
        self._idle = 0
        self._lanes: list[threading.Thread] = []
        self._closed = False
        #: whether the device failed; only another process can compute on it again
        self.broken = False

    def submit(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, patient: bool = False
    ) -> EncodeTask:
        """Queue items, and return their task.

        A `patient` task, such as a job's, is never refused and does not count towards the limits of
        other tasks.

        Raises Overloaded when too much waits, TooMuchAtOnce when too much of this owner waits, and
        EncoderFailed after `close`.
        """
        task = EncodeTask(model, items, owner, patient=patient)
        if not items:
            task.deliver([], torch.empty(0, model.dim))
            return task
        with self._changed:
            if self._closed:
                raise _stop_error()
            if not patient:
                self._check_capacity(owner)
            self._start_lanes()
            self._queues.setdefault(id(model), deque()).append(task)
            self._count_cost(task, task.cost)
            metrics.ENCODE_WAITING.inc(len(items))
            self._changed.notify(self._count)
        task.future.add_done_callback(lambda _: self._forget(task))
        return task

    def close(self) -> None:
        """Fail all waiting tasks, and end each lane after its current batch.

        Waits for lanes that compute, because torch aborts a process that exits meanwhile.
        """
        with self._changed:
            self._closed = True
            tasks = [task for queue in self._queues.values() for task in queue]
            self._changed.notify_all()
        for task in tasks:
            task.fail(_stop_error())
        deadline = time.monotonic() + LANES_STOP_S
        for lane in self._lanes if self._threads is not None else ():
            lane.join(max(0.0, deadline - time.monotonic()))

    def _forget(self, task: EncodeTask) -> None:
        """Drop the waiting items of a task whose client has left, or whose batch has failed."""
        with self._changed:
            dropped = len(task.waiting)
            if not dropped:
                return
            queue = self._queues[id(task.model)]
            queue.remove(task)
            if not queue:
                del self._queues[id(task.model)]
            self._count_cost(task, -task.cost)
            task.waiting = []
        metrics.ENCODE_WAITING.dec(dropped)
        if task.future.cancelled():
            metrics.ENCODE_DROPPED.inc(dropped)

    def _check_capacity(self, owner: str) -> None:
        """Raises Overloaded and TooMuchAtOnce."""
        waiting = self._costs.total()
        # An owner with no waiting items has twice the limit.
        if waiting >= 2 * self._most or (waiting >= self._most and owner in self._costs):
            raise Overloaded(
                f"Inputs of {waiting} tokens wait to be encoded; the limit is {self._most}. "
                f"Try again in {WAITING_RETRY_S} s.",
                retry_after_s=WAITING_RETRY_S,
            )
        if self._costs[owner] >= self._most // 2:
            raise TooMuchAtOnce(
                f"Inputs of {self._costs[owner]} tokens of this API key wait to be encoded; the "
                f"limit is {self._most // 2}. Try again in {WAITING_RETRY_S} s, or send fewer "
                "requests at once.",
                retry_after_s=WAITING_RETRY_S,
            )

    def _count_cost(self, task: EncodeTask, change: int) -> None:
        self._cost += change
        if not task.patient:
            self._costs[task.owner] += change
            if not self._costs[task.owner]:
                del self._costs[task.owner]

    def _start_lanes(self) -> None:
        while len(self._lanes) < self._count:
            ready = threading.Event()
            lane = threading.Thread(
                target=self._lane, args=(ready,), name=f"lane-{len(self._lanes)}", daemon=True
            )
            lane.start()
            self._lanes.append(lane)
            ready.wait()

    def _lane(self, ready: threading.Event) -> None:
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
        finally:
            ready.set()
        while self._step():
            pass

    def _step(self) -> bool:
        """Run one batch; return False after `close`.

        A separate method, so that an idle lane holds no reference to an unloaded model.
        """
        parts = self._next()
        if parts is None:
            return False
        started = time.perf_counter()
        for task, _ in parts:
            metrics.ENCODE_WAIT_SECONDS.observe(started - task.started)
        try:
            error = _run(parts)
            if error is None:
                _record_batch(parts)
            elif is_device_failure(error):
                self.broken = True
        finally:
            with self._changed:
                self._running -= Counter([id(parts[0][0].model)])
                self._changed.notify()
        return True

    def _next(self) -> list[BatchPart] | None:
        """Wait for items, and return the next batch; None after `close`."""
        with self._changed:
            while (key := self._choose_model()) is None and not self._closed:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            if self._closed or key is None:
                return None
            queue = self._queues.pop(key)
            # The idle lanes also get a share of the items.
            share = max(int(self._budget * SMALL_BATCH), -(-self._cost // (1 + self._idle)))
            parts = _take_batch(queue, min(self._budget, share))
            if queue:  # at the end: another model is next
                self._queues[key] = queue
            for task, entries in parts:
                self._count_cost(task, -sum(item.cost for _, item in entries))
                metrics.ENCODE_WAITING.dec(len(entries))
            self._running[key] += 1
            return parts

    def _choose_model(self) -> int | None:
        """Return the first model that runs in fewer lanes than it may use."""
        return next((key for key in self._queues if self._running[key] < self._each), None)


def _take_batch(queue: deque[EncodeTask], budget: int) -> list[BatchPart]:
    """Remove the items of the next batch from the queue, and return them.

    The longest item of the first task is always in the batch. The tasks share the rest of the
    budget: the smallest ones first, so that a large one takes what they leave. The first task then
    goes to the end of the queue.
    """
    first = queue[0]
    lead = first.waiting.pop(0)
    first.cost -= lead[1].cost
    longest = lead[1] if first.model.pads else None
    parts = {first: [lead]}
    room = budget - max(1, lead[1].cost)
    tasks = sorted(queue, key=lambda task: task.cost)
    for place, task in enumerate(tasks):
        entries = task.take(-(-room // (len(tasks) - place)), longest)
        room -= sum(max(1, (longest or item).cost) for _, item in entries)
        if entries:
            parts.setdefault(task, []).extend(entries)
        if not task.waiting:
            queue.remove(task)
    if queue and queue[0] is first:
        queue.rotate(-1)
    return list(parts.items())


def _stop_error() -> EncoderFailed:
    return EncoderFailed("The server is stopping. Send the request again.")


def _record_batch(parts: list[BatchPart]) -> None:
    costs = [item.cost for _, entries in parts for _, item in entries]
    metrics.ENCODE_BATCH.observe(len(costs))
    metrics.ENCODE_TOKENS.labels("read").inc(sum(costs))
    if parts[0][0].model.pads:
        metrics.ENCODE_TOKENS.labels("padding").inc(max(costs) * len(costs) - sum(costs))


def _run(parts: list[BatchPart]) -> AnchorageError | None:
    """Run one batch, and return its error; None if it succeeded.

    After a failure each task's part runs alone, so that one bad input fails only its own task.
    """
    try:
        vectors = _compute(parts)
    except AnchorageError as error:
        # Each part would fail in the same way after the endpoint's whole timeout.
        unreachable = parts[0][0].model.remote and isinstance(error, EncoderFailed)
        if len(parts) == 1 or unreachable:
            for task, _ in parts:
                own = copy(error)  # because each request names its own field in it
                own.__cause__ = error.__cause__
                task.fail(own)
        else:
            for part in parts:
                if not part[0].future.done():
                    _run([part])
        return error
    start = 0
    for task, entries in parts:
        task.deliver([place for place, _ in entries], vectors[start : start + len(entries)])
        start += len(entries)
    return None


def _compute(parts: list[BatchPart]) -> Tensor:
    """Return the vectors of all parts.

    Raises only AnchorageErrors, whatever the model raises or returns, because a lane must not end.
    """
    model = parts[0][0].model
    try:
        items = [item for _, entries in parts for _, item in entries]
        vectors = model.run(items)
        if vectors.shape != (len(items), model.dim):
            raise ValueError(
                f"shape {tuple(vectors.shape)} for {len(items)} inputs of {model.dim} dimensions"
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
