"""Opens the store of a row, and calls it within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from app.errors import AnchorageError, StoreUnavailable
from app.services.context import Services
from app.storage import tables
from app.stores.addresses import find_address
from app.stores.base import Store, StoreLocation
from app.stores.hidden_urls import hide_url

#: how long a request waits for one answer of a store
STORE_ANSWER_S = 10.0

Answer = TypeVar("Answer")


def location_of(services: Services, row: tables.StoreRow) -> StoreLocation:
    """Return where a store is. Raises AddressNotListed once the operator has removed its address.

    The location holds the URL: never show it.
    """
    options = row.options
    return StoreLocation(
        kind=row.kind,
        url=find_address(services.store_addresses, row.address, row.project).url,
        collection=row.collection,
        vector_field=options.get("vector_field"),
        id_field=options.get("id_field"),
        text_field=options.get("text_field"),
        options=options.get("options") or {},
    )


def open_row(services: Services, row: tables.StoreRow) -> Store:
    """Return the store of a row, opened once in this process, without connecting.

    For jobs, whose calls may take longer than a request's. Raises AddressNotListed,
    StoreUnsupported, ConnectorMissing.
    """
    return services.stores.open(location_of(services, row))


def call_row(
    services: Services,
    row: tables.StoreRow,
    call: Callable[[Store], Answer],
    *,
    within_s: float = STORE_ANSWER_S,
) -> Answer:
    """Call the store of a row, and wait in this thread for its answer.

    Raises the errors of `open_row` and of the store, StoreUnavailable after `within_s` seconds, and
    Overloaded.
    """
    with services.calling_store():
        future = _submit(services, row, call)
        try:
            return future.result(within_s)
        except TimeoutError:
            future.cancel()
            raise _silent(row, within_s) from None
        except CancelledError:
            raise _closing(row) from None


async def ask_row(
    services: Services,
    row: tables.StoreRow,
    call: Callable[[Store], Answer],
    *,
    within_s: float = STORE_ANSWER_S,
) -> Answer:
    """Call the store of a row, and wait on the event loop. Raises as `call_row`."""
    future = _submit(services, row, call)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), within_s)
    except TimeoutError:
        raise _silent(row, within_s) from None
    except CancelledError:
        raise _closing(row) from None


def _submit(
    services: Services, row: tables.StoreRow, call: Callable[[Store], Answer]
) -> Future[Answer]:
    try:
        return services.stores.submit(location_of(services, row), call)
    except StoreUnavailable:
        raise StoreUnavailable(
            f"The store at address {row.address!r} does not answer. Check it, and try again.",
            retry_after_s=5,
        ) from None


def safe_detail(services: Services, row: tables.StoreRow, error: AnchorageError) -> str:
    """Return the text of an error of a store without the store's URL."""
    return hide_url(error.detail, location_of(services, row).url)


def _silent(row: tables.StoreRow, within_s: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store at address {row.address!r} did not answer within {within_s:g} s. Check it, "
        "and try again.",
        retry_after_s=5,
    )


def _closing(row: tables.StoreRow) -> StoreUnavailable:
    return StoreUnavailable(
        f"The service stopped before the store at address {row.address!r} answered. Try again."
    )
