"""API keys: a key identifies its caller, a project, and what the caller may do.

A key is `anc_<id>_<secret>`. The id finds the row, which holds the SHA-256 of the secret: a secret
of 256 random bits needs no slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.access import queries as access
from app.access.audit import record_audit
from app.context import Services
from app.db import tables
from app.errors import Conflict, DatabaseUnavailable, InvalidRequest, Unauthenticated
from app.request_context import RequestContext
from app.types import RATE, Scope

KEY_PATTERN = re.compile(r"anc_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")

#: a process looks a key up again after this time, during which a revoked key may still work there
KEY_TRUST_S = 2.0

#: while the database is away, keys still work this long after their last look-up, even revoked ones
KEY_TRUST_AWAY_S = 60.0

#: most keys that a process remembers
MAX_REMEMBERED_KEYS = 10_000

#: how often `last_used_at` is written
LAST_USED_PRECISION = timedelta(minutes=1)

#: weakest first: each scope includes those before it
SCOPE_ORDER = list(Scope)


@dataclass(frozen=True)
class Caller:
    """The caller of a request. Without keys: the project `default`, with every scope."""

    project: str = "default"
    key_id: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    rate_limit: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether one of the key's scopes is this scope or includes it."""
        return scope in self.scopes or any(
            SCOPE_ORDER.index(own) >= SCOPE_ORDER.index(scope) for own in self.scopes
        )


def create_key(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    scopes: Sequence[Scope],
    expires_at: datetime | None = None,
    rate_limit: str | None = None,
) -> tuple[tables.ApiKeyRow, str]:
    """Return the row of a new key, and the key, which is stored nowhere. Raises InvalidRequest."""
    if not name.strip() or not name.isprintable() or len(name) > tables.NAME_LENGTH:
        raise InvalidRequest(
            f"Expected a name of 1 to {tables.NAME_LENGTH} printable characters.", field="name"
        )
    if not scopes:
        raise InvalidRequest("Expected at least one scope: read, write or admin.", field="scopes")
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= tables.now()):
        raise InvalidRequest(
            "`expires_at` must lie in the future and have an offset from UTC.", field="expires_at"
        )
    check_rate(rate_limit, field="rate_limit")
    with services.db.transaction() as session:
        return _add_key(
            session,
            context,
            "create",
            project=context.project,
            name=name,
            scopes=[scope.value for scope in SCOPE_ORDER if scope in scopes],
            rate_limit=rate_limit,
            expires_at=expires_at,
        )


def rotate_key(
    services: Services, context: RequestContext, key_id: str, *, grace_s: float
) -> tuple[tables.ApiKeyRow, str]:
    """Return a new key with the old one's rights; the old key works for `grace_s` longer.

    Raises ApiKeyNotFound, InvalidRequest, Conflict.
    """
    now = tables.now()
    with services.db.transaction() as session:
        old = access.api_key(session, context.project, key_id, lock=True)
        if not _is_usable(old):
            raise InvalidRequest(
                "This key has expired or was revoked. Create a new key.", field="id"
            )
        same = {
            field: getattr(old, field)
            for field in ("project", "name", "scopes", "rate_limit", "expires_at")
        }
        end = now + timedelta(seconds=grace_s)
        if not access.end_key(
            session, old, end=end if old.expires_at is None else min(end, old.expires_at)
        ):
            raise Conflict(
                "Another request rotated or revoked this key. Check its state and try again."
            )
        return _add_key(session, context, "rotate", audit_id=key_id, **same)


def revoke_key(services: Services, context: RequestContext, key_id: str) -> None:
    """End a key now. Revoking it again changes nothing. Raises ApiKeyNotFound."""
    with services.db.transaction() as session:
        row = access.api_key(session, context.project, key_id, lock=True)
        if row.revoked_at is None:
            row.revoked_at = tables.now()
            record_audit(session, context, "revoke", "api-key", key_id)


def check_rate(text: str | None, *, field: str) -> None:
    """Raises InvalidRequest unless the text is None or a rate like 600/minute."""
    if text is None:
        return
    if not re.fullmatch(RATE, text):
        raise InvalidRequest(
            "Expected a rate like 600/minute, or several separated by `;`.", field=field
        )


@dataclass(frozen=True)
class _KnownKey:
    """A key that worked at its last look-up.

    until       when to look it up again
    away_until  the same while the database is away
    """

    key_id: str
    secret_hash: str
    caller: Caller
    until: float
    away_until: float


