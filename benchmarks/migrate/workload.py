"""Clients of the table: searches and writes at fixed times, each with its latency.

A process of its own. The times are fixed beforehand, and a latency counts from the scheduled time:
a search that had to wait for the one before it took longer (an open loop).
"""

from __future__ import annotations

import json
import multiprocessing
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.migrate.postgres import Database
from benchmarks.migrate.rows import Collection
from benchmarks.migrate.table import SEARCH

SEARCHES_PER_SECOND, WRITES_PER_SECOND = 50, 20
SEARCH_THREADS, WRITE_THREADS = 6, 4
NEAREST = 10
#: writes have ended when none is recorded for this time
SETTLE_S = 3.0

#: of each 20 writes
KINDS = ("insert",) * 5 + ("vector",) * 7 + ("payload",) * 5 + ("delete",) * 3


@dataclass(frozen=True)
class Load:
    """What the process needs. rows: how many the table has; later ones are written."""

    database: Database
    rows: Collection
    loaded: int
    log: Path
    encoders: tuple[str, str]


class Workload:
    """The running process. side: 0 while clients use the old encoder, 1 after the cutover."""

    def __init__(self, load: Load) -> None:
        context = multiprocessing.get_context("spawn")
        self.side = context.Value("i", 0)
        self._end, self._held = context.Event(), context.Event()
        self.log = load.log
        self._process = context.Process(
            target=_run, args=(load, self.side, self._held, self._end), daemon=True
        )

    def __enter__(self) -> Workload:
        self.log.unlink(missing_ok=True)
        self._process.start()
        while not self.log.exists() or not self.log.stat().st_size:
            if self._process.exitcode is not None:
                raise RuntimeError("the workload has ended")
            time.sleep(0.1)
        return self

    def hold(self) -> None:
        """Schedule no more writes, and return once those that are under way have ended."""
        self._held.set()
        size = -1
        while size != (size := self._writes()):
            time.sleep(SETTLE_S)

    def go_on(self) -> None:
        """Schedule writes again."""
        self._held.clear()

    def _writes(self) -> int:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return sum('"kind": "search"' not in line for line in lines)

    def stop(self) -> None:
        """End the process once all scheduled requests are answered."""
        self._end.set()
        self._process.join()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _run(load: Load, side: Any, held: Any, end: Any) -> None:
    _Clients(load, side, held, end).run()


class _Clients:
    def __init__(self, load: Load, side: Any, held: Any, end: Any) -> None:
        self._load, self._side, self._held, self._end = load, side, held, end
        self._queries = {
            encoder: load.rows.vectors[encoder][load.rows.queries] for encoder in load.encoders
        }
        self._searches: queue.Queue[tuple[float, int] | None] = queue.Queue()
        self._writes: list[queue.Queue[tuple[float, int] | None]] = [
            queue.Queue() for _ in range(WRITE_THREADS)
        ]
        self._lock = threading.Lock()

    def run(self) -> None:
        with self._load.log.open("w", encoding="utf-8") as log:
            threads = [
                *[
                    threading.Thread(target=self._search, args=(log,))
                    for _ in range(SEARCH_THREADS)
                ],
                *[
                    threading.Thread(target=self._write, args=(number, log))
                    for number in range(WRITE_THREADS)
                ],
            ]
            for thread in threads:
                thread.start()
            self._schedule()
            for thread in threads:
                thread.join()

    def _schedule(self) -> None:
        began, searches, writes = time.time(), 0, 0
        while not self._end.is_set():
            passed = time.time() - began
            while searches < passed * SEARCHES_PER_SECOND:
                self._searches.put((began + searches / SEARCHES_PER_SECOND, searches))
                searches += 1
            while writes < passed * WRITES_PER_SECOND:
                due = began + writes / WRITES_PER_SECOND
                if not self._held.is_set():
                    self._writes[writes % WRITE_THREADS].put((due, writes))
                writes += 1
            time.sleep(0.002)
        for each in (*[self._searches] * SEARCH_THREADS, *self._writes):
            each.put(None)

    def _record(self, log: TextIO, **entry: object) -> None:
        line = json.dumps(entry) + "\n"
        with self._lock:
            log.write(line)
            log.flush()

    def _search(self, log: TextIO) -> None:
        connection = self._load.database.connect()
        while (task := self._searches.get()) is not None:
            due, number = task
            encoder = self._load.encoders[self._side.value]
            query = self._queries[encoder][number % len(self._queries[encoder])]
            error = _attempt(connection, SEARCH, (query,))
            self._record(log, kind="search", due=due, s=time.time() - due, error=error)

    def _write(self, thread: int, log: TextIO) -> None:
        """Every row belongs to one thread, so that the order of its writes is known."""
        connection = self._load.database.connect()
        own = list(range(thread, self._load.loaded, WRITE_THREADS))
        draw = np.random.default_rng(thread)
        fresh = self._load.loaded + thread
        while (task := self._writes[thread].get()) is not None:
            due, number = task
            kind = KINDS[int(draw.integers(len(KINDS)))]
            place = int(draw.integers(len(own)))
            row = own[place]
            source: int | None = None
            if kind in ("insert", "vector"):
                source = fresh
                fresh += WRITE_THREADS
            if kind == "insert":
                row = fresh - WRITE_THREADS
            encoder = self._load.encoders[self._side.value]
            error = _attempt(connection, *self._statement(kind, row, source, encoder))
            if error is None and kind == "insert":
                own.append(row)
            if error is None and kind == "delete":
                own[place] = own[-1]
                own.pop()
            self._record(
                log,
                kind=kind,
                due=due,
                s=time.time() - due,
                number=number,
                row=row,
                source=source,
                encoder=encoder,
                error=error,
            )

    def _statement(
        self, kind: str, row: int, source: int | None, encoder: str
    ) -> tuple[str, tuple[object, ...]]:
        if kind == "delete":
            return "DELETE FROM items WHERE id = %s", (row,)
        if kind == "payload":
            return "UPDATE items SET revision = revision + 1 WHERE id = %s", (row,)
        rows = self._load.rows
        assert source is not None
        text, corpus = rows.text(source), rows.corpus(source)
        vector = rows.embed(encoder, np.array([source]))[0]
        if kind == "vector":
            return (
                "UPDATE items SET body = %s, corpus = %s, embedding = %s WHERE id = %s",
                (text, corpus, vector, row),
            )
        return (
            "INSERT INTO items (id, body, corpus, embedding) VALUES (%s, %s, %s, %s)",
            (row, text, corpus, vector),
        )


def _attempt(connection: Any, statement: str, values: tuple[object, ...]) -> str | None:
    """Run a statement; the error's class and text if it fails."""
    import psycopg

    try:
        cursor = connection.execute(statement, values)
        if cursor.description is None and cursor.rowcount != 1:
            return f"{cursor.rowcount} rows instead of 1"
    except psycopg.Error as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
