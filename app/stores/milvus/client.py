"""A client of Milvus with timeouts, and its faults as errors of this project."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
from pymilvus import MilvusClient, MilvusException

from app.errors import (
    AnchorageError,
    InvalidFilter,
    InvalidRequest,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from app.stores.answers import MAX_ANSWER_BYTES, answer_too_large
from app.stores.common import FAULT_SHOWN, SharedClient, find_cause, store_faults

#: seconds to connect, and of one call
CONNECT_S, ANSWER_S = 5.0, 30.0

STORE = "The Milvus store"

#: parts of messages, and the errors that they stand for
FAULTS: tuple[tuple[tuple[str, ...], type[AnchorageError], str], ...] = (
    (("not loaded", "not fully loaded"), StoreUnavailable, "Load the collection, then try again."),
    (("auth check", "permission deny"), StoreRefused, "Ask the operator for more rights."),
    (("Invalid collection name",), InvalidRequest, "Send the name of a collection or an alias."),
    (("quota exceeded",), StoreFull, "Give the server more memory or disk, then continue."),
)

# the library logs each error, with the address
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


class MilvusConnection:
    """One client, opened when it is first used. Several threads may use it at once."""

    def __init__(self, url: str) -> None:
        self._client = SharedClient(partial(connect, url))
        self.close = self._client.close

    def call(
        self,
        method: str,
        *arguments: Any,
        within_s: float = ANSWER_S,
        filtered: bool = False,
        **options: Any,
    ) -> Any:
        """Call the library's client, with a timeout and its faults as errors of this project."""
        with store_faults(STORE, (Exception,), translate_fault, filtered=filtered):
            call = getattr(self._client.get(), method)
            return call(*arguments, timeout=within_s, **options)


def connect(url: str) -> MilvusClient:
    """Return a new client of http(s)://[USER:PASSWORD@ or :TOKEN@]HOST[:PORT][/DATABASE]."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 19530)
        good = parts.scheme in ("http", "https") and parts.hostname and ":" not in parts.hostname
    except ValueError:
        good = False
    if not good:
        raise StoreUnavailable(
            "The address of a Milvus store is no http(s)://host:port. In place of an IPv6 address, "
            "its library needs the name of the host."
        )
    secrets = [unquote(each) for each in (parts.username, parts.password) if each]
    return MilvusClient(
        f"{parts.scheme}://{parts.hostname}:{port}",
        token=":".join(secrets),
        db_name=parts.path.strip("/"),
        timeout=CONNECT_S,
        dedicated=True,
        grpc_options={b"grpc.max_receive_message_length": MAX_ANSWER_BYTES},
    )


def translate_fault(error: Exception) -> AnchorageError | None:
    """Return the error that a fault of Milvus or of its connection stands for."""
    code = cause.code() if (cause := find_cause(error, grpc.RpcError)) else None
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "Received message" in str(cause):
        return answer_too_large()
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return StoreRefused(f"{STORE} refused the credentials of its address.")
    if code is not None:
        return StoreUnavailable(f"{STORE} did not answer ({code.name}). Try again when it is up.")
    if not isinstance(error, MilvusException):
        return None
    text, shown = error.message, error.message[:FAULT_SHOWN]
    if any(sign in text for sign in ("parse expression", "expr plan", "query plan")):
        return InvalidFilter(f"{STORE} does not read the filter: {shown}.", field="filter")
    for signs, kind, advice in FAULTS:
        if any(sign in text for sign in signs):
            return kind(f"{STORE} did not accept the call: {shown}. {advice}")
    return None
