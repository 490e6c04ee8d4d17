"""Inputs of many requests in common batches: merged by length, fairly between owners, and never waiting while a lane is idle.

A *lane* is a thread that runs one batch after another. On a CPU several lanes of few threads each do more than one of many: a
model's small matrix products scale badly over threads, and well over batches.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy

import torch
from torch import Tensor

from app.encoders.base import EncoderModel, Item
from app.encoders.threads import use_threads
from app.errors import AnchorageError, EncoderFailed, Overloaded, TooMuchAtOnce
from app.observability import metrics

log = logging.getLogger("anchorage.encoders")

#: a batch holds items of at least this share of its longest one's length, as shorter ones cost padding; of less while it is small
CLOSENESS = (1.0, 0.85, 0.7, 0.5)

#: a batch is small below this part of the budget: it wastes the machine
LEAST = 0.5

#: how fast the estimate of a lane's speed follows
SMOOTHING = 0.2
#: cost per second assumed before anything has run
FIRST_RATE = 5_000.0

#: longest wait of `close` for batches that run
CLOSE_S = 10.0


class Work:
    """One request's items on their way. `future` has the vectors (n, dim), row i of item i."""

    def __init__(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, patient: bool = False
    ) -> None:
        self.model = model
        self.owner = owner
        self.patient = patient
        self.future: Future[Tensor] = Future()
        self.started = time.perf_counter()
        self._items = items
        self._vectors = torch.empty(len(items), model.dim)
        self._left = len(items)
        self._lock = threading.Lock()
        #: places of the items that wait, the longest first, and their lengths made negative, which ascend
        self._waiting = sorted(range(len(items)), key=lambda place: -items[place].length)
        self._lengths = [-items[place].length for place in self._waiting]
        self.cost = sum(item.cost for item in items)

    @property
    def longest(self) -> Item:
        """Of those that wait."""
        return self._items[self._waiting[0]]

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def take(self, longest: float, shortest: float, most: int) -> list[int]:
        """The places of at most so many waiting items, none longer or shorter."""
        start = bisect_left(self._lengths, -longest)
        end = min(bisect_right(self._lengths, -shortest), start + most)
        taken = self._waiting[start:end]
        del self._waiting[start:end], self._lengths[start:end]
        self.cost -= sum(self._items[place].cost for place in taken)
        return taken

    def take_cost(self, most: int) -> list[int]:
        """The places of the longest waiting items that cost no more together, but one at least."""
        count = cost = 0
        while count < len(self._waiting) and (
            count == 0 or cost + self._items[self._waiting[count]].cost <= most
        ):
            cost += self._items[self._waiting[count]].cost
            count += 1
        taken = self._waiting[:count]
        del self._waiting[:count], self._lengths[:count]
        self.cost -= cost
        return taken

    def drop(self) -> int:
        """Forget what still waits; returns how many items."""
        count = len(self._waiting)
        self._waiting, self._lengths, self.cost = [], [], 0
        return count

    def item(self, place: int) -> Item:
        return self._items[place]

    def give(self, places: Sequence[int], vectors: Tensor) -> None:
        """Rows of the answer; the last ones complete it."""
        with self._lock:  # lanes may give at once
            self._vectors[list(places)] = vectors
            self._left -= len(places)
            whole = self._left == 0
        if whole:
            with suppress(InvalidStateError):  # cancelled, or failed elsewhere, at this moment
                self.future.set_result(self._vectors)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


#: a piece of a batch: a work and the places of its items
Part = tuple[Work, list[int]]


