"""What can be recomputed, kept close: memory first, then Redis for all processes, then made anew. Keyed by content."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis import Redis
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app import __version__
from app.observability import metrics
from app.storage.redis import OptionalRedis, RedisAway

log = logging.getLogger("anchorage.cache")

Value = TypeVar("Value")

#: the head of every entry: these bytes, then the digest of key and payload, then the payload (safetensors)
MAGIC = b"ANCHOR1\n"
DIGEST_BYTES = 16

#: an entry above this stays in the processes that made it
LARGEST_ENTRY = 256 * 1024 * 1024

#: an entry that nobody has written for so long is no longer wanted: a week
ENTRY_S = 7 * 24 * 3600

#: how long the other processes wait for the one that makes a value; then it may be dead, and another one makes it
MAKING_S = 10
#: how often they look
POLL_S = 0.05

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """How a value travels between processes: as named tensors."""

    dump: Callable[[Value], dict[str, Tensor]]
    load: Callable[[dict[str, Tensor]], Value]


class Corrupt(Exception):
    """An entry whose bytes are not what was written."""


def pack(key: bytes, tensors: dict[str, Tensor]) -> bytes:
    """Bytes of an entry. Never pickle: reading them back runs nothing."""
    payload = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    return MAGIC + _digest(key, payload) + payload


def unpack(key: bytes, data: bytes) -> dict[str, Tensor]:
    """The tensors of an entry. Raises Corrupt when a byte is missing, wrong, or another key's."""
    start = len(MAGIC) + DIGEST_BYTES
    payload = data[start:]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : start] != _digest(key, payload):
        raise Corrupt
    try:
        return load(payload)
    except SafetensorError as error:  # written so by another version of the library
        raise Corrupt from error


