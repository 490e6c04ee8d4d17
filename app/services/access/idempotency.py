"""Idempotent requests: a request that a client sends again returns what the first try made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.exc import IntegrityError

from app.errors import (
    DatabaseUnavailable,
    IdempotencyKeyReused,
    RequestInProgress,
    ResourceGone,
)
from app.services.context import Services
from app.services.request_context import Repeat, RequestContext
from app.storage import tables
from app.storage.queries import resources

log = logging.getLogger("anchorage.writes")

#: a try that has not ended by then was lost with its process, and another may make what it did not
CLAIM_S = 60

Made = TypeVar("Made", bound=tables.Owned)


def idempotent(
    services: Services,
    context: RequestContext,
    repeat: Repeat | None,
    table: type[Made],
    make: Callable[[RequestContext], Made],
) -> Made:
    """Return the row that `make` creates, or that an earlier request with the same key created.

    `make` gets the context to write with: its claim lets only one try of a request commit, so a
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
        _release(services, claim)
        raise
    with services.db.transaction() as session:  # for a `make` that found its row made already
        resources.settle_request(session, *claim, made=row.id)
    return row


def _claim(services: Services, project: str, repeat: Repeat) -> tuple[str, str] | str:
    """The claim of this try, or the row id of what an earlier try made."""
    claim = tables.new_id()
    until = tables.now() + timedelta(seconds=CLAIM_S)
    busy = RequestInProgress("an earlier try of this request is still at work", retry_after_s=1)
    with services.db.transaction() as session:
        row = resources.idempotent_request(session, project, repeat.key)
        if row is None:
            row = tables.IdempotentRequestRow(
                project=project,
                key=repeat.key,
                fingerprint=repeat.fingerprint,
                claim=claim,
                claimed_until=until,
            )
            session.add(row)
            try:
                session.flush()
            except IntegrityError:  # a try of the same moment
                raise busy from None
            return row.id, claim
        if row.fingerprint != repeat.fingerprint:
            raise IdempotencyKeyReused(
                "this Idempotency-Key was used for another request", field="Idempotency-Key"
            )
        if row.made is not None:
            return row.made
        if not resources.take_over_request(
            session, row.id, now=tables.now(), claim=claim, until=until
        ):
            raise busy
        return row.id, claim


def _release(services: Services, claim: tuple[str, str]) -> None:
    """Forget a request that made nothing. A database that is away remembers it until its claim ends."""
    try:
        with services.db.transaction() as session:
            resources.release_request(session, *claim)
    except DatabaseUnavailable as error:
        log.warning("an idempotent request is remembered for %d s more: %s", CLAIM_S, error.detail)


def _recall(services: Services, table: type[Made], row_id: str) -> Made:
    with services.db.transaction() as session:
        row = session.get(table, row_id)
    if row is None:
        raise ResourceGone(
            "this request made something that has been deleted since; use a new Idempotency-Key to make it again"
        )
    return row
