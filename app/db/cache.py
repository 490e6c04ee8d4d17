"""A cache of values that can be recomputed: in memory, then in Redis for all processes.

Keys contain content hashes, so entries never become stale.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from redis import Redis
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app import __version__
from app.db.redis import OptionalRedis, RedisAway
from app.ops import metrics
from app.single_flight import SingleFlight

log = logging.getLogger("anchorage.cache")

Value = TypeVar("Value")

#: an entry: these bytes, the digest of key and payload, and the payload (safetensors)
MAGIC = b"ANCHOR1\n"
DIGEST_BYTES = 16

#: a larger value is cached in memory only
LARGEST_ENTRY = 256 * 1024 * 1024

#: Redis drops an entry this long after it was written: a week
ENTRY_S = 7 * 24 * 3600

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class TensorCodec(Generic[Value]):
    """Converts a value to named tensors and back, so that processes can share it."""

    dump: Callable[[Value], dict[str, Tensor]]
    load: Callable[[dict[str, Tensor]], Value]


def _dump_dataclass(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """The fields of a dataclass that are not None; those of a nested one as `field.name`."""
    tensors: dict[str, Tensor] = {}
    for name, each in ((field.name, getattr(value, field.name)) for field in fields(value)):
        if is_dataclass(each):
            tensors |= _dump_dataclass(each, f"{prefix}{name}.")
        elif each is not None:
            kind = torch.float64 if isinstance(each, float) else None
            tensors[prefix + name] = (
                each if isinstance(each, Tensor) else torch.tensor(each, dtype=kind)
            )
    return tensors


def _load_dataclass(kind: type[Value], tensors: dict[str, Tensor], **parts: type) -> Value:
    """The dataclass again; `parts` are its nested dataclasses."""
    own: dict[str, Any] = {
        name: each if each.dim() else each.item()
        for name, each in tensors.items()
        if "." not in name
    }
    for part, of in parts.items():
        start = f"{part}."
        own[part] = _load_dataclass(
            of,
            {
                name.removeprefix(start): each
                for name, each in tensors.items()
                if name.startswith(start)
            },
        )
    return kind(**own)


def dataclass_codec(kind: type[Value], **parts: type) -> TensorCodec[Value]:
    """Return the codec of a dataclass of tensors and numbers; `parts` are its nested dataclasses.

    A number becomes a tensor without dimensions.
    """
    return TensorCodec(
        dump=_dump_dataclass, load=lambda tensors: _load_dataclass(kind, tensors, **parts)
    )


class CorruptEntry(Exception):
    """The bytes of an entry are not those that were written."""


def pack(key: bytes, tensors: dict[str, Tensor]) -> bytes:
    """Return the bytes of an entry. The format is not pickle, so reading it runs no code."""
    payload = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    return MAGIC + _digest(key, payload) + payload


def unpack(key: bytes, data: bytes) -> dict[str, Tensor]:
    """Return the tensors of an entry. Raises CorruptEntry if it is damaged or another key's."""
    start = len(MAGIC) + DIGEST_BYTES
    payload = data[start:]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : start] != _digest(key, payload):
        raise CorruptEntry
    try:
        return load(payload)
    except SafetensorError as error:  # another version of the library wrote it
        raise CorruptEntry from error