def _digest(key: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(
        payload, key=hashlib.blake2b(key, digest_size=32).digest(), digest_size=DIGEST_BYTES
    ).digest()


class Cache:
    """A bounded memory, and behind it Redis where there is one. Nobody waits for two makings of one value.

    A value with a `shared` codec is looked for in Redis before it is made, and one process makes it while the others wait.
    """

    def __init__(self, limit_bytes: int, store: RedisStore | None = None) -> None:
        self.memory = MemoryCache(limit_bytes)
        self.store = store

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def get_or_make(
        self,
        key: Key,
        make: Callable[[], Value],
        size: Callable[[Value], int],
        *,
        shared: Shared[Value] | None = None,
    ) -> Value:
        """The cached value, or `make()`'s, kept when `size` of it fits; what `make` raises is not kept. key[0] names its kind."""
        kind = str(key[0])
        missed = False

        def fetch() -> Value:
            nonlocal missed
            missed = True
            if shared is None or self.store is None:
                metrics.cache_outcome(kind, "made").inc()
                return make()
            # Another version of the service may compute it otherwise.
            return self.store.get_or_make(kind, repr((__version__, key)).encode(), make, shared)

        value = self.memory.get_or_make(key, fetch, size)
        if not missed:
            metrics.cache_outcome(kind, "memory").inc()
        else:
            metrics.CACHE_BYTES.set(self.memory.used_bytes)
        return value

    def find(self, key: Key) -> Any | None:
        """The value if it is in memory; no IO, and nobody is waited for."""
        value = self.memory.find(key)
        if value is not None:
            metrics.cache_outcome(str(key[0]), "memory").inc()
        return value


class RedisStore:
    """Entries for all processes. Redis bounds them (maxmemory-policy allkeys-lru) and may lose any of them at any moment."""

    def __init__(self, redis: OptionalRedis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    def close(self) -> None:
        self._redis.close()

    def takes_writes(self) -> bool:
        """Whether Redis stores something now; answers within a second."""
        return self._redis.takes_writes(f"{self._prefix}:ready")

    def get_or_make(
        self, kind: str, key: bytes, make: Callable[[], Value], shared: Shared[Value]
    ) -> Value:
        """The entry's value, or `make()`'s, which becomes the entry. One process makes it while the others wait for MAKING_S."""
        name = f"{kind}:{hashlib.blake2b(key, digest_size=20).hexdigest()}"
        value = self._find(kind, name, key, shared)
        if value is not None:
            return value
        claimed = self._claim(kind, name)
        try:
            value = self._find(kind, name, key, shared)
            if value is not None:
                return value
            metrics.cache_outcome(kind, "made").inc()
            made = make()
            self._keep(kind, name, pack(key, shared.dump(made)))
            return made
        finally:
            if claimed:
                self._ask(kind, lambda client: client.delete(self._claim_of(name)))

    def _find(self, kind: str, name: str, key: bytes, shared: Shared[Value]) -> Value | None:
        data = self._ask(kind, lambda client: _bytes(client.get(self._entry_of(name))))
        if data is None:
            return None
        try:
            value = shared.load(unpack(key, data))
        except (Corrupt, KeyError, TypeError):  # TypeError: fields of another version
            log.warning("cache entry %s is corrupt: made anew", name)
            metrics.cache_outcome(kind, "corrupt").inc()
            self._ask(kind, lambda client: client.delete(self._entry_of(name)))
            return None
        metrics.cache_outcome(kind, "redis").inc()
        return value

    def _keep(self, kind: str, name: str, data: bytes) -> None:
        if len(data) <= LARGEST_ENTRY:
            self._ask(kind, lambda client: client.set(self._entry_of(name), data, ex=ENTRY_S))

    def _claim(self, kind: str, name: str) -> bool:
        """Whether this process alone is to make the entry; if not, return when the process that made it has ended.

        That one may have failed. Then, and without Redis, every process makes the entry: it costs time and nothing else.
        """
        deadline = time.monotonic() + MAKING_S
        claim = self._claim_of(name)
        try:
            if (
                self._redis.ask(lambda client: client.set(claim, b"", nx=True, px=1000 * MAKING_S))
                is True
            ):
                return True
            while (
                time.monotonic() < deadline
                and self._redis.ask(lambda client: client.exists(claim)) == 1
            ):
                time.sleep(POLL_S)
        except RedisAway:
            metrics.cache_outcome(kind, "away").inc()
        return False

    def _ask(self, kind: str, question: Callable[[Redis], Value]) -> Value | None:
        """What Redis answers; None also when it is away."""
        try:
            return self._redis.ask(question)
        except RedisAway:
            metrics.cache_outcome(kind, "away").inc()
            return None

    def _entry_of(self, name: str) -> str:
        return f"{self._prefix}:cache:{name}"

    def _claim_of(self, name: str) -> str:
        return f"{self._prefix}:making:{name}"


def _bytes(answer: object) -> bytes | None:
    """Raises TypeError for what no GET answers."""
    if answer is None or isinstance(answer, bytes):
        return answer
    raise TypeError(f"expected bytes, Redis answered {type(answer).__name__}")


class MemoryCache:
    """Least recently used out first, bounded in bytes. Requests for one missing key make it once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._turns: dict[Hashable, _Turn] = {}

    def get_or_make(
        self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]
    ) -> Value:
        """The cached value, or `make()`'s, kept when `size` of it fits; what `make` raises is not kept."""
        with self._lock:
            found, value = self._look_up(key)
            if found:
                self.hits += 1
                return value  # type: ignore[no-any-return]
            self.misses += 1
            turn = self._turns.setdefault(key, _Turn())
            turn.takers += 1
        try:
            with turn.lock:
                with self._lock:
                    found, value = self._look_up(key)
                if not found:
                    value = make()
                    self._keep(key, value, size(value))
                return value  # type: ignore[no-any-return]
        finally:
            with self._lock:
                turn.takers -= 1
                if turn.takers == 0:
                    del self._turns[key]

    def find(self, key: Hashable) -> Any | None:
        """The cached value, if there is one."""
        with self._lock:
            found, value = self._look_up(key)
            self.hits += found
            return value

    def _look_up(self, key: Hashable) -> tuple[bool, Any]:
        entry = self._entries.get(key)
        if entry is None:
            return False, None
        self._entries.move_to_end(key)
        return True, entry[0]

    def _keep(self, key: Hashable, value: object, nbytes: int) -> None:
        if nbytes > self.limit_bytes:
            return
        with self._lock:
            self._entries[key] = (value, nbytes)
            self.used_bytes += nbytes
            while self.used_bytes > self.limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed


class _Turn:
    """Whose turn it is to make one missing value, and how many wait or make."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.takers = 0