class _ModelQueue:
    """What waits for one model: works by owner, the owner to serve next first."""

    def __init__(self) -> None:
        self._owners: dict[str, deque[Work]] = {}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, work: Work) -> None:
        self._owners.setdefault(work.owner, deque()).append(work)

    def works(self) -> list[Work]:
        return [work for works in self._owners.values() for work in works]

    def discard(self, work: Work) -> None:
        works = self._owners.get(work.owner)
        if works is not None and work in works:
            works.remove(work)
            if not works:
                del self._owners[work.owner]

    def take(self, budget: int, least: int) -> list[Part]:
        """A batch: the longest item of the work whose turn it is, and the like of it from all owners, each a fair share of the
        budget, and then what room is left. Below `least` it takes what is less alike, too.
        """
        first = next(iter(self._owners))
        leading = self._owners[first][0]
        if not leading.model.pads:
            parts = self._take_any(budget)
            self._rotate(first, leading)
            return parts
        length, cost = leading.longest.length, max(1, leading.longest.cost)
        parts = [(leading, leading.take(length, length, 1))]
        taken = 1
        for closeness in CLOSENESS:
            reach = closeness**0.5  # as much longer as shorter
            room = int(budget * reach / cost) - taken
            share = -(-room // max(1, len(self._owners)))
            for most in (share, room):
                for owner in list(self._owners):
                    got = (
                        self._take_from(
                            owner, length / reach, length * reach, min(most, room), parts
                        )
                        if room > 0
                        else 0
                    )
                    taken, room = taken + got, room - got
            if taken * cost >= least:
                break
        self._rotate(first, leading)
        return parts

    def _take_any(self, budget: int) -> list[Part]:
        """Items of any lengths: each owner's share of the budget, and then what is left of it."""
        parts: list[Part] = []
        for most in (-(-budget // len(self._owners)), budget):
            for works in list(self._owners.values()):
                most_here = most
                for work in list(works):
                    if min(most_here, budget) <= 0 or not work.waits:
                        continue
                    places = work.take_cost(min(most_here, budget))
                    cost = sum(work.item(place).cost for place in places)
                    budget, most_here = budget - cost, most_here - cost
                    parts.append((work, places))
        for owner in list(self._owners):
            left = deque(work for work in self._owners[owner] if work.waits)
            if left:
                self._owners[owner] = left
            else:
                del self._owners[owner]
        return parts

    def _rotate(self, first: str, leading: Work) -> None:
        """Who was served goes to the end of the line, and what led it to the end of its owner's."""
        works = self._owners.pop(first, None)
        if works and not works[0].waits:
            works.popleft()
        if works:
            if works[0] is leading:
                works.rotate(-1)
            self._owners[first] = works

    def _take_from(
        self, owner: str, longest: float, shortest: float, most: int, parts: list[Part]
    ) -> int:
        taken = 0
        works = self._owners.get(owner, deque())
        for work in list(works):
            if taken == most:
                break
            places = work.take(longest, shortest, most - taken)
            if places:
                parts.append((work, places))
                taken += len(places)
            if not work.waits:
                works.remove(work)
        if not works:
            self._owners.pop(owner, None)
        return taken


class Batcher:
    """Lanes, and the queue before them.

    lanes    batches at once
    each     of them, of one model; None: all
    threads  of torch in each lane; None: it does not compute
    budget   cost of one batch, padding included: as if each item cost what its longest does
    most     cost that may wait; one owner's may be half of it
    """

    def __init__(
        self, *, lanes: int, threads: int | None, budget: int, most: int, each: int | None = None
    ) -> None:
        self._count, self._threads, self._budget, self._most = lanes, threads, budget, most
        self._each = each or lanes
        #: batches that run now, by model
        self._running: Counter[int] = Counter()
        self._changed = threading.Condition()
        #: by the model's id, which is nobody else's while works in the queue hold the model; the model to serve next first
        self._queues: dict[int, _ModelQueue] = {}
        self._cost = 0
        #: of work that may be refused, by owner
        self._costs: dict[str, int] = {}
        self._rate = FIRST_RATE
        #: lanes that wait for work
        self._idle = 0
        self._lanes: list[threading.Thread] = []
        self._closed = False

    def submit(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, patient: bool = False
    ) -> Work:
        """Queue items. Raises Overloaded when too much waits, TooMuchAtOnce when too much of this owner's does, EncoderFailed
        after `close`.

        `patient` work is never refused, nor makes it others': a job waits for as long as it takes.
        """
        work = Work(model, items, owner, patient=patient)
        if not items:
            work.give([], torch.empty(0, model.dim))
            return work
        with self._changed:
            if self._closed:
                raise _stopped()
            if not patient:
                self._refuse_excess(owner)
            self._start_lanes()
            self._queues.setdefault(id(model), _ModelQueue()).add(work)
            self._count_cost(work, work.cost)
            metrics.ENCODE_WAITING.inc(len(items))
            self._changed.notify(self._count)
        work.future.add_done_callback(lambda _: self._forget(work))
        return work

    def close(self) -> None:
        """Let the lanes end after what they run now; what waits fails. Waits for those that compute: torch aborts a process that
        exits meanwhile.
        """
        with self._changed:
            self._closed = True
            works = [work for queue in self._queues.values() for work in queue.works()]
            self._changed.notify_all()
        for work in works:
            work.fail(_stopped())
        deadline = time.monotonic() + CLOSE_S
        for lane in self._lanes if self._threads is not None else ():
            lane.join(max(0.0, deadline - time.monotonic()))

    def _forget(self, work: Work) -> None:
        """Drop what still waits of a work that has ended: its client has left, or a part of it failed."""
        with self._changed:
            queue = self._queues.get(id(work.model))
            if not work.waits or queue is None:
                return
            queue.discard(work)
            if not queue:
                del self._queues[id(work.model)]
            self._count_cost(work, -work.cost)
            dropped = work.drop()
        metrics.ENCODE_WAITING.dec(dropped)
        if work.future.cancelled():
            metrics.ENCODE_DROPPED.inc(dropped)

    def _refuse_excess(self, owner: str) -> None:
        retry_after_s = min(60, max(1, round(self._cost / self._rate)))
        whole = sum(self._costs.values())
        if whole >= 2 * self._most or (
            whole >= self._most and owner in self._costs
        ):  # who has nothing waiting is let in longer
            raise Overloaded(
                "the server encodes as many inputs as it can", retry_after_s=retry_after_s
            )
        if self._costs.get(owner, 0) >= self._most // 2:
            raise TooMuchAtOnce(
                "as many of this key's inputs wait to be encoded as may",
                retry_after_s=retry_after_s,
            )

    def _count_cost(self, work: Work, change: int) -> None:
        self._cost += change
        if work.patient:
            return
        left = self._costs.get(work.owner, 0) + change
        if left > 0:
            self._costs[work.owner] = left
        else:
            self._costs.pop(work.owner, None)

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
        if self._threads is not None:
            use_threads(self._threads)
        ready.set()
        while self._step():
            pass

    def _step(self) -> bool:
        """One batch, of which nothing is kept: an idle lane must not hold on to a model that was unloaded."""
        parts = self._next()
        if parts is None:
            return False
        started = time.perf_counter()
        for work, _ in parts:
            metrics.ENCODE_WAIT_SECONDS.observe(started - work.started)
        try:
            if _run(parts):
                self._learn(parts, time.perf_counter() - started)
        finally:
            self._free(id(parts[0][0].model))
        return True

    def _next(self) -> list[Part] | None:
        with self._changed:
            while (key := self._ready()) is None and not self._closed:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            if self._closed or key is None:
                return None
            queue = self._queues.pop(key)
            least = int(self._budget * LEAST)
            share = max(
                least, -(-self._cost // (1 + self._idle))
            )  # the rest is for the lanes that are about to look, too
            parts = queue.take(min(self._budget, share), least)
            if queue:  # the next model's turn, when there is one
                self._queues[key] = queue
            for work, places in parts:
                self._count_cost(work, -sum(work.item(place).cost for place in places))
                metrics.ENCODE_WAITING.dec(len(places))
            self._running[key] += 1
            return parts

    def _ready(self) -> int | None:
        """The model to serve next: one that does not run in as many lanes as it may."""
        return next((key for key in self._queues if self._running[key] < self._each), None)

    def _free(self, key: int) -> None:
        with self._changed:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
            self._changed.notify()

    def _learn(self, parts: list[Part], seconds: float) -> None:
        costs = [work.item(place).cost for work, places in parts for place in places]
        metrics.ENCODE_BATCH.observe(len(costs))
        metrics.ENCODE_TOKENS.labels("read").inc(sum(costs))
        if parts[0][0].model.pads:
            metrics.ENCODE_TOKENS.labels("padding").inc(max(costs) * len(costs) - sum(costs))
        with self._changed:
            rate = self._count * sum(costs) / max(seconds, 1e-6)
            self._rate += SMOOTHING * (rate - self._rate)


def _stopped() -> EncoderFailed:
    return EncoderFailed("the server stops")


def _run(parts: list[Part]) -> bool:
    """One batch; whether it succeeded. If not, each work's part runs again alone: one bad input must not spoil its neighbours."""
    try:
        vectors = _compute(parts)
    except AnchorageError as error:
        away = parts[0][0].model.remote and isinstance(
            error, EncoderFailed
        )  # as it would be for each, after its whole timeout
        if len(parts) == 1 or away:
            for work, _ in parts:
                work.fail(copy(error))  # each request's own: it will name its field
        else:
            for part in parts:
                if not part[0].future.done():
                    _run([part])
        return False
    start = 0
    for work, places in parts:
        work.give(places, vectors[start : start + len(places)])
        start += len(places)
    return True


def _compute(parts: list[Part]) -> Tensor:
    """Vectors of all parts. Raises nothing but AnchorageErrors, whatever the model raises or returns: a lane must not die."""
    model = parts[0][0].model
    try:
        items = [work.item(place) for work, places in parts for place in places]
        vectors = model.run(items)
        if vectors.shape != (len(items), model.dim):
            raise ValueError(
                f"{tuple(vectors.shape)} for {len(items)} inputs of {model.dim} dimensions"
            )
        return vectors
    except AnchorageError:
        raise
    except BaseException as error:
        log.exception("model %s failed", model.identity.model)
        raise EncoderFailed(
            f"model {model.identity.model!r} failed: {type(error).__name__}; the server's log has the reason"
        ) from error
