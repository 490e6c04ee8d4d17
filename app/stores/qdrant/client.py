"""Qdrant by its Python client: a server over HTTP, or a folder in local mode."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, RLock
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import ValidationError
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import (
    ApiException,
    ResponseHandlingException,
    UnexpectedResponse,
)

from app.errors import (
    AnchorageError,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.common import ODD_VALUES, attempts, fault_of, store_faults
from app.stores.http_answers import ANSWER_HOOKS, UNCOMPRESSED

#: most seconds of one call
CALL_TIMEOUT_S = 60
#: most seconds that `wait_for_index` waits
INDEX_TIMEOUT_S = 24 * 3600

#: what the client raises, with the local mode's
FAULTS = (ApiException, httpx.HTTPError, sqlite3.Error, RuntimeError, *ODD_VALUES)


@dataclass(frozen=True)
class CollectionForm:
    """A collection as it is now.

    name     its own name, where the location may have an alias
    aliases  all aliases of the server, with their collections
    info     configuration and state as the client reports them
    """

    name: str
    aliases: Mapping[str, str]
    info: Any

    @property
    def dense(self) -> dict[str, models.VectorParams]:
        """The dense vectors by name; the unnamed one has the name ''."""
        vectors = self.info.config.params.vectors or {}
        return {"": vectors} if isinstance(vectors, models.VectorParams) else dict(vectors)

    @property
    def sparse(self) -> set[str]:
        return set(self.info.config.params.sparse_vectors or {})


class QdrantEngine:
    """A server or a folder. `where` names the collection in errors, without the address."""

    def __init__(self, url: str, where: str) -> None:
        self.where = where
        self.remote = url.startswith(("http://", "https://"))
        self._url = url
        self._folder = "" if self.remote else str(Path(url.removeprefix("file://")).resolve())
        self._client: Any = None
        self._lock = Lock()

    @contextmanager
    def session(self, *, filtered: bool = False) -> Iterator[Any]:
        """Yield the client, alone where it is not safe in threads."""
        with qdrant_faults(self.where, filtered=filtered):
            if self.remote:
                with self._lock:
                    self._client = self._client or _connect(self._url)
                yield self._client
                return
            with lend_folder(self._folder, id(self)) as handle:
                yield handle

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
        if not self.remote:
            close_folder(self._folder, id(self))

    # --- the collection ---------------------------------------------------------------------------

    def form(self, name: str) -> CollectionForm:
        with self.session() as client:
            answer = client.get_aliases()
            info = client.get_collection(name)
        aliases = {each.alias_name: each.collection_name for each in answer.aliases}
        return CollectionForm(aliases.get(name, name), aliases, info)

    def wait_for_index(self, name: str) -> None:
        for is_late in attempts(INDEX_TIMEOUT_S):
            with self.session() as client:
                info = client.get_collection(name)
            if info.status == models.CollectionStatus.GREEN:
                return
            if info.status == models.CollectionStatus.RED or is_late:
                raise StoreUnavailable(
                    f"Qdrant has not built the index of {self.where}: its status is "
                    f"{info.status.value}, and its optimiser says {info.optimizer_status}. Ask the "
                    "operator to look at the server's log."
                )


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


def load_local(folder: str) -> QdrantClient:
    """Open a folder in local mode. Raises StoreChanged if it is none, because Qdrant creates it."""
    if not (Path(folder) / "meta.json").is_file():
        raise StoreChanged(
            "The address is not a folder of Qdrant's local mode: it has no meta.json. Ask the "
            "operator to compare ANCHORAGE_STORES with the folder."
        )
    with warnings.catch_warnings():
        # the client warns of large collections, and of the lock file that it leaves open on failure
        warnings.simplefilter("ignore")
        try:
            return QdrantClient(path=folder, force_disable_check_same_thread=True)
        except RuntimeError as error:
            problem = str(error)
            # frees the lock file here, where its warning is ignored
            error.__traceback__ = None
    raise fault_of("The folder", problem)


@dataclass(eq=False)
class OpenFolder:
    """The one handle on a folder that a process may have; calls take turns. users: engines."""

    lock: RLock = field(default_factory=RLock)
    users: set[int] = field(default_factory=set)
    handle: Any = None


_FOLDERS: dict[str, OpenFolder] = {}


@contextmanager
def lend_folder(path: str, user: int = 0) -> Iterator[Any]:
    """Yield the handle of a folder, which is opened if it is not."""
    folder = _FOLDERS.setdefault(path, OpenFolder())
    with folder.lock, warnings.catch_warnings():
        # local mode warns of large collections
        warnings.simplefilter("ignore", UserWarning)
        if folder.handle is None:
            folder.handle = load_local(path)
        folder.users |= {user} - {0}
        yield folder.handle


def close_folder(path: str, user: int) -> None:
    """Close the handle after its last user. The next call opens it again."""
    folder = _FOLDERS.setdefault(path, OpenFolder())
    with folder.lock:
        folder.users.discard(user)
        if folder.users:
            return
        handle, folder.handle = folder.handle, None
        if handle is not None:
            handle.close()


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
