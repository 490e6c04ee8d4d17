"""Deadlines for a PostgreSQL server that stops answering without closing its connections.

It may be stopped, paused, or behind a dead network. Its own `statement_timeout` does not fire then,
and the kernel still acknowledges what is sent. So every wait of the driver has a deadline here.
Once a deadline has passed, every use of the server fails at once until it answers again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Engine, event

log = logging.getLogger("anchorage.database")

Value = TypeVar("Value")

#: limits of one statement: the one that the server enforces, and ours, if the server does not
STATEMENT_MS = 4_000
STATEMENT_S = 5.0

#: how often to try a server that is away
RECONNECT_EVERY_S = 0.2

_limit_s: ContextVar[float] = ContextVar("limit_s", default=STATEMENT_S)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes and raises OperationalError when the server is too slow."""

    watch: ServerWatch

    def wait(self, gen: PQGen[Value], *arguments: Any, **options: Any) -> Value:
        """Run a step of the protocol. psycopg waits nowhere else, not even for a commit."""
        if self.watch.silent:
            self.pgconn.finish()
            raise psycopg.OperationalError("PostgreSQL does not answer")
        return super().wait(self._bounded(gen, _limit_s.get()), *arguments, **options)

    def _bounded(self, gen: PQGen[Value], limit_s: float) -> PQGen[Value]:
        """Run the step until its deadline. psycopg resumes it ten times a second while idle."""
        deadline = time.monotonic() + limit_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    self.pgconn.finish()
                    self.watch.lost(silent=True)
                    raise psycopg.OperationalError(f"PostgreSQL has not answered for {limit_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            value: Value = end.value
            return value


class ServerWatch:
    """Knows whether the server answers. While it does not, a thread tries to connect.

    away    the last connection could not be made, or did not answer in time
    silent  it did not answer in time, so every use of the server fails at once
    """

    def __init__(self, engine: Engine) -> None:
        self.away = self.silent = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._arguments: tuple[list[Any], dict[str, Any]] = ([], {})
        event.listen(engine, "do_connect", self._connect)

    @staticmethod
    @contextmanager
    def within(seconds: float) -> Iterator[None]:
        """Limit every wait for PostgreSQL in this context to `seconds` instead of STATEMENT_S."""
        token = _limit_s.set(seconds)
        try:
            yield
        finally:
            _limit_s.reset(token)

    def lost(self, *, silent: bool = False) -> None:
        """Record that the server does not answer, and start the thread that tries it."""
        with self._lock:
            if self._closed.is_set():
                return
            if silent and not self.silent:
                log.warning(
                    "PostgreSQL does not answer: requests that need it are refused until it does"
                )
            self.away, self.silent = True, self.silent or silent
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._try_until_back, name="postgres-watch", daemon=True
                )
                self._thread.start()

    def answered(self) -> None:
        """Record that the server answers."""
        if self.away:
            with self._lock:
                if self.silent:
                    log.warning("PostgreSQL answers again")
                self.away = self.silent = False

    def close(self) -> None:
        """Stop trying."""
        self._closed.set()

    def _connect(
        self, _dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]
    ) -> BoundedConnection:
        if self.silent:
            raise psycopg.OperationalError("PostgreSQL does not answer")
        self._arguments = (arguments, options)
        limited = f"{options['options']} -c statement_timeout={STATEMENT_MS}"
        try:
            connection = BoundedConnection.connect(*arguments, **{**options, "options": limited})
        except psycopg.errors.ConnectionTimeout:
            self.lost(silent=True)
            raise
        connection.watch = self
        return connection

    def _try_until_back(self) -> None:
        arguments, options = self._arguments
        while not self._closed.wait(RECONNECT_EVERY_S):
            with self._lock:
                if not self.away:
                    self._thread = None  # the next loss starts another thread
                    return
            try:
                psycopg.connect(*arguments, **options).close()
            except Exception as error:  # this thread must not end while requests are refused
                log.debug("PostgreSQL is still away: %s", error)
            else:
                self.answered()
