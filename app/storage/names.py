"""What names stand for, remembered by each process, and forgotten by all of them before a deletion is answered.

Names are looked up in SQL; a busy process asks once and remembers. That is right as long as nothing is deleted: an anchor set
never changes, and a name can only come to stand for something else after a deletion. Whoever deletes therefore has every process
forget, and answers its own client only when each has said so, or cannot be remembering any more (docs/decisions/0018).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from app.storage.connect import AWAY_S

log = logging.getLogger("anchorage.names")

Value = TypeVar("Value")

#: a process that has not been heard of for so long remembers nothing
LEASE_S = 1.0
#: how often it is heard of
RENEW_S = 0.25
#: what a process trusts its own lease for, counted from before it asked: less than Redis counts from after
TRUST_S = 0.9 * LEASE_S

#: at most so long is anything remembered: a process may die between its deletion and its word to the others
KEEP_S = 30.0
#: and while the database is away, whatever was looked up this lately
AWAY_KEEP_S = 60.0
#: things remembered at once
MOST = 10_000


class Names:
    """What this process remembers. Values are small: rows and ids, never tensors.

    word  how the processes that share a database tell each other; None: there is no other process
    away  whether the database does not answer now
    """

    def __init__(self, word: Word | None = None, away: Callable[[], bool] = lambda: False) -> None:
        self._word = word
        self._away = away
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self._moment = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Begin to remember. A process that only writes does not need to."""
        if self._word is not None:
            self._word.open(self._forget_here)

    def close(self) -> None:
        if self._word is not None:
            self._word.close()

    def find(self, key: Hashable) -> Any | None:
        """What was kept under the key, if it is still so; no IO."""
        known = self._known.get(key)
        if known is None:
            return None
        kept_at, value = known
        if self._away():
            return value if time.monotonic() < kept_at + AWAY_KEEP_S else None
        return value if time.monotonic() < kept_at + KEEP_S and self._trusted else None

    def find_or(self, key: Hashable, look_up: Callable[[], Value]) -> Value:
        """What was kept under the key, or else what `look_up` finds now, which is kept."""
        moment = self._moment
        found: Value | None = self.find(key)
        if found is None:
            found = look_up()
            self.keep(key, found, moment)
        return found

    @property
    def moment(self) -> int:
        """To be asked before a look-up whose result is to be kept."""
        return self._moment

    def keep(self, key: Hashable, value: object, moment: int) -> None:
        """Remember what was looked up at `moment`, unless something was forgotten since."""
        if not self._trusted:
            return
        with self._lock:
            if moment != self._moment:
                return
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = (time.monotonic(), value)

    def forget(self) -> None:
        """To be called after the commit of a deletion, or of what may take a deleted name: returns when no process answers from
        before it.
        """
        self._forget_here()
        if self._word is not None:
            self._word.spread()

    @property
    def _trusted(self) -> bool:
        return self._word is None or self._word.holds

    def _forget_here(self) -> None:
        with self._lock:
            self._moment += 1
            self._known.clear()


