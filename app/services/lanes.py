"""Where products are computed: as many lanes as cores, one torch thread each, shared by all requests row by row.

Two products of two threads each on two cores spend their time waiting for each other. Here a request's rows are cut into spans,
and lanes take a span of one request after a span of another: alone, a request has all cores; among others, its share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue

import torch

from app.encoders.threads import use_threads
from app.errors import AnchorageError

#: work of a span: what it does to rows start..stop
Span = Callable[[int, int], None]


class _Task:
    """One request's rows on their way."""

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
        """The next span; whether there may be another."""
        with self._lock:
            start = self._next
            self._next += self._step
        if start >= self._rows or self.future.done():
            return False
        try:
            self._span(start, min(start + self._step, self._rows))
        except BaseException as error:
            if isinstance(error, AnchorageError):
                error.shifted(start)
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
    """The threads; they start when they are first needed."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or torch.get_num_threads()
        self._tickets: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def submit(self, span: Span, rows: int, step: int) -> Future[None]:
        """Have `span` called for all rows, `step` at a time and in no order. An AnchorageError's rows count from the first."""
        task = _Task(span, rows, step)
        self._start()
        for _ in range(min(self._count, task.spans)):
            self._tickets.put(task)
        if rows == 0:
            task.future.set_result(None)
        return task.future

    def close(self) -> None:
        """Let the lanes end after what waits."""
        with self._starting:
            for _ in self._threads:
                self._tickets.put(None)
            for thread in self._threads:
                thread.join()
            self._threads = []
        # Of a task that took turns with others, the next span waited behind the word to end.
        with suppress(Empty):
            while (task := self._tickets.get_nowait()) is not None:
                while task.run_one():
                    pass

    def _start(self) -> None:
        if len(self._threads) == self._count:
            return
        with self._starting:
            while len(self._threads) < self._count:
                thread = threading.Thread(
                    target=self._lane, name=f"products-{len(self._threads)}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def _lane(self) -> None:
        use_threads(1)
        while (task := self._tickets.get()) is not None:
            if task.run_one():
                self._tickets.put(task)
