"""API keys: who calls, for which project, and how far that reaches.

A key is `anc_<id>_<secret>`: the id finds the row, the SHA-256 of the secret proves the rest. 256 random bits need no slow hash.
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

from app.errors import Conflict, DatabaseUnavailable, InvalidRequest, Unauthenticated
from app.services.access.audit import record_audit
from app.services.context import Services
from app.storage import tables
from app.storage.queries import access
from app.types import RATE, Scope

KEY = re.compile(r"anc_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")

#: a key is looked up again after so long: the time a revoked one may still open other processes
TRUST_S = 2.0

#: while the database does not answer, keys that worked this recently go on working: the time that a revoked one may gain
AWAY_TRUST_S = 60.0

#: keys remembered at once
REMEMBERED = 10_000

#: `last_used_at` is this exact
USED_EVERY = timedelta(minutes=1)

#: from the weakest: each includes those before it
LADDER = list(Scope)


@dataclass(frozen=True)
class Caller:
    """Whom a request comes from. Without keys: the project `default`, and everything is allowed."""

    project: str = "default"
    key_id: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    rate_limit: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether one of the key's scopes is this one or includes it."""
        return scope in self.scopes or any(
            LADDER.index(own) >= LADDER.index(scope) for own in self.scopes
        )


def create_key(
    services: Services,
    project: str,
    *,
    name: str,
    scopes: Sequence[Scope],
    expires_at: datetime | None = None,
    rate_limit: str | None = None,
) -> tuple[tables.ApiKeyRow, str]:
    """A new key's row and the key itself, which nobody can see again. Raises InvalidRequest."""
    if not name.strip() or not name.isprintable() or len(name) > tables.NAME_LENGTH:
        raise InvalidRequest(
            f"a key's name is 1 to {tables.NAME_LENGTH} printable characters", field="name"
        )
    if not scopes:
        raise InvalidRequest("a key needs at least one scope", field="scopes")
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= tables.now()):
        raise InvalidRequest(
            "expires_at must lie in the future, with its offset from UTC", field="expires_at"
        )
    check_rate(rate_limit, field="rate_limit")
    with services.db.transaction() as session:
        return _added(
            session,
            "create",
            project=project,
            name=name,
            scopes=[scope.value for scope in LADDER if scope in scopes],
            rate_limit=rate_limit,
            expires_at=expires_at,
        )


def rotate_key(
    services: Services, project: str, key_id: str, *, grace_s: float
) -> tuple[tables.ApiKeyRow, str]:
    """A new key like the old one, which works `grace_s` longer. Raises ApiKeyNotFound, InvalidRequest, Conflict."""
    now = tables.now()
    with services.db.transaction() as session:
        old = access.api_key(session, project, key_id, lock=True)
        if not _usable(old):
            raise InvalidRequest("this key does not work any more: make a new one", field="id")
        same = {
            field: getattr(old, field)
            for field in ("project", "name", "scopes", "rate_limit", "expires_at")
        }
        end = now + timedelta(seconds=grace_s)
        if not access.end_key(
            session, old, end=end if old.expires_at is None else min(end, old.expires_at)
        ):
            raise Conflict(
                "this key was rotated or revoked at the same moment: look at it and try again"
            )
        return _added(session, "rotate", noted_as=key_id, **same)


def revoke_key(services: Services, project: str, key_id: str) -> None:
    """End a key now; revoking twice is no error. Raises ApiKeyNotFound."""
    with services.db.transaction() as session:
        row = access.api_key(session, project, key_id, lock=True)
        if row.revoked_at is None:
            row.revoked_at = tables.now()
            record_audit(session, project, "revoke", "api-key", key_id)


def check_rate(text: str | None, *, field: str) -> None:
    """Raises InvalidRequest for what is no rate like 600/minute."""
    if text is None:
        return
    if not re.fullmatch(RATE, text):
        raise InvalidRequest(
            "expected a rate like 600/minute, or several separated by ;", field=field
        )


