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

from anyio import CapacityLimiter, move_on_after, to_thread

from app.access import queries as access
from app.access.audit import record_audit
from app.context import Caller, RequestContext, Services
from app.db import tables
from app.errors import DatabaseUnavailable, InvalidRequest, Unauthenticated
from app.types import Scope

KEY_PATTERN = re.compile(r"anc_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")

#: a process looks a key up again after this time, during which a revoked key may still work there
KEY_TRUST_S = 2.0

#: while the database is away, keys still work this long after their last look-up, even revoked ones
KEY_TRUST_AWAY_S = 60.0

#: most keys that a process remembers
MAX_REMEMBERED_KEYS = 10_000

#: how often `last_used_at` is written
LAST_USED_PRECISION = timedelta(minutes=1)

#: threads that look up keys that worked in this process before, and all other keys: a flood of
#: wrong keys waits for its own threads. Nothing counts wrong keys: no client can guess 256 bits
KEY_THREADS, UNKNOWN_KEY_THREADS = 8, 2

#: how long a key that worked within the last minute waits for the database
KEY_LOOK_UP_S = 1.0


def create_key(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    scopes: Sequence[Scope],
    expires_at: datetime | None = None,
) -> tuple[tables.ApiKeyRow, str]:
    """Return the row of a new key, and the key, which is stored nowhere. Raises InvalidRequest."""
    if not name.strip() or not name.isprintable() or len(name) > tables.NAME_LENGTH:
        raise InvalidRequest(
            f"Expected a name of 1 to {tables.NAME_LENGTH} printable characters.", field="name"
        )
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= tables.now()):
        raise InvalidRequest(
            "`expires_at` must lie in the future and have an offset from UTC.", field="expires_at"
        )
    secret = secrets.token_urlsafe(32)
    row = tables.ApiKeyRow(
        secret_hash=_hash(secret),
        project=context.project,
        name=name,
        scopes=[scope.value for scope in Scope if scope in scopes],
        expires_at=expires_at,
    )
    with services.db.transaction() as session:
        session.add(row)
        session.flush()
        record_audit(session, context, "create", "api-key", row.id)
    return row, f"anc_{row.id}_{secret}"


def revoke_key(services: Services, context: RequestContext, key_id: str) -> None:
    """End a key now. Revoking it again changes nothing. Raises NotFound."""
    with services.db.transaction() as session:
        row = access.api_key(session, context.project, key_id, lock=True)
        if row.revoked_at is None:
            row.revoked_at = tables.now()
            record_audit(session, context, "revoke", "api-key", key_id)


@dataclass(frozen=True)
class _KnownKey:
    """A key that worked when it was last looked up, at `read_at`, and expires at `ends_at`."""

    caller: Caller
    secret_hash: str
    read_at: float
    ends_at: float

    def counts(self, seconds: float) -> bool:
        """Whether it was looked up within these seconds, and has not expired."""
        return time.monotonic() < min(self.read_at + seconds, self.ends_at)


class KeyRing:
    """Remembers keys for a moment, so that a busy key does not cost one query a request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[str, _KnownKey] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = CapacityLimiter(KEY_THREADS)
        self._unknown_threads = CapacityLimiter(UNKNOWN_KEY_THREADS)

    async def find(self, text: str) -> Caller:
        """Return the caller of a key, from memory or as `look_up`.

        A key that worked within KEY_TRUST_AWAY_S waits at most KEY_LOOK_UP_S for the database.
        """
        known, away = self._recall(text), self._services.db.away
        if known is not None and known.counts(KEY_TRUST_AWAY_S if away else KEY_TRUST_S):
            return known.caller
        trusted = known is not None and known.counts(KEY_TRUST_AWAY_S)
        with move_on_after(KEY_LOOK_UP_S if trusted else None):
            return await to_thread.run_sync(
                self.look_up,
                text,
                limiter=self._unknown_threads if known is None else self._threads,
                abandon_on_cancel=trusted,
            )
        assert known is not None
        return known.caller

    def look_up(self, text: str) -> Caller:
        """Return the caller of a key, looked up in the database.

        While the database is away, a key that worked within KEY_TRUST_AWAY_S keeps working. Raises
        Unauthenticated for an unknown, wrong, expired or revoked key, and DatabaseUnavailable.
        """
        known = self._recall(text)
        trusted = known is not None and known.counts(KEY_TRUST_AWAY_S)
        try:
            found = self._read(text, 0.0 if trusted else None)
        except DatabaseUnavailable:
            if known is None or not known.counts(KEY_TRUST_AWAY_S):
                raise
            return known.caller
        except Unauthenticated:
            if known is not None:
                self.forget(text.split("_")[1])
            raise
        with self._lock:
            self._known[str(found.caller.key_id)] = found
            self._known.move_to_end(str(found.caller.key_id))
            if len(self._known) > MAX_REMEMBERED_KEYS:
                self._known.popitem(last=False)
        return found.caller

    def forget(self, key_id: str) -> None:
        """Look the key up again at its next use."""
        with self._lock:
            self._known.pop(key_id, None)

    def _recall(self, text: str) -> _KnownKey | None:
        """Return the key as it was last looked up, however long ago; without IO."""
        parsed = KEY_PATTERN.fullmatch(text)
        if parsed is None:
            return None
        with self._lock:
            known = self._known.get(parsed[1])
        is_it = known is not None and hmac.compare_digest(_hash(parsed[2]), known.secret_hash)
        return known if is_it else None

    def _read(self, text: str, wait_s: float | None) -> _KnownKey:
        """Look a key up. Raises Unauthenticated, and DatabaseUnavailable after `wait_s`."""
        refusal = Unauthenticated("This API key is unknown, expired or revoked. Use another one.")
        parsed = KEY_PATTERN.fullmatch(text)
        if parsed is None:
            raise refusal
        begun, now = time.monotonic(), tables.now()
        with self._services.db.transaction(wait_s=wait_s) as session:
            row = session.get(tables.ApiKeyRow, parsed[1])
            if (
                row is None
                or not hmac.compare_digest(_hash(parsed[2]), row.secret_hash)
                or not _is_usable(row)
            ):
                raise refusal
            if row.last_used_at is None or now - row.last_used_at > LAST_USED_PRECISION:
                access.touch_key(session, row.id, now=now)
            caller = Caller(row.project, row.id, frozenset(map(Scope, row.scopes)))
            lasts_s = math.inf if row.expires_at is None else (row.expires_at - now).total_seconds()
        return _KnownKey(caller, row.secret_hash, begun, begun + lasts_s)


def _is_usable(row: tables.ApiKeyRow) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > tables.now())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
