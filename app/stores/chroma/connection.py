"""A client of Chroma with timeouts, and its faults as errors of this project."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import chromadb
import httpx
from chromadb import errors
from chromadb.api.client import Client
from chromadb.config import Settings

from app.errors import AnchorageError, StoreRefused, StoreUnavailable
from app.stores.answers import ANSWER_HOOKS, UNCOMPRESSED
from app.stores.common import ODD_VALUES, fault_of, find_cause, store_faults

#: seconds to connect, and the longest wait for an answer
CONNECT_S, ANSWER_S = 5.0, 30.0

#: the store's name in errors
STORE = "The Chroma store"


def translate_fault(error: Exception) -> AnchorageError:
    """Return the error of this project that a class of Chroma's faults stands for."""
    text = str(error)
    if cause := find_cause(error, httpx.TransportError):
        kind = type(cause).__name__
        return StoreUnavailable(f"{STORE} did not answer ({kind}). Check that the server runs.")
    if isinstance(error, errors.AuthorizationError | errors.ChromaAuthError):
        return StoreRefused(f"{STORE} refused the credentials of its address.")
    if "error finding id" in text.lower():  # a folder's client keeps parts of it in memory
        return StoreUnavailable(
            f"{STORE} was changed by another process, which this one cannot see: {text}. Restart "
            "the service. Where several processes write, run a Chroma server and name its address."
        )
    fault = fault_of(STORE, text, filtered="where" in text.lower())
    is_refused = isinstance(error, errors.InvalidArgumentError | ValueError)
    if type(fault) is StoreUnavailable and is_refused and "connect" not in text.lower():
        return StoreRefused(f"{STORE} refused the call: {text}.")
    return fault


class LimitedClient(Client):
    """The library's client of a server, with limits of time and size from its first calls.

    It has two HTTP clients, which the library neither shows nor closes.
    """

    def get_user_identity(self) -> Any:
        """Set the limits, before the first call."""
        self._limit()
        return super().get_user_identity()

    def _validate_tenant_database(self, tenant: str, database: str) -> None:
        self._limit()
        super()._validate_tenant_database(tenant, database)

    def _sessions(self) -> list[httpx.Client]:
        owners: list[Any] = [self, getattr(self, "_admin_client", self)]
        return [each._server._session for each in owners]

    def _limit(self) -> None:
        for session in self._sessions():
            session.timeout = httpx.Timeout(ANSWER_S, connect=min(CONNECT_S, ANSWER_S))
            session.headers.update(UNCOMPRESSED)
            session.event_hooks = ANSWER_HOOKS

    def close(self) -> None:
        """Close the connections too."""
        super().close()
        for session in self._sessions():
            session.close()


def faults() -> AbstractContextManager[None]:
    """Return a block that raises faults of Chroma as errors of this project."""
    # a RuntimeError is that of a client that was closed meanwhile
    kinds = (errors.ChromaError, httpx.HTTPError, RuntimeError, *ODD_VALUES)
    return store_faults(STORE, kinds, translate_fault)


def connect(url: str) -> Any:
    """Return a new client of http(s)://[TOKEN@]HOST[:PORT][/TENANT[/DATABASE]], or of a folder."""
    parts = urlsplit(url)
    # without telemetry: an operator's data must not be reported elsewhere
    settings = Settings(anonymized_telemetry=False)
    if parts.scheme not in ("http", "https"):
        folder = Path(url.removeprefix("file://"))
        if not (folder / "chroma.sqlite3").is_file():
            raise StoreUnavailable("The folder of the address holds no Chroma database.")
        return chromadb.PersistentClient(path=str(folder), settings=settings)
    host, secure = parts.hostname or "localhost", parts.scheme == "https"
    try:
        port = parts.port or (443 if secure else 8000)
    except ValueError as error:
        raise StoreUnavailable("The address of the Chroma store has no valid port.") from error
    token = unquote(parts.password or parts.username or "")
    headers = {"Authorization": f"Bearer {token}", "X-Chroma-Token": token} if token else {}
    names = [unquote(part) for part in parts.path.split("/") if part]
    places = dict(zip(("tenant", "database"), names, strict=False))
    settings.chroma_api_impl = "chromadb.api.fastapi.FastAPI"
    settings.chroma_server_host, settings.chroma_server_http_port = host, port
    settings.chroma_server_ssl_enabled, settings.chroma_server_headers = secure, headers
    return LimitedClient(settings=settings, **places)