@dataclass(frozen=True)
class _Known:
    """A key that worked at its last look-up: until when that is believed, and until when while the database is away."""

    key_id: str
    secret_hash: str
    caller: Caller
    until: float
    away_until: float


class KeyRing:
    """Keys looked up lately, so that a busy key costs no query a request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, text: str) -> Caller | None:
        """The caller of a key that was looked up a moment ago; no IO. While the database is away, as `outlast`."""
        if self._services.db.away:
            return self.outlast(text)
        known = self._find(text)
        return known.caller if known is not None and time.monotonic() < known.until else None

    def outlast(self, text: str) -> Caller | None:
        """The caller of a key that is still trusted if it cannot be looked up now; no IO."""
        known = self._find(text)
        return known.caller if known is not None and time.monotonic() < known.away_until else None

    def knows(self, text: str) -> bool:
        """Whether this key worked when it was looked up last, however long ago; no IO."""
        return self._find(text) is not None

    def look_up(self, text: str) -> Caller:
        """The caller of a key. Raises Unauthenticated: for an unknown, wrong, expired or revoked one alike.

        While the database is away, the caller of one that `outlast` trusts. Raises DatabaseUnavailable for all others.
        """
        patience_s = None if self.outlast(text) is None else 0.0
        try:
            known = self._read(text, patience_s)
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
            self._known[known.key_id] = known
            self._known.move_to_end(known.key_id)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known.caller

    def works(self, key_id: str) -> bool:
        """Whether a key that has opened something still does."""
        with self._services.db.transaction() as session:
            row = session.get(tables.ApiKeyRow, key_id)
        return row is not None and _usable(row)

    def forget(self, key_id: str) -> None:
        """Look a key up again at its next use: it was rotated or revoked here."""
        with self._lock:
            self._known.pop(key_id, None)

    def _find(self, text: str) -> _Known | None:
        parsed = KEY.fullmatch(text)
        if parsed is None:
            return None
        key_id, secret = parsed.groups()
        with self._lock:
            known = self._known.get(key_id)
        return (
            known
            if known is not None and hmac.compare_digest(_hash(secret), known.secret_hash)
            else None
        )

    def _read(self, text: str, patience_s: float | None) -> _Known:
        """What the database says of a key. Raises Unauthenticated, and DatabaseUnavailable after `patience_s`."""
        refusal = Unauthenticated("this API key opens nothing: it is unknown, expired or revoked")
        parsed = KEY.fullmatch(text)
        if parsed is None:
            raise refusal
        key_id, secret = parsed.groups()
        begun, now = time.monotonic(), tables.now()
        with self._services.db.transaction(wait_s=patience_s) as session:
            row = session.get(tables.ApiKeyRow, key_id)
            if (
                row is None
                or not hmac.compare_digest(_hash(secret), row.secret_hash)
                or not _usable(row)
            ):
                raise refusal
            if row.last_used_at is None or now - row.last_used_at > USED_EVERY:
                access.touch_key(session, row.id, now=now)
            caller = Caller(
                row.project, row.id, frozenset(Scope(scope) for scope in row.scopes), row.rate_limit
            )
            lasts_s = math.inf if row.expires_at is None else (row.expires_at - now).total_seconds()
        return _Known(
            key_id,
            row.secret_hash,
            caller,
            begun + min(TRUST_S, lasts_s),
            begun + min(AWAY_TRUST_S, lasts_s),
        )


def _added(
    session: Session, action: str, *, noted_as: str | None = None, **columns: Any
) -> tuple[tables.ApiKeyRow, str]:
    """A new key's row, noted by its id or that of the key that it replaces, and the key itself."""
    secret = secrets.token_urlsafe(32)
    row = tables.ApiKeyRow(secret_hash=_hash(secret), **columns)
    session.add(row)
    session.flush()
    record_audit(session, row.project, action, "api-key", noted_as or row.id, row)
    return row, f"anc_{row.id}_{secret}"


def _usable(row: tables.ApiKeyRow) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > tables.now())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
