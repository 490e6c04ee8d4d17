"""Idempotent requests: a repeated request returns what its first try created."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import undefer

from app.errors import (
    DatabaseUnavailable,
    IdempotencyKeyReused,
    RequestInProgress,
    ResourceGone,
)
from app.services.context import Services
from app.services.request_context import Repeat, RequestContext
from app.storage import tables
from app.storage.queries import access, leases

log = logging.getLogger("anchorage.idempotency")

#: a try that takes longer was lost with its process, and another try may take over
REQUEST_LEASE_S = 60

CreatedRow = TypeVar("CreatedRow", bound=tables.Owned)


def idempotent(
    services: Services,
    context: RequestContext,
    repeat: Repeat | None,
    table: type[CreatedRow],
    make: Callable[[RequestContext], CreatedRow],
) -> CreatedRow:
    """Return the row that `make` creates, or that an earlier request with the same key created.

    `make` gets the context to write with: its lease lets only one try of a request commit, so a
    lost process cannot create a row twice. Without a key every request is carried out.
    Raises IdempotencyKeyReused, RequestInProgress, ResourceGone, and what `make` raises.
    """
    if repeat is None:
        return make(context)
    claim = _claim(services, context.project, repeat)
    if isinstance(claim, str):
        return _recall(services, table, claim)
    try:
        row = make(replace(context, claim=claim))
    except Exception:
        _forget(services, claim)
        raise
    with services.db.transaction() as session:  # where `make` found an existing row
        access.settle_request(session, *claim, made=row.id)
    return row


def _claim(services: Services, project: str, repeat: Repeat) -> tuple[str, str] | str:
    """Return the lease of this try, or the id of the row that an earlier try created."""
    lease = tables.new_id()
    busy = RequestInProgress(
        "An earlier try of this request is still running. Try again in 1 s.", retry_after_s=1
    )
    with services.db.transaction() as session:
        row = access.idempotent_request(session, project, repeat.key)
        if row is None:
            row = tables.IdempotentRequestRow(
                project=project,
                key=repeat.key,
                fingerprint=repeat.fingerprint,
                lease=lease,
                lease_until=leases.end_of_lease(session, REQUEST_LEASE_S),
            )
            session.add(row)
            try:
                session.flush()
            except IntegrityError:  # another try was faster
                raise busy from None
            return row.id, lease
        if row.fingerprint != repeat.fingerprint:
            raise IdempotencyKeyReused(
                "This Idempotency-Key belongs to another request. Use a new key.",
                field="Idempotency-Key",
            )
        if row.made is not None:
            return row.made
        unsettled = tables.IdempotentRequestRow.made.is_(None)
        if not leases.claim(
            session,
            tables.IdempotentRequestRow,
            row.id,
            lease,
            unsettled,
            seconds=REQUEST_LEASE_S,
        ):
            raise busy
        return row.id, lease


def _forget(services: Services, claim: tuple[str, str]) -> None:
    """Forget a request that failed. While the database is away, its lease has to run out."""
    try:
        with services.db.transaction() as session:
            access.forget_request(session, *claim)
    except DatabaseUnavailable as error:
        log.warning("a failed request is leased for %d s: %s", REQUEST_LEASE_S, error.detail)


def _recall(services: Services, table: type[CreatedRow], row_id: str) -> CreatedRow:
    with services.db.transaction() as session:
        row = session.get(table, row_id, options=[undefer("*")])
    if row is None:
        raise ResourceGone(
            "The resource that this request created has been deleted. Use a new Idempotency-Key "
            "to create it again."
        )
    return row
