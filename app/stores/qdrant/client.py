"""Qdrant by its Python client: a server over HTTP, or a folder in local mode."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import ValidationError
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import (
    ApiException,
    ResponseHandlingException,
    UnexpectedResponse,
)

from app.errors import AnchorageError, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.common import ODD_VALUES, SharedClient, fault_of, store_faults
from app.stores.http_answers import ANSWER_HOOKS, UNCOMPRESSED

#: most seconds of one call
CALL_TIMEOUT_S = 60

#: what the client raises, with the local mode's
FAULTS = (ApiException, httpx.HTTPError, sqlite3.Error, RuntimeError, *ODD_VALUES)


class QdrantEngine:
    """A server or a folder. `where` names the collection in errors, without the address."""

    def __init__(self, url: str, where: str) -> None:
        self.where = where
        self.remote = url.startswith(("http://", "https://"))
        self._server = SharedClient(partial(_connect, url))
        self._folder = local_folder(url)

    @contextmanager
    def session(self, *, filtered: bool = False) -> Iterator[Any]:
        """Yield the client, alone where it is not safe in threads."""
        with qdrant_faults(self.where, filtered=filtered):
            if self.remote:
                yield self._server.get()
                return
            with self._folder.lend() as handle:
                yield handle

    def close(self) -> None:
        self._server.close()
        self._folder.close()


def _connect(url: str) -> QdrantClient:
    parts = urlsplit(url)
    key = parts.password or parts.username
    host = parts.netloc.rpartition("@")[2]
    with warnings.catch_warnings():
        # the client warns of a key without https; the operator chose the address
        warnings.simplefilter("ignore", UserWarning)
        return QdrantClient(
            url=parts._replace(netloc=host).geturl(),
            api_key=unquote(key) if key else None,
            timeout=CALL_TIMEOUT_S,
            check_compatibility=False,
            headers=UNCOMPRESSED,
            event_hooks=ANSWER_HOOKS,
        )


class LocalFolder:
    """The one handle on a folder in local mode that a process may have; calls take turns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = RLock()
        self._handle: QdrantClient | None = None

    @contextmanager
    def lend(self) -> Iterator[QdrantClient]:
        """Yield the handle, which is opened if it is not."""
        with self._lock, warnings.catch_warnings():
            # local mode warns of large collections, and of a lock file that it leaves open
            warnings.simplefilter("ignore")
            self._handle = self._handle or self._open()
            yield self._handle

    def close(self) -> None:
        """Close the handle. The next call, also of another store, opens it again."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                handle.close()

    def _open(self) -> QdrantClient:
        if not (self._path / "meta.json").is_file():  # which Qdrant would create
            raise StoreChanged(
                "The address is not a folder of Qdrant's local mode: it has no meta.json. Ask the "
                "operator to compare ANCHORAGE_STORES with the folder."
            )
        try:
            return QdrantClient(path=str(self._path), force_disable_check_same_thread=True)
        except RuntimeError as error:
            problem = str(error)
            # frees the lock file here, where its warning is ignored
            error.__traceback__ = None
        raise fault_of("The folder", problem)


_FOLDERS: dict[Path, LocalFolder] = {}


def local_folder(url: str) -> LocalFolder:
    """Return the folder of an address, which all its stores share."""
    path = Path(url.removeprefix("file://")).resolve()
    return _FOLDERS.setdefault(path, LocalFolder(path))


def qdrant_faults(where: str, *, filtered: bool = False) -> AbstractContextManager[None]:
    """Return a block that raises errors of stores. where: the collection, without the address."""
    store = f"The Qdrant store of {where}"

    def translate(error: Exception) -> AnchorageError | None:
        if isinstance(error, UnexpectedResponse):
            text = f"{error.reason_phrase}: {error.content.decode(errors='replace')}"
            return fault_of(store, text, filtered=filtered and error.status_code in (400, 422))
        source = getattr(error, "source", error)
        if isinstance(error, ResponseHandlingException) and isinstance(source, ValidationError):
            return StoreUnsupported(
                f"{store} answered in a form that this client does not read. Ask the operator to "
                "compare the versions of both.",
            )
        if isinstance(error, ResponseHandlingException | httpx.HTTPError):
            return StoreUnavailable(
                f"{store} did not answer ({type(source).__name__}). Try again when it is up."
            )
        return None

    return store_faults(store, FAULTS, translate, filtered=filtered)
