"""The items that wait for one model, and the choice of those that share the next batch."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import torch
from torch import Tensor

from app.encoders.base import EncoderModel, Item

#: smallest ratio of two lengths in one batch, because shorter items cost padding. A small batch
#: moves on to the next ratio.
LENGTH_RATIOS = (1.0, 0.85, 0.7, 0.5)


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
        self._items = items
        self._vectors = torch.empty(len(items), model.dim)
        self._unfinished = len(items)
        self._lock = threading.Lock()
        #: indices of the waiting items, the longest first, and their negative lengths, ascending
        self._waiting = sorted(range(len(items)), key=lambda place: -items[place].length)
        self._lengths = [-items[place].length for place in self._waiting]
        #: of the waiting items
        self.cost = sum(item.cost for item in items)

    @property
    def longest(self) -> Item:
        """The longest waiting item."""
        return self._items[self._waiting[0]]

    @property
    def waits(self) -> bool:
        """Whether any item waits."""
        return bool(self._waiting)

    def take(self, longest: float, shortest: float, most: int) -> list[int]:
        """Remove up to `most` waiting items between these lengths, and return their indices."""
        start = bisect_left(self._lengths, -longest)
        end = min(bisect_right(self._lengths, -shortest), start + most)
        return self._remove(start, end)

    def take_cost(self, most: int) -> list[int]:
        """Remove the longest waiting items up to a total cost of `most`, and at least one item.

        Returns their indices.
        """
        count = cost = 0
        while count < len(self._waiting) and (
            count == 0 or cost + self._items[self._waiting[count]].cost <= most
        ):
            cost += self._items[self._waiting[count]].cost
            count += 1
        return self._remove(0, count)

    def _remove(self, start: int, end: int) -> list[int]:
        places = self._waiting[start:end]
        del self._waiting[start:end], self._lengths[start:end]
        self.cost -= sum(self._items[place].cost for place in places)
        return places

    def drop(self) -> int:
        """Remove all waiting items, and return their number."""
        count = len(self._waiting)
        self._waiting, self._lengths, self.cost = [], [], 0
        return count

    def item(self, place: int) -> Item:
        return self._items[place]

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


#: a task, and the indices of its items in one batch
BatchPart = tuple[EncodeTask, list[int]]


class ModelQueue:
    """The tasks that wait for one model, by owner. The first owner is the next."""

    def __init__(self) -> None:
        self._owners: dict[str, deque[EncodeTask]] = {}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, task: EncodeTask) -> None:
        self._owners.setdefault(task.owner, deque()).append(task)

    def tasks(self) -> list[EncodeTask]:
        return [task for tasks in self._owners.values() for task in tasks]

    def discard(self, task: EncodeTask) -> None:
        tasks = self._owners.get(task.owner)
        if tasks is not None and task in tasks:
            tasks.remove(task)
            if not tasks:
                del self._owners[task.owner]

    def take(self, budget: int, least: int) -> list[BatchPart]:
        """Remove the items of the next batch from the queue, and return them.

        The batch starts with the longest item of the first owner's first task. Each owner then adds
        items of similar length, up to an equal share of the budget, and after that up to the whole
        budget. A batch that costs less than `least` also takes items of less similar length.
        """
        first = next(iter(self._owners))
        leading = self._owners[first][0]
        if not leading.model.pads:
            parts = self._take_any_length(budget)
            self._rotate(first, leading)
            return parts
        length, cost = leading.longest.length, max(1, leading.longest.cost)
        parts = [(leading, leading.take(length, length, 1))]
        count = 1
        for ratio in LENGTH_RATIOS:
            reach = ratio**0.5  # items may be longer and shorter than the first by this factor
            room = int(budget * reach / cost) - count
            share = -(-room // max(1, len(self._owners)))
            for most in (share, room):
                for owner in list(self._owners):
                    added = (
                        self._take_from(
                            owner, length / reach, length * reach, min(most, room), parts
                        )
                        if room > 0
                        else 0
                    )
                    count, room = count + added, room - added
            if count * cost >= least:
                break
        self._rotate(first, leading)
        return parts

    def _take_any_length(self, budget: int) -> list[BatchPart]:
        """Take each owner's share of the budget, and then the rest of the budget in order."""
        parts: list[BatchPart] = []
        for most in (-(-budget // len(self._owners)), budget):
            for tasks in list(self._owners.values()):
                most_here = most
                for task in list(tasks):
                    if min(most_here, budget) <= 0 or not task.waits:
                        continue
                    places = task.take_cost(min(most_here, budget))
                    cost = sum(task.item(place).cost for place in places)
                    budget, most_here = budget - cost, most_here - cost
                    parts.append((task, places))
        for owner in list(self._owners):
            waiting = deque(task for task in self._owners[owner] if task.waits)
            if waiting:
                self._owners[owner] = waiting
            else:
                del self._owners[owner]
        return parts

    def _rotate(self, first: str, leading: EncodeTask) -> None:
        """Move the first owner to the end, and the leading task to the end of its owner's tasks."""
        tasks = self._owners.pop(first, None)
        if tasks and not tasks[0].waits:
            tasks.popleft()
        if tasks:
            if tasks[0] is leading:
                tasks.rotate(-1)
            self._owners[first] = tasks

    def _take_from(
        self, owner: str, longest: float, shortest: float, most: int, parts: list[BatchPart]
    ) -> int:
        """Add up to `most` items of one owner to `parts`, and return their number."""
        count = 0
        tasks = self._owners.get(owner, deque())
        for task in list(tasks):
            if count == most:
                break
            places = task.take(longest, shortest, most - count)
            if places:
                parts.append((task, places))
                count += len(places)
            if not task.waits:
                tasks.remove(task)
        if not tasks:
            self._owners.pop(owner, None)
        return count
