"""Deadlines for a PostgreSQL that stops answering without closing anything: stopped, paused, or behind a dead network.

The server's own `statement_timeout` does not fire there, and the kernel goes on acknowledging what is sent. So every wait of the
driver ends here after a stated time, and from then on, until the server answers again, nobody else waits for it at all.
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

#: how long one statement may take: the server's own limit, and ours for a server that does not keep it
STATEMENT_MS = 4_000
STATEMENT_S = 5.0

#: how often a server that is away is asked whether it is back
KNOCK_EVERY_S = 0.2

_limit_s: ContextVar[float] = ContextVar("limit_s", default=STATEMENT_S)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """In this context, every wait for PostgreSQL ends after this time instead of STATEMENT_S."""
    token = _limit_s.set(seconds)
    try:
        yield
    finally:
        _limit_s.reset(token)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed, and raises OperationalError, when the server does not answer in time."""

    watch: ServerWatch

    def wait(self, gen: PQGen[Value], *arguments: Any, **options: Any) -> Value:
        """Run a step of the protocol: psycopg waits nowhere else, be it for a statement, a commit, a rollback or a ping."""
        if self.watch.silent:
            self.pgconn.finish()
            raise psycopg.OperationalError("PostgreSQL does not answer")
        return super().wait(self._bounded(gen, _limit_s.get()), *arguments, **options)

    def _bounded(self, gen: PQGen[Value], limit_s: float) -> PQGen[Value]:
        """The same step, until the time is over. psycopg resumes it ten times a second with nothing to read or write."""
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
    """Whether the server answers. While it does not, a thread of its own asks until it does.

    away    the last connection could not be made, or was lost in silence
    silent  it was lost in silence: whoever waits for this server waits in vain, so every use of it fails at once
    """

    def __init__(self, engine: Engine) -> None:
        self.away = self.silent = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._arguments: tuple[list[Any], dict[str, Any]] = ([], {})
        event.listen(engine, "do_connect", self._connect)

    def lost(self, *, silent: bool = False) -> None:
        """Note that the server does not answer, and begin to ask."""
        with self._lock:
            if self._closed.is_set():
                return
            if silent and not self.silent:
                log.warning(
                    "PostgreSQL is silent: requests that need it are refused until it answers"
                )
            self.away, self.silent = True, self.silent or silent
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._knock, name="postgres-watch", daemon=True
                )
                self._thread.start()

    def answered(self) -> None:
        """Note that the server answers."""
        if self.away:
            with self._lock:
                if self.silent:
                    log.warning("PostgreSQL answers again")
                self.away = self.silent = False

    def close(self) -> None:
        """Ask no more."""
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

    def _knock(self) -> None:
        arguments, options = self._arguments
        while not self._closed.wait(KNOCK_EVERY_S):
            with self._lock:
                if not self.away:
                    self._thread = None  # whoever notes the next loss starts another
                    return
            try:
                psycopg.connect(*arguments, **options).close()
            except (
                Exception
            ) as error:  # whatever it is, this thread must not end while requests are refused
                log.debug("PostgreSQL is still away: %s", error)
            else:
                self.answered()
