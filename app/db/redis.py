"""Redis as an optional dependency: a call returns an answer, or raises RedisAway soon. Entries of
the cache that processes share, and their bytes.

A server that is overloaded, misconfigured or not Redis at all makes redis-py raise almost any
exception. `RedisStore.ask` hides this: its callers see an answer or RedisAway.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app.ops import metrics

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger("anchorage.redis")

Answer = TypeVar("Answer")
Value = TypeVar("Value")

#: timeouts of the socket: for a connection, and for the next bytes of an answer
REDIS_CONNECT_S = 1.0
REDIS_READ_S = 1.0

#: how long one call may take before another caller tries Redis again
REDIS_CALL_S = 3.0

#: how long a process sends no calls after one has failed
AWAY_S = 2.0

#: an entry: these bytes, the digest of key and payload, and the payload (safetensors)
MAGIC = b"ANCHOR1\n"
DIGEST_BYTES = 16

#: a larger value is cached in memory only
LARGEST_ENTRY = 256 * 1024 * 1024

#: Redis drops an entry this long after it was written: a week
ENTRY_S = 7 * 24 * 3600


class RedisAway(Exception):
    """Redis cannot be used now."""


class Circuit:
    """A circuit breaker: after a failure it admits no call for AWAY_S, and then one at a time."""

    def __init__(self) -> None:
        self._works = True
        self._away_until = 0.0
        self._lock = threading.Lock()

    def admits(self) -> bool:
        """Return whether the caller may call. If so, it must then call `worked` or `failed`."""
        with self._lock:
            if self._works:
                return True
            if time.monotonic() < self._away_until:
                return False
            self._away_until = (
                time.monotonic() + REDIS_CALL_S + AWAY_S
            )  # other callers do not wait for this one
            return True

    def worked(self) -> None:
        self._works = True

    def failed(self) -> None:
        with self._lock:
            self._works, self._away_until = False, time.monotonic() + AWAY_S


def _write(client: Redis, key: str) -> None:
    """Write a value and read it back. Raises ValueError when the two differ."""
    value = secrets.token_hex(8).encode()
    client.set(key, value, ex=60)
    if client.get(key) != value:
        raise ValueError("Redis did not return the value that was just written")


def redis_client(url: str) -> Redis:
    """Return a client with short timeouts and no retries. Raises ValueError for an invalid URL."""
    from redis import Redis  # 19 MiB, which a service without Redis needs not
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis.from_url(
        url,
        socket_connect_timeout=REDIS_CONNECT_S,
        socket_timeout=REDIS_READ_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=15,
        protocol=2,  # with 3, the pool reuses connections that hold another caller's answer
    )


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


class RedisStore:
    """Cache entries that all processes share. Calls return in a bounded time.

    Redis bounds them (maxmemory-policy allkeys-lru) and may drop any of them at any time.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._client = redis_client(url)
        self._circuit = Circuit()
        self._prefix = prefix

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()

    def ask(self, question: Callable[[Redis, str], Answer]) -> Answer:
        """Return what Redis answers to a question, which gets the prefix of our keys.

        It makes one or a few calls of the client and checks the type of their answers. Raises
        RedisAway for any failure.
        """
        if not self._circuit.admits():
            raise RedisAway("Redis failed a moment ago")
        try:
            answer = question(self._client, self._prefix)
        except Exception as error:
            self._circuit.failed()
            self._client.connection_pool.disconnect()  # with the unread rest of an answer
            log.warning(
                "Redis failed and is not called for %.0f s: %s %.200r",
                AWAY_S,
                type(error).__name__,
                str(error),
            )
            raise RedisAway(type(error).__name__) from error
        self._circuit.worked()
        return answer

    def takes_writes(self) -> bool:
        """Return whether Redis accepts writes: not when it is full, read-only or something else."""
        try:
            self.ask(lambda client, prefix: _write(client, f"{prefix}:ready"))
        except RedisAway:
            return False
        return True

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
            return self.ask(lambda client, _: question(client))
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
