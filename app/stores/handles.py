"""Opened stores of one process, and the threads that call them.

A store that no longer answers must not occupy the threads that answer requests. Each address has
a few threads, and callers wait for their results no longer than a deadline.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from app.errors import AnchorageError, Overloaded, StoreUnavailable
from app.stores.base import Store, StoreLocation
from app.stores.common import raised_by
from app.stores.hidden_urls import fault_without_url, hide_url
from app.stores.registry import open_store

log = logging.getLogger("anchorage.stores")

#: most stores that one process keeps open; the least recently used is closed first
MOST_OPEN_STORES = 64

#: most calls of one address that run at once, and that wait
CALLS_AT_ONCE, CALLS_WAITING = 8, 24

#: a call that runs longer than this counts as stuck
STUCK_S = 10.0

#: how long `close` waits for a store that does not answer
CLOSE_S = 2.0

#: packages that call stores: what they raise says something about the store, and not about us
STORE_LIBRARIES = frozenset(
    {
        "aiobotocore",
        "adlfs",
        "boto3",
        "botocore",
        "chromadb",
        "chromadb_rust_bindings",
        "fsspec",
        "gcsfs",
        "grpc",
        "httpcore",
        "httpx",
        "lance",
        "lancedb",
        "pgvector",
        "psycopg",
        "psycopg_binary",
        "pyarrow",
        "pyo3_runtime",
        "qdrant_client",
        "requests",
        "s3fs",
        "sqlite3",
        "urllib3",
    }
)

Result = TypeVar("Result")


class StoreHandles:
    """One opened store for each location, and the calls of each address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: OrderedDict[str, Store] = OrderedDict()
        self._callers: dict[str, _Callers] = {}

    def open(self, location: StoreLocation) -> Store:
        """Return the store, without connecting. Raises StoreUnsupported and ConnectorMissing."""
        key = _key(location)
        with self._lock:
            found = self._stores.get(key)
            if found is not None:
                self._stores.move_to_end(key)
                return found
        opened = open_store(location)  # imports the connector, which may take seconds
        with self._lock:
            found = self._stores.setdefault(key, opened)
            evicted = []
            while len(self._stores) > MOST_OPEN_STORES:
                evicted.append(self._stores.popitem(last=False)[1])
        _close_all(evicted)
        return found

    def submit(self, location: StoreLocation, call: Callable[[Store], Result]) -> Future[Result]:
        """Call the store in a thread of its address.

        The future raises the errors of the store without its URL. Raises StoreUnavailable while
        every thread of the address is stuck, and Overloaded when too many calls wait.
        """
        with self._lock:
            callers = self._callers.setdefault(location.url, _Callers())
        return callers.submit(lambda: _without_url(location, lambda: call(self.open(location))))

    def forget(self, location: StoreLocation) -> None:
        """Close the store of a location, if it is open."""
        with self._lock:
            found = self._stores.pop(_key(location), None)
        _close_all([] if found is None else [found])

    def close(self) -> None:
        """Close all stores, and end the threads that do not wait for one."""
        with self._lock:
            stores, self._stores = list(self._stores.values()), OrderedDict()
            callers, self._callers = list(self._callers.values()), {}
        for each in callers:
            each.close()
        _close_all(stores)


class _Callers:
    """The threads of one address. The first calls start them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = 0
        self._waiting = 0
        #: when each running call began
        self._running: dict[int, float] = {}

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._lock:
            stuck_since = time.monotonic() - STUCK_S
            if sum(begun < stuck_since for begun in self._running.values()) >= CALLS_AT_ONCE:
                raise StoreUnavailable(
                    "The store does not answer. Check it, and try again.", retry_after_s=5
                )
            if self._waiting >= CALLS_AT_ONCE + CALLS_WAITING:
                raise Overloaded(
                    f"{self._waiting} calls of this store's address wait or run, which is the "
                    "limit. Try again in 1 s.",
                    retry_after_s=1,
                )
            self._waiting += 1
            if self._threads < min(CALLS_AT_ONCE, self._waiting):
                name = f"store-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        with suppress(Empty):
            while (entry := self._calls.get_nowait()) is not None:
                entry[0].cancel()
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            if future.set_running_or_notify_cancel():
                with self._lock:
                    self._running[threading.get_ident()] = time.monotonic()
                with suppress(InvalidStateError):
                    try:
                        future.set_result(call())
                    except BaseException as error:
                        future.set_exception(error)
            with self._lock:
                self._running.pop(threading.get_ident(), None)
                self._waiting -= 1
            del entry, future, call  # or the thread would hold the last result


def _key(location: StoreLocation) -> str:
    parts = (location.kind, location.url, location.collection)
    fields = (location.vector_field, location.id_field, location.text_field)
    return json.dumps([*parts, *fields, dict(location.options)], sort_keys=True, default=str)


def _close_all(stores: list[Store]) -> None:
    """Close stores. One that does not answer is left to a thread after CLOSE_S seconds."""
    threads = [threading.Thread(target=_close, args=(each,), daemon=True) for each in stores]
    for thread in threads:
        thread.start()
    until = time.monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _close(store: Store) -> None:
    try:
        store.close()
    except Exception as error:
        fault = fault_without_url(error, store.location.url)
        log.warning("closing a store of kind %s failed: %s", store.location.kind, fault)


def _without_url(location: StoreLocation, call: Callable[[], Result]) -> Result:
    """Return the call's result. Its errors do not contain the URL, and have no cause that might.

    Errors of the store's library and of the operating system become StoreUnavailable; others are
    faults of the service.
    """
    try:
        return call()
    except AnchorageError as error:
        error.detail = hide_url(error.detail, location.url)
        error.args = (error.detail,)
        error.__cause__, error.__context__ = None, None
        raise
    except (MemoryError, CancelledError):
        raise
    except BaseException as error:
        fault: Exception = fault_without_url(error, location.url)
        if is_fault_of_store(error):
            log.warning("a call of a store of kind %s failed: %s", location.kind, fault)
            kind = type(error).__name__
            fault = StoreUnavailable(f"The store failed with {kind}. Check it, and try again.")
    raise fault


def is_fault_of_store(error: BaseException) -> bool:
    """Return whether the operating system or a store's library raised an error.

    A library that reads an answer which it does not expect may raise any class of errors.
    """
    package = type(error).__module__.partition(".")[0]
    if isinstance(error, OSError) or package in STORE_LIBRARIES:
        return True
    return raised_by(error, STORE_LIBRARIES)
