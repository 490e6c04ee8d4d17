"""Opened stores of one process, the addresses that an operator allows, and the threads for calls.

Clients name an address, and never send a URL.

A store that no longer answers must not occupy the threads that answer requests. Each call has a
thread of its own, and a turn at the few calls of its address; callers wait for their results no
longer than a deadline.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from app.db.tables import StoreRow
from app.errors import AddressNotListed, AnchorageError, StoreUnavailable
from app.stores.hidden_urls import digest_of, fault_without_url, hide_url, without_password
from app.stores.port import Store, StoreLocation
from app.stores.registry import LOADED, has_cutover, load_connector, open_store
from app.turns import Turns

log = logging.getLogger("anchorage.stores")

#: most stores that one process keeps open; the least recently used is closed first
MAX_OPEN_STORES = 64

#: most calls of one address that run at once, and that wait
CALLS_AT_ONCE, CALLS_WAITING = 8, 24

#: most calls at once of a store in this process, which share its cores with all other requests;
#: one project gets half of them
EMBEDDED_CALLS_AT_ONCE = max(4, os.cpu_count() or 1)

#: how long a request waits for one answer of a store
STORE_ANSWER_S = 10.0

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


def find_address(
    addresses: Mapping[str, StoreAddress], given: str, project: str
) -> tuple[str, StoreAddress]:
    """Return both by the name, or by the URL without its password. Raises AddressNotListed."""
    own = {name: each for name, each in addresses.items() if project in each.projects}
    for name, each in own.items():
        if given in (name, without_password(each.url)) or given.endswith(f"-{digest_of(each.url)}"):
            return name, each
    # Somebody may send a URL with a password: only what looks like a name is repeated.
    named = repr(given) if _NAME.fullmatch(given) else "a URL"
    raise AddressNotListed(
        f"`address` is {named}, and ANCHORAGE_STORES of the service lists for this project: "
        f"{', '.join(map(repr, own)) or 'none'}. Send such a name, or ask the operator to add it.",
        field="address",
        more={"addresses": [*own]},
    )


class StoreHandles:
    """One opened store for each location, and the calls of each address that is listed."""

    def __init__(self, addresses: Mapping[str, StoreAddress] | None = None) -> None:
        self.addresses = addresses or {}
        self._lock = threading.Lock()
        self._stores: OrderedDict[str, Store] = OrderedDict()
        self._turns: dict[str, Turns] = {}

    def location(self, row: StoreRow) -> StoreLocation:
        """Return where a store is. Raises AddressNotListed once the operator removed its address.

        The location holds the URL: never show it.
        """
        return StoreLocation(
            kind=row.kind,
            url=find_address(self.addresses, row.address, row.project)[1].url,
            collection=row.collection,
            vector_field=row.options.get("vector_field"),
            id_field=row.options.get("id_field"),
            text_field=row.options.get("text_field"),
            options=row.options.get("options") or {},
        )

    async def ask(
        self, row: StoreRow, call: Callable[[Store], Result], *, within_s: float = STORE_ANSWER_S
    ) -> Result:
        """Call a store, and wait on the event loop for its answer.

        Raises AddressNotListed, StoreUnsupported, ConnectorMissing, the errors of the store without
        its URL, StoreUnavailable after `within_s` seconds, and what `Turns.take` raises.
        """
        if row.kind not in LOADED:  # an import may take seconds, which are not the store's
            await asyncio.to_thread(load_connector, row.kind)
        with _late_answers(row, within_s):
            future = self._begin(row, call, within_s)
            return await asyncio.wait_for(asyncio.wrap_future(future), within_s)

    def wait(
        self, row: StoreRow, call: Callable[[Store], Result], *, within_s: float = STORE_ANSWER_S
    ) -> Result:
        """Call a store, and wait in this thread."""
        load_connector(row.kind)
        with _late_answers(row, within_s):
            future = self._begin(row, call, within_s)
            try:
                return future.result(within_s)
            finally:
                future.cancel()

    def _begin(
        self, row: StoreRow, call: Callable[[Store], Result], within_s: float
    ) -> Future[Result]:
        """Call the store in a new thread, which holds the project's turn until the call ends."""
        location = self.location(row)
        at_once = CALLS_AT_ONCE if has_cutover(row.kind) else EMBEDDED_CALLS_AT_ONCE
        with self._lock:
            turns = self._turns.setdefault(
                location.url, Turns("calls of a store's address", at_once, CALLS_WAITING)
            )
        future: Future[Result] = Future()

        def work() -> None:
            with suppress(InvalidStateError):  # the caller no longer waits
                try:
                    with turns.take(row.project, within_s):
                        if future.set_running_or_notify_cancel():
                            future.set_result(self.call(location, call))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, name="store", daemon=True).start()
        return future

    def call(self, location: StoreLocation, call: Callable[[Store], Result]) -> Result:
        """Return the call's result. Its errors hold no URL, and have no cause that might.

        Connectors translate the errors of their libraries. What the operating system raises, and a
        library that panics, is a fault of the store too; other errors are faults of the service.
        """
        try:
            return call(self.open(location))
        except AnchorageError as error:
            error.detail = hide_url(error.detail, location.url)
            error.args = (error.detail,)
            error.__cause__, error.__context__ = None, None
            raise
        except MemoryError:
            raise
        except BaseException as error:
            fault: Exception = fault_without_url(error, location.url)
            if isinstance(error, OSError) or not isinstance(error, Exception):
                log.warning("a call of a store of kind %s failed: %s", location.kind, fault)
                kind = type(error).__name__
                fault = StoreUnavailable(f"The store failed with {kind}. Check it, and try again.")
        raise fault

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

    def forget(self, location: StoreLocation) -> None:
        """Close the store of a location, if it is open."""
        with self._lock:
            found = self._stores.pop(_key(location), None)
        _close_all([] if found is None else [found])

    def close(self) -> None:
        """Close all stores."""
        with self._lock:
            stores, self._stores = list(self._stores.values()), OrderedDict()
        _close_all(stores)


@contextmanager
def _late_answers(row: StoreRow, within_s: float) -> Iterator[None]:
    """Name the address of a store that does not answer."""
    try:
        yield
    except TimeoutError:
        raise StoreUnavailable(
            f"The store at address {row.address!r} did not answer within {within_s:g} s. Check it, "
            "and try again.",
            retry_after_s=5,
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