class KeyRing:
    """Remembers keys for a moment, so that a busy key does not cost one query a request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[str, _KnownKey] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, text: str) -> Caller | None:
        """Return the caller of a key whose last look-up still counts, without IO.

        While the database is away, longer: as `outlast`.
        """
        if self._services.db.away:
            return self.outlast(text)
        remembered = self._find(text)
        return (
            remembered.caller
            if remembered is not None and time.monotonic() < remembered.until
            else None
        )

    def outlast(self, text: str) -> Caller | None:
        """Return the caller of a key that is trusted while the database is away, without IO."""
        remembered = self._find(text)
        return (
            remembered.caller
            if remembered is not None and time.monotonic() < remembered.away_until
            else None
        )

    def knows(self, text: str) -> bool:
        """Whether the key worked at its last look-up, however long ago; without IO."""
        return self._find(text) is not None

    def look_up(self, text: str) -> Caller:
        """Return the caller of a key, looked up in the database.

        While the database is away, keys that `outlast` trusts keep working. Raises Unauthenticated
        for an unknown, wrong, expired or revoked key, and DatabaseUnavailable.
        """
        patience_s = None if self.outlast(text) is None else 0.0
        try:
            remembered = self._read(text, patience_s)
        except DatabaseUnavailable:
            caller = self.outlast(text)
            if caller is None:
                raise
            return caller
        except Unauthenticated:
            if self.knows(text):
                self.forget(text.split("_")[1])
            raise
        with self._lock:
            self._known[remembered.key_id] = remembered
            self._known.move_to_end(remembered.key_id)
            while len(self._known) > MAX_REMEMBERED_KEYS:
                self._known.popitem(last=False)
        return remembered.caller

    def works(self, key_id: str) -> bool:
        """Whether the key still works, looked up now. Raises DatabaseUnavailable."""
        with self._services.db.transaction() as session:
            row = session.get(tables.ApiKeyRow, key_id)
        return row is not None and _is_usable(row)

    def forget(self, key_id: str) -> None:
        """Look the key up again at its next use."""
        with self._lock:
            self._known.pop(key_id, None)

    def _find(self, text: str) -> _KnownKey | None:
        parsed = KEY_PATTERN.fullmatch(text)
        if parsed is None:
            return None
        key_id, secret = parsed.groups()
        with self._lock:
            remembered = self._known.get(key_id)
        return (
            remembered
            if remembered is not None and hmac.compare_digest(_hash(secret), remembered.secret_hash)
            else None
        )

    def _read(self, text: str, patience_s: float | None) -> _KnownKey:
        """Look a key up. Raises Unauthenticated, and DatabaseUnavailable after `patience_s`."""
        refusal = Unauthenticated("This API key is unknown, expired or revoked. Use another one.")
        parsed = KEY_PATTERN.fullmatch(text)
        if parsed is None:
            raise refusal
        key_id, secret = parsed.groups()
        begun, now = time.monotonic(), tables.now()
        with self._services.db.transaction(wait_s=patience_s) as session:
            row = session.get(tables.ApiKeyRow, key_id)
            if (
                row is None
                or not hmac.compare_digest(_hash(secret), row.secret_hash)
                or not _is_usable(row)
            ):
                raise refusal
            if row.last_used_at is None or now - row.last_used_at > LAST_USED_PRECISION:
                access.touch_key(session, row.id, now=now)
            caller = Caller(
                row.project, row.id, frozenset(Scope(scope) for scope in row.scopes), row.rate_limit
            )
            lasts_s = math.inf if row.expires_at is None else (row.expires_at - now).total_seconds()
        return _KnownKey(
            key_id,
            row.secret_hash,
            caller,
            begun + min(KEY_TRUST_S, lasts_s),
            begun + min(KEY_TRUST_AWAY_S, lasts_s),
        )


def _add_key(
    session: Session,
    context: RequestContext,
    action: str,
    *,
    audit_id: str | None = None,
    **columns: Any,
) -> tuple[tables.ApiKeyRow, str]:
    """Add a key. The audit row names `audit_id`, or the new key's id."""
    secret = secrets.token_urlsafe(32)
    row = tables.ApiKeyRow(secret_hash=_hash(secret), **columns)
    session.add(row)
    session.flush()
    record_audit(session, context, action, "api-key", audit_id or row.id)
    return row, f"anc_{row.id}_{secret}"


def _is_usable(row: tables.ApiKeyRow) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > tables.now())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
