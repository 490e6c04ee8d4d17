"""Threads that compute matrix products: one lane a core, one torch thread a lane.

Two products with two threads each on two cores spend their time waiting for each other. Lanes take
spans of rows in turns from all owners, and of each from all its requests: a single request gets all
cores, several share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import torch

from app.errors import blaming

#: held while torch's number of threads differs from the process's
_changing = threading.Lock()


def use_threads(count: int) -> None:
    """Give this thread `count` torch threads, and keep the number for threads that start later.

    Torch otherwise sets the number of threads for all later threads.
    """
    with _changing:
        others = torch.get_num_threads()
        torch.set_num_threads(count)
        # Another thread restores the number: this call changes both this thread and later ones.
        restorer = threading.Thread(target=torch.set_num_threads, args=(others,))
        restorer.start()
        restorer.join()


#: computes the rows start..stop
Span = Callable[[int, int], None]


class _Task:
    """The rows of one request, and which of them are done."""

    def __init__(self, span: Span, rows: int, step: int) -> None:
        self._span, self._rows, self._step = span, rows, step
        self._next = 0
        self._left = -(-rows // step)
        self._lock = threading.Lock()
        self.future: Future[None] = Future()

    def run_one(self) -> bool:
        """Compute the next span; return whether there may be another."""
        with self._lock:
            start = self._next
            self._next += self._step
        if start >= self._rows or self.future.done():
            return False
        try:
            with blaming(rows_from=start):
                self._span(start, min(start + self._step, self._rows))
        except BaseException as error:
            with suppress(InvalidStateError):
                self.future.set_exception(error)
            return False
        with self._lock:
            self._left -= 1
            whole = self._left == 0
        if whole:
            with suppress(InvalidStateError):
                self.future.set_result(None)
        return start + self._step < self._rows


class Lanes:
    """The threads. The first product starts them."""

    def __init__(self, count: int | None = None, *, name: str = "products") -> None:
        self.count = count or torch.get_num_threads()
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        #: the tasks that wait; the owner whose turn was longest ago first
        self._owners: dict[str, list[_Task]] = {}

    def submit(self, span: Span, rows: int, step: int, owner: str = "") -> Future[None]:
        """Call `span` for all rows, `step` at a time, in any order.

        The rows of an AnchorageError are rows of the request, not of the span.
        """
        task = _Task(span, rows, step)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.count, self._name, partial(use_threads, 1))
            for _ in range(min(self.count, -(-rows // step))):
                self._owners.setdefault(owner, []).append(task)
                self._pool.submit(self._work)
        if rows == 0:
            task.future.set_result(None)
        return task.future

    def close(self) -> None:
        """Stop the lanes after all queued work. Later work starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _work(self) -> None:
        """Compute spans, the next of each owner in turn, until none waits."""
        while True:
            with self._lock:
                if not self._owners:
                    return
                owner, (task, *others) = next(iter(self._owners.items()))
                del self._owners[owner]
                if others:
                    self._owners[owner] = others
            if task.run_one():
                with self._lock:
                    self._owners.setdefault(owner, []).append(task)
