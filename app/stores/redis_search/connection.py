"""A client of Redis with timeouts, its faults as errors of this project, and its bytes as text."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis import exceptions as faults
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.errors import (
    AnchorageError,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.common import FAULT_SHOWN, fault_of

STORE = "The Redis store"

#: seconds to connect, and for the next bytes of an answer
CONNECT_S, ANSWER_S = 5.0, 30.0


def connect(url: str) -> Redis:
    """Return a client with timeouts. Raises StoreUnsupported for a cluster."""
    client = Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_S,
        socket_timeout=ANSWER_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    if client.get_connection_kwargs().get("db"):
        raise StoreUnsupported(
            "Redis's search has the database 0 only, and the address names another one. Ask the "
            "operator to correct it."
        )
    if client.info("cluster").get("cluster_enabled"):
        raise StoreUnsupported(
            "The server belongs to a Redis Cluster, which spreads the hashes over several servers. "
            "Anchorage reads one server."
        )
    return client


def translate_fault(error: Exception, filtered: bool) -> AnchorageError | None:
    """Return the error of this project that a fault of Redis stands for."""
    text = str(error)[:FAULT_SHOWN]
    if not isinstance(error, faults.RedisError):
        return None
    if isinstance(error, faults.OutOfMemoryError):
        return StoreFull(f"{STORE} is full: {text}. Allow it more memory, then continue.")
    if isinstance(error, faults.AuthenticationError | faults.NoPermissionError):
        return StoreRefused(
            f"{STORE} refused the user of its address: {text}. Ask the operator for a user who may "
            "search, scan, run scripts, and write the hashes."
        )
    if isinstance(error, faults.TimeoutError | faults.ConnectionError):
        return StoreUnavailable(
            f"{STORE} did not answer ({type(error).__name__}). Check that the server runs."
        )
    if text.startswith("unknown command 'FT."):
        return StoreUnsupported(
            "The server has no search. It is part of Redis 8, and a module (RediSearch) before."
        )
    missing = ("unknown index name", "no such index", "index not found", "expected size")
    if any(sign in text.lower() for sign in missing):
        return StoreChanged(
            f"{STORE} has no such index, or another one now: {text}. Somebody deleted, renamed or "
            "switched it."
        )
    busy = text.startswith("BUSY") or "timeout limit" in text.lower()
    return fault_of(STORE, text, filtered=filtered and not busy)


def key_of(key: Any) -> str:
    """Return a key as text. Raises StoreUnsupported."""
    try:
        return str(key, "utf-8")
    except UnicodeDecodeError:
        raise StoreUnsupported(
            f"The key {key!r} is not UTF-8, so it cannot be an id. Rename it."
        ) from None


def decoded(value: bytes | None) -> str | None:
    """Return a value as text; None for bytes that are none."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
