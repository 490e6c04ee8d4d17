"""Qdrant by its Python client: a server over HTTP, or a folder in local mode."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from app.stores.answers import ANSWER_HOOKS, UNCOMPRESSED
from app.stores.common import ODD_VALUES, SharedClient, fault_of, store_faults

#: most seconds of one call
CALL_TIMEOUT_S = 60

#: what the client raises, with the local mode's
FAULTS = (ApiException, httpx.HTTPError, sqlite3.Error, RuntimeError, *ODD_VALUES)


class QdrantConnection:
    """A server, or a folder in local mode, which lets in one handle of a process, and one thread.

    where  names the collection in errors, without the address
    """

    def __init__(self, url: str, where: str) -> None:
        self._where = where
        self.remote = url.startswith(("http://", "https://"))
        self._client = SharedClient(partial(_connect, url))
        self._turn: AbstractContextManager[Any] = nullcontext()
        if not self.remote:  # all stores of the folder share its handle
            path = Path(url.removeprefix("file://")).resolve()
            handle = SharedClient(partial(_open_folder, path)), RLock()
            self._client, self._turn = _FOLDERS.setdefault(path, handle)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yield the client, alone in local mode."""
        with self._turn, _without_warnings() if not self.remote else nullcontext():
            yield self._client.get()

    def call(self, method: str, *arguments: Any, filtered: bool = False, **options: Any) -> Any:
        """Call the library's client, with its faults as errors of this project."""
        with qdrant_faults(self._where, filtered=filtered), self.session() as client:
            return getattr(client, method)(*arguments, **options)

    def close(self) -> None:
        """Close the client. The next call, also of another store of a folder, opens it again."""
        with self._turn:
            self._client.close()


_FOLDERS: dict[Path, tuple[SharedClient, AbstractContextManager[Any]]] = {}


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore warnings of a key without https, of large collections, and of an open lock file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _connect(url: str) -> QdrantClient:
    parts = urlsplit(url)
    key = parts.password or parts.username
    host = parts.netloc.rpartition("@")[2]
    with _without_warnings():
        return QdrantClient(
            url=parts._replace(netloc=host).geturl(),
            api_key=unquote(key) if key else None,
            timeout=CALL_TIMEOUT_S,
            check_compatibility=False,
            headers=UNCOMPRESSED,
            event_hooks=ANSWER_HOOKS,
        )


def _open_folder(path: Path) -> QdrantClient:
    if not (path / "meta.json").is_file():  # which Qdrant would create
        raise StoreChanged(
            "The address is not a folder of Qdrant's local mode: it has no meta.json. Ask the "
            "operator to compare ANCHORAGE_STORES with the folder."
        )
    try:
        return QdrantClient(path=str(path), force_disable_check_same_thread=True)
    except RuntimeError as error:
        problem = str(error)
        error.__traceback__ = None  # frees the lock file here, where its warning is ignored
    raise fault_of("The folder", problem)


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
                "compare the versions of both."
            )
        if isinstance(error, ResponseHandlingException | httpx.HTTPError):
            return StoreUnavailable(
                f"{store} did not answer ({type(source).__name__}). Try again when it is up."
            )
        return None

    return store_faults(store, FAULTS, translate, filtered=filtered)
