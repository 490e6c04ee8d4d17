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
from app.services.context import Repeat, Services, origin
from app.storage import tables
from app.storage.queries import access

log = logging.getLogger("anchorage.writes")

#: a try that has not ended by then was lost with its process, and another may make what it did not
CLAIM_S = 60

Made = TypeVar("Made", bound=tables.Owned)


def idempotent(
    services: Services, project: str, table: type[Made], make: Callable[[], Made]
) -> Made:
    """`make()`, or what an earlier request with this Idempotency-Key made.

    A lost process cannot make it twice: what was made is noted in the transaction that makes it.
    Raises IdempotencyKeyReused, RequestInProgress, ResourceGone, and what `make` raises.
    """
    who = origin.get()
    if who.repeat is None:
        return make()
    claim = _claim(services, project, who.repeat)
    if isinstance(claim, str):
        return _recall(services, table, claim)
    token = origin.set(replace(who, claim=claim))
    try:
        row = make()
    except Exception:
        _release(services, claim)
        raise
    finally:
        origin.reset(token)
    with services.db.transaction() as session:  # for a `make` that found its row made already
        access.settle_request(session, *claim, made=row.id)
    return row


def _claim(services: Services, project: str, repeat: Repeat) -> tuple[str, str] | str:
    """The claim of this try, or the row id of what an earlier try made."""
    claim = tables.new_id()
    until = tables.now() + timedelta(seconds=CLAIM_S)
    busy = RequestInProgress("an earlier try of this request is still at work", retry_after_s=1)
    with services.db.transaction() as session:
        row = access.idempotent_request(session, project, repeat.key)
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
        if not access.take_over_request(
            session, row.id, now=tables.now(), claim=claim, until=until
        ):
            raise busy
        return row.id, claim


def _release(services: Services, claim: tuple[str, str]) -> None:
    """Forget a request that made nothing. A database that is away remembers it until its claim ends."""
    try:
        with services.db.transaction() as session:
            access.release_request(session, *claim)
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