class Word:
    """How processes that share a Redis hear of deletions: each that remembers has a lease there, and says when it has forgotten.

    A reader that cannot reach Redis stops trusting what it remembers before its lease ends; a writer waits for every reader's
    word, or for the end of its lease. Readers are strangers to each other: any number may come, go or die.
    """

    def __init__(self, client: Redis, prefix: str) -> None:
        self._client = client
        self._prefix = f"{prefix}:names"
        self._me = secrets.token_hex(8)
        self._trusted_until = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._renew = client.register_script(_RENEW)
        self._spread = client.register_script(_SPREAD)

    @property
    def holds(self) -> bool:
        """Whether this process would have heard of a deletion."""
        return time.monotonic() < self._trusted_until and not self._closing.is_set()

    def open(self, forget: Callable[[], None]) -> None:
        """Listen, in a thread of its own; `forget` is called for every deletion elsewhere."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, args=(forget,), name="names", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._trusted_until = 0.0
        if self._thread is not None:
            self._thread.join(timeout=2 * RENEW_S + AWAY_S)
            with suppress(RedisError):
                self._client.zrem(f"{self._prefix}:readers", self._me)  # nobody need wait for it
        self._client.close()

    def spread(self) -> None:
        """Have all readers forget, and wait until they have."""
        reply = f"{self._prefix}:heard:{secrets.token_hex(8)}"
        gives_up = None
        while True:
            try:
                return self._tell(reply)
            except RedisError as error:
                now = time.monotonic()
                gives_up = gives_up or now + LEASE_S
                if now >= gives_up:
                    # Readers that cannot reach it either trust themselves for no longer than this.
                    log.warning(
                        "Redis does not answer: a deletion is answered once processes that it left have forgotten: %s", error
                    )
                    return None
                time.sleep(RENEW_S)  # it may be this connection only, and the readers' may be well

    def _tell(self, reply: str) -> None:
        """Raises RedisError."""
        waiting = {_text(name) for name in self._spread(keys=[self._prefix], args=[self._me, reply])}
        # Counted from after they were told: no lease that was held then is trusted for longer.
        until = time.monotonic() + LEASE_S
        while waiting and (left := until - time.monotonic()) > 0:
            heard = self._client.blpop([reply], timeout=min(0.5, max(0.01, left)))
            if heard is not None:
                waiting.discard(_text(heard[1]))

    def _listen(self, forget: Callable[[], None]) -> None:
        while not self._closing.is_set():
            try:
                asked = time.monotonic()
                held, *words = self._renew(keys=[self._prefix], args=[self._me, LEASE_S])
                if words or not held:
                    forget()  # without a lease nobody told this process what happened
                # Not before what was said until then is forgotten: who said it waits for no later lease than it found.
                self._trusted_until = asked + TRUST_S
                if not words and (word := self._client.blpop([f"{self._prefix}:to:{self._me}"], timeout=RENEW_S)) is not None:
                    forget()
                    words = [word[1]]
                self._answer([_text(word) for word in words])
            except RedisError as error:
                if self.holds or self._trusted_until == 0.0:
                    log.warning("names are looked up each time while Redis does not answer: %s", error)
                self._trusted_until = -1.0
                forget()
                self._closing.wait(RENEW_S)

    def _answer(self, replies: list[str]) -> None:
        if not replies:
            return
        with self._client.pipeline(transaction=False) as pipe:
            for reply in replies:
                pipe.rpush(reply, self._me)
                pipe.expire(reply, 10)
            pipe.execute()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


#: KEYS prefix; ARGV me, lease in seconds. Whether the lease was held without a break, and the words that had come
_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local ends = redis.call('ZSCORE', KEYS[1] .. ':readers', ARGV[1])
redis.call('ZADD', KEYS[1] .. ':readers', now + ARGV[2] * 1000, ARGV[1])
redis.call('EXPIRE', KEYS[1] .. ':readers', 60)
local found = redis.call('LRANGE', KEYS[1] .. ':to:' .. ARGV[1], 0, -1)
redis.call('DEL', KEYS[1] .. ':to:' .. ARGV[1])
table.insert(found, 1, (ends and tonumber(ends) > now) and 1 or 0)
return found
"""

#: KEYS prefix; ARGV me, where to answer. The other readers, each of which was told
_SPREAD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
redis.call('ZREMRANGEBYSCORE', KEYS[1] .. ':readers', '-inf', now)
local told = {}
for _, reader in ipairs(redis.call('ZRANGE', KEYS[1] .. ':readers', 0, -1)) do
  if reader ~= ARGV[1] then
    local to = KEYS[1] .. ':to:' .. reader
    redis.call('RPUSH', to, ARGV[2])
    redis.call('EXPIRE', to, 10)
    told[#told + 1] = reader
  end
end
return told
"""
