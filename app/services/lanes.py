"""Threads that compute matrix products: one lane a core, one torch thread a lane.

Two products with two threads each on two cores spend their time waiting for each other. Lanes take
spans of rows in turns from all requests: a single request gets all cores, several share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue

import torch

from app.encoders.threads import use_threads
from app.errors import blaming

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

    @property
    def spans(self) -> int:
        return self._left

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
        self._name = name
        self._count = count or torch.get_num_threads()
        self._tickets: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    @property
    def count(self) -> int:
        """Number of threads."""
        return self._count

    def submit(self, span: Span, rows: int, step: int) -> Future[None]:
        """Call `span` for all rows, `step` at a time, in any order.

        The rows of an AnchorageError are rows of the request, not of the span.
        """
        task = _Task(span, rows, step)
        self._start()
        for _ in range(min(self._count, task.spans)):
            self._tickets.put(task)
        if rows == 0:
            task.future.set_result(None)
        return task.future

    def close(self) -> None:
        """Stop the lanes after all queued work."""
        with self._starting:
            for _ in self._threads:
                self._tickets.put(None)
            for thread in self._threads:
                thread.join()
            self._threads = []
        # A task that shared the lanes has its next span queued behind the None that ends a lane.
        with suppress(Empty):
            while (task := self._tickets.get_nowait()) is not None:
                while task.run_one():
                    pass

    def _start(self) -> None:
        if len(self._threads) == self._count:
            return
        with self._starting:
            while len(self._threads) < self._count:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._lane, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _lane(self) -> None:
        use_threads(1)
        while (task := self._tickets.get()) is not None:
            if task.run_one():
                self._tickets.put(task)
