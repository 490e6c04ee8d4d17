"""Opened stores of one process, the addresses that an operator allows, and the threads for calls.

Clients name an address, and never send a URL.

A store that no longer answers must not occupy the threads that answer requests. Each address has
a few threads, and callers wait for their results no longer than a deadline.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from app.errors import AddressNotListed, AnchorageError, Overloaded, StoreUnavailable
from app.stores.hidden_urls import fault_without_url, hide_url
from app.stores.port import Store, StoreLocation
from app.stores.registry import LOADED, load_connector, open_store
from app.turns import Turns

log = logging.getLogger("anchorage.stores")

#: most stores that one process keeps open; the least recently used is closed first
MAX_OPEN_STORES = 64

#: most calls of one address that run at once, and that wait
CALLS_AT_ONCE, CALLS_WAITING = 8, 24

#: how long a request waits for one answer of a store
STORE_ANSWER_S = 10.0

#: a call that runs longer than this counts as stuck
STUCK_S = 10.0

#: how long `close` waits for a store that does not answer
CLOSE_S = 2.0

#: what looks like the name of an address
_NAME = re.compile(r"[\w.-]{1,100}")

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoreAddress:
    """A URL that may hold a password, and the projects that may use it."""

    url: str = field(repr=False)
    projects: frozenset[str] = frozenset({"default"})


def find_address(addresses: Mapping[str, StoreAddress], name: str, project: str) -> StoreAddress:
    """Return the address. Raises AddressNotListed if this project may not use one of that name."""
    address = addresses.get(name)
    if address is None or project not in address.projects:
        # Somebody may send a URL with a password: only what looks like a name is repeated.
        named = f"named {name!r}" if _NAME.fullmatch(name) else "of that name"
        raise AddressNotListed(
            f"The server has no store address {named} for this project. Ask the operator "
            "to add it to ANCHORAGE_STORES, or use one that is listed there.",
            field="address",
        )
    return address


class RegisteredStore(Protocol):
    """A store as a client registered it. options: fields, and `options` of the kind."""

    @property
    def kind(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def collection(self) -> str: ...
    @property
    def options(self) -> dict[str, Any]: ...


class StoreHandles:
    """One opened store for each location, and the calls of each address that is listed."""

    def __init__(self, addresses: Mapping[str, StoreAddress] | None = None) -> None:
        self.addresses = addresses or {}
        self._lock = threading.Lock()
        self._stores: OrderedDict[str, Store] = OrderedDict()
        self._callers: dict[str, _Callers] = {}
        self._turns: dict[str, Turns] = {}

    def location(self, row: RegisteredStore) -> StoreLocation:
        """Return where a store is. Raises AddressNotListed once the operator removed its address.

        The location holds the URL: never show it.
        """
        return StoreLocation(
            kind=row.kind,
            url=find_address(self.addresses, row.address, row.project).url,
            collection=row.collection,
            vector_field=row.options.get("vector_field"),
            id_field=row.options.get("id_field"),
            text_field=row.options.get("text_field"),
            options=row.options.get("options") or {},
        )

    async def ask(
        self,
        row: RegisteredStore,
        call: Callable[[Store], Result],
        *,
        within_s: float = STORE_ANSWER_S,
    ) -> Result:
        """Call a store, and wait on the event loop for its answer.

        Raises AddressNotListed, StoreUnsupported, ConnectorMissing, the errors of the store,
        StoreUnavailable after `within_s` seconds, and Overloaded.
        """
        if row.kind not in LOADED:  # an import may take seconds, which are not the store's
            await asyncio.to_thread(load_connector, row.kind)
        with _errors_of(row, within_s):
            location = self.location(row)
            async with (
                asyncio.timeout(within_s),
                self._turns_of(location.url).take_async(row.project, within_s),
            ):
                return await asyncio.wrap_future(self.submit(location, call))

    def wait(
        self,
        row: RegisteredStore,
        call: Callable[[Store], Result],
        *,
        within_s: float = STORE_ANSWER_S,
    ) -> Result:
        """Call a store, and wait in this thread."""
        load_connector(row.kind)
        with _errors_of(row, within_s):
            location = self.location(row)
            with self._turns_of(location.url).take(row.project, within_s):
                future = self.submit(location, call)
                try:
                    return future.result(within_s)
                finally:
                    future.cancel()

    def open(self, location: StoreLocation) -> Store:
        """Return the store, without connecting."""
        key = _key(location)
        with self._lock:
            found = self._stores.get(key)
            if found is not None:
                self._stores.move_to_end(key)
                return found
        opened = open_store(location)
        with self._lock:
            found = self._stores.setdefault(key, opened)
            evicted = []
            while len(self._stores) > MAX_OPEN_STORES:
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

    def _turns_of(self, url: str) -> Turns:
        """Return the turns of projects at the threads of an address."""
        with self._lock:
            return self._turns.setdefault(
                url, Turns("calls of a store's address", CALLS_AT_ONCE, CALLS_WAITING)
            )

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


@contextmanager
def _errors_of(row: RegisteredStore, within_s: float) -> Iterator[None]:
    """Name the address in the errors of a store that does not answer."""
    try:
        yield
    except TimeoutError:
        raise StoreUnavailable(
            f"The store at address {row.address!r} did not answer within {within_s:g} s. Check it, "
            "and try again.",
            retry_after_s=5,
        ) from None
    except CancelledError:
        raise StoreUnavailable(
            f"The service stopped before the store at address {row.address!r} answered. Try again."
        ) from None


def _key(location: StoreLocation) -> str:
    return json.dumps(asdict(location), sort_keys=True, default=str)


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

    Connectors translate the errors of their libraries. What the operating system raises, and a
    library that panics, is a fault of the store too; other errors are faults of the service.
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
        if isinstance(error, OSError) or not isinstance(error, Exception):
            log.warning("a call of a store of kind %s failed: %s", location.kind, fault)
            kind = type(error).__name__
            fault = StoreUnavailable(f"The store failed with {kind}. Check it, and try again.")
    raise fault