def _digest(key: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(
        payload, key=hashlib.blake2b(key, digest_size=32).digest(), digest_size=DIGEST_BYTES
    ).digest()


class Cache:
    """A bounded memory cache, backed by Redis where Redis is configured.

    A process makes each value once, however many threads ask for it. A value with a `shared` codec
    is looked up in Redis first.
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
        shared: TensorCodec[Value] | None = None,
    ) -> Value:
        """Return the cached value, or call `make` and cache its result if its `size` fits.

        key[0] names the kind of the value in metrics. Exceptions of `make` are not cached.
        """
        kind = str(key[0])
        missed = False

        def fetch() -> Value:
            nonlocal missed
            missed = True
            if shared is None or self.store is None:
                metrics.cache_outcome(kind, "made").inc()
                return make()
            return self.store.get_or_make(kind, _entry_key(key), make, shared)

        value = self.memory.get_or_make(key, fetch, size)
        if not missed:
            metrics.cache_outcome(kind, "memory").inc()
        else:
            metrics.CACHE_BYTES.set(self.memory.used_bytes)
        return value

    def find_shared(
        self, key: Key, size: Callable[[Value], int], shared: TensorCodec[Value]
    ) -> Value | None:
        """Return the value if it is in memory or Redis. Waits for no thread that makes it."""
        value: Value | None = self.find(key)
        if value is None and self.store is not None:
            value = self.store.find(str(key[0]), _entry_key(key), shared)
            if value is not None:
                self.memory.put(key, value, size(value))
        return value

    def find(self, key: Key) -> Any | None:
        """Return the value if it is in memory. Does no IO and waits for no other thread."""
        value = self.memory.find(key)
        if value is not None:
            metrics.cache_outcome(str(key[0]), "memory").inc()
        return value


def _entry_key(key: Key) -> bytes:
    # Another version of the service may compute a different value.
    return repr((__version__, key)).encode()


class RedisStore:
    """Cache entries that all processes share.

    Redis bounds them (maxmemory-policy allkeys-lru) and may drop any of them at any time.
    """

    def __init__(self, redis: OptionalRedis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    def close(self) -> None:
        self._redis.close()

    def ask(self, question: Callable[[Redis, str], Value]) -> Value:
        """Return what Redis answers to a question, which gets the prefix of our keys.

        Raises RedisAway.
        """
        return self._redis.ask(lambda client: question(client, self._prefix))

    def takes_writes(self) -> bool:
        """Return within a second whether Redis accepts writes now."""
        return self._redis.takes_writes(f"{self._prefix}:ready")

    def get_or_make(
        self, kind: str, key: bytes, make: Callable[[], Value], shared: TensorCodec[Value]
    ) -> Value:
        """Return the entry's value, or call `make` and store its result."""
        value = self.find(kind, key, shared)
        if value is None:
            metrics.cache_outcome(kind, "made").inc()
            value = make()
            self._store(kind, _entry_name(kind, key), pack(key, shared.dump(value)))
        return value

    def find(self, kind: str, key: bytes, shared: TensorCodec[Value]) -> Value | None:
        """Return the entry's value, or None."""
        name = _entry_name(kind, key)
        data = self._ask(kind, lambda client: _bytes(client.get(self._entry_of(name))))
        if data is None:
            return None
        try:
            value = shared.load(unpack(key, data))
        except (CorruptEntry, KeyError, TypeError):  # TypeError: another version had other fields
            log.warning("cache entry %s is corrupt and is made again", name)
            metrics.cache_outcome(kind, "corrupt").inc()
            self._ask(kind, lambda client: client.delete(self._entry_of(name)))
            return None
        metrics.cache_outcome(kind, "redis").inc()
        return value

    def _store(self, kind: str, name: str, data: bytes) -> None:
        if len(data) <= LARGEST_ENTRY:
            self._ask(kind, lambda client: client.set(self._entry_of(name), data, ex=ENTRY_S))

    def _ask(self, kind: str, question: Callable[[Redis], Value]) -> Value | None:
        """Return what Redis answers, or None when it is away."""
        try:
            return self._redis.ask(question)
        except RedisAway:
            metrics.cache_outcome(kind, "away").inc()
            return None

    def _entry_of(self, name: str) -> str:
        return f"{self._prefix}:cache:{name}"


def _entry_name(kind: str, key: bytes) -> str:
    return f"{kind}:{hashlib.blake2b(key, digest_size=20).hexdigest()}"


def _bytes(answer: object) -> bytes | None:
    """Return the answer to a GET. Raises TypeError when it is not one."""
    if answer is None or isinstance(answer, bytes):
        return answer
    raise TypeError(f"Redis answered {type(answer).__name__} instead of bytes")


class MemoryCache:
    """An LRU cache bounded in bytes. Concurrent requests for a missing key make its value once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._flight = SingleFlight()

    def get_or_make(
        self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]
    ) -> Value:
        """Return the cached value, or call `make` and cache its result if its `size` fits."""
        with self._lock:
            found, value = self._look_up(key)
            self.hits += found
            self.misses += not found
        if found:
            return value  # type: ignore[no-any-return]

        def make_and_store() -> Value:
            with self._lock:
                found, value = self._look_up(key)
            if not found:
                value = make()
                self.put(key, value, size(value))
            return value  # type: ignore[no-any-return]

        return self._flight.run(key, make_and_store)

    def find(self, key: Hashable) -> Any | None:
        """Return the cached value, or None."""
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

    def put(self, key: Hashable, value: object, nbytes: int) -> None:
        """Keep a value if it fits."""
        if nbytes > self.limit_bytes:
            return
        with self._lock:
            self.used_bytes -= self._entries.pop(key, (None, 0))[1]
            self._entries[key] = (value, nbytes)
            self.used_bytes += nbytes
            while self.used_bytes > self.limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed
