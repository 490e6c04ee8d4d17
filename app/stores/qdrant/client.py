"""Qdrant by its Python client: a server over HTTP, or a folder in local mode."""

from __future__ import annotations

import errno
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, RLock
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import httpx
import numpy as np
from pydantic import ValidationError
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from app.errors import (
    AnchorageError,
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.base import Hits, StoreId, StoreVectors
from app.stores.common import raised_by

#: most seconds of one call
CALL_TIMEOUT_S = 60
#: most seconds that `wait_for_index` waits
INDEX_TIMEOUT_S = 24 * 3600
#: first version of the server that adds named vectors to a collection
ADDS_VECTORS = (1, 18)
#: points of one request that reads a whole collection, and ids of one that deletes
POINTS_PER_READ = 1000
#: most numbers of one request: 10 bytes each in JSON, below the server's 32 MB
NUMBERS_PER_REQUEST = 1_000_000


FULL_SIGNS = ("no space left", "disk is full", "disk full", "not enough space", "out of disk")
REFUSED_SIGNS = ("permission denied", "read-only", "readonly", "forbidden", "unauthorized")
LOCKED_SIGNS = ("already accessed by another instance", "wouldblock", "database is locked")
CHANGED_SIGNS = (
    "not found",
    "doesn't exist",
    "does not exist",
    "not existing vector name",
    "no point with id",
    "vector dimension error",
    "is not initialized",
    "vector inserting error",
)

#: packages whose ValueError and RuntimeError are faults of the store
QDRANT_PACKAGES = ("qdrant_client", "portalocker")

#: most characters of a fault that an error repeats
FAULT_SHOWN = 200


class QdrantFault(RuntimeError):
    """What Qdrant said, where its own error cannot be raised again."""


@dataclass(frozen=True)
class DenseForm:
    """One dense vector of a collection. plain: one vector of floats in each point."""

    size: int
    distance: str
    dtype: str
    plain: bool


@dataclass(frozen=True)
class CollectionForm:
    """A collection as it is now.

    name      its own name, where the location may have an alias
    aliases   all aliases of the server, with their collections
    metadata  what the collection notes of itself
    config    configuration as the client reports it
    """

    name: str
    dense: Mapping[str, DenseForm]
    sparse: frozenset[str]
    indexed: bool
    metadata: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    config: Any = None


@dataclass(frozen=True, eq=False)
class StoredPoint:
    """A point; vectors by name; the unnamed one has the name ''."""

    id: StoreId
    vectors: Mapping[str, Any] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VectorPlace:
    """A named vector of a collection."""

    collection: str
    vector: str


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
            folder = share_folder(self._folder, id(self), lambda: load_local(self._folder))
            with folder.lock, warnings.catch_warnings():
                # local mode warns of large collections
                warnings.simplefilter("ignore", UserWarning)
                yield folder.handle

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
        if not self.remote:
            leave_folder(self._folder, id(self))

    # --- the collection ---------------------------------------------------------------------------

    def form(self, name: str) -> CollectionForm:
        with self.session() as client:
            answer = client.get_aliases()
            info = client.get_collection(name)
        aliases = {each.alias_name: each.collection_name for each in answer.aliases}
        params = info.config.params
        vectors = params.vectors or {}
        dense = {"": vectors} if isinstance(vectors, models.VectorParams) else dict(vectors)
        return CollectionForm(
            name=aliases.get(name, name),
            dense={each: _dense_form(value) for each, value in dense.items()},
            sparse=frozenset(params.sparse_vectors or {}),
            indexed=bool(info.indexed_vectors_count),
            metadata=getattr(info.config, "metadata", None) or {},
            aliases=aliases,
            config=info,
        )

    def can_add_vectors(self) -> bool:
        return self.version() >= ADDS_VECTORS

    def version(self) -> tuple[int, ...]:
        """Return the version of the server; in local mode, of the client."""
        with self.session() as client:
            text = client.info().version
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    def set_metadata(self, name: str, changes: Mapping[str, Any]) -> None:
        with self.session() as client:
            client.update_collection(name, metadata=dict(changes))

    def add_vector(self, name: str, vector: str, like: DenseForm, size: int) -> None:
        config = models.DenseVectorConfig(
            size=size,
            distance=models.Distance(like.distance),
            datatype=None if like.dtype == "float32" else models.VectorStorageDatatype(like.dtype),
        )
        with self.session() as client:
            client.create_vector_name(name, vector, models.DenseVectorNameConfig(dense=config))

    def drop_vector(self, name: str, vector: str) -> None:
        with self.session() as client:
            client.delete_vector_name(name, vector)

    def wait_for_index(self, name: str) -> None:
        until = time.monotonic() + INDEX_TIMEOUT_S
        pause = 0.1
        while True:
            with self.session() as client:
                info = client.get_collection(name)
            if info.status == models.CollectionStatus.RED:
                raise StoreUnavailable(
                    f"Qdrant's optimiser failed at {self.where}: {info.optimizer_status}. Ask the "
                    "operator to look at the server's log."
                )
            if info.status == models.CollectionStatus.GREEN:
                return
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"Qdrant has not built the index of {self.where} after "
                    f"{INDEX_TIMEOUT_S} s. Try again later."
                )
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    # --- points -----------------------------------------------------------------------------------

    def scroll(
        self,
        name: str,
        offset: StoreId | None,
        limit: int,
        *,
        having: models.Filter | None = None,
        vectors: bool | Sequence[str] = False,
        payload: bool = False,
    ) -> tuple[list[StoredPoint], StoreId | None]:
        with self.session() as client:
            records, following = client.scroll(
                name,
                scroll_filter=having,
                limit=limit,
                offset=offset,
                with_payload=payload,
                with_vectors=_selector(vectors),
            )
        points = [_stored(each) for each in records]
        return points, None if following is None else point_id(following)

    def every_point(
        self, name: str, *, vectors: bool | Sequence[str] = False, payload: bool = False
    ) -> Iterator[StoredPoint]:
        """Yield all points in the order of their ids."""
        offset: StoreId | None = None
        while True:
            points, offset = self.scroll(
                name, offset, POINTS_PER_READ, vectors=vectors, payload=payload
            )
            yield from points
            if offset is None:
                return

    def retrieve(
        self,
        name: str,
        ids: Sequence[StoreId],
        *,
        vectors: bool | Sequence[str] = False,
        payload: bool | Sequence[str] = False,
    ) -> dict[StoreId, StoredPoint]:
        if not ids:
            return {}
        with self.session() as client:
            records = client.retrieve(
                name,
                list(ids),
                with_payload=payload if isinstance(payload, bool) else list(payload),
                with_vectors=_selector(vectors),
            )
        return {point.id: point for point in map(_stored, records)}

    def count(self, name: str, having: models.Filter | None = None) -> int:
        """Return the exact number of points."""
        with self.session() as client:
            return int(client.count(name, count_filter=having, exact=True).count)

    def sample(self, name: str, using: str, count: int) -> list[StoredPoint]:
        with self.session() as client:
            answer = client.query_points(
                name,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                query_filter=having(present=using),
                limit=count,
                with_payload=False,
                with_vectors=_selector([using]),
            )
        return [_stored(each) for each in answer.points]

    def nearest(
        self,
        name: str,
        using: str,
        queries: StoreVectors,
        k: int,
        *,
        filter: Any,
        exact: bool,
        vectors: bool,
        payload: bool,
    ) -> list[Hits]:
        """Return the results of each query, with the scores of Qdrant."""
        request: dict[str, Any] = {
            "using": using,
            "filter": read_filter(filter),
            "limit": k,
            "with_payload": payload,
            "with_vector": _selector([using]) if vectors else False,
        }
        if self.remote and exact:
            # local mode is always exact
            request["params"] = models.SearchParams(exact=True)
        requests = [models.QueryRequest(query=each.tolist(), **request) for each in queries]
        with self.session(filtered=filter is not None) as client:
            answers = client.query_batch_points(name, requests)
        results = []
        for answer in answers:
            found = [_stored(each) for each in answer.points]
            results.append(
                Hits(
                    ids=[each.id for each in found],
                    scores=[float(each.score) for each in answer.points],
                    vectors=stack(found, using, queries.shape[1]) if vectors else None,
                    payloads=[dict(each.payload) for each in found] if payload else None,
                )
            )
        return results

    def set_vectors(
        self,
        name: str,
        vector: str,
        ids: Sequence[StoreId],
        values: StoreVectors,
        *,
        replace: bool,
    ) -> None:
        there = self.retrieve(name, ids)
        keep = [row for row, each in enumerate(ids) if each in there]
        step = max(1, NUMBERS_PER_REQUEST // max(1, values.shape[1]))
        for first in range(0, len(keep), step):
            points = [
                models.PointVectors(id=ids[row], vector={vector: values[row].tolist()})
                for row in keep[first : first + step]
            ]
            with self.session() as client:
                client.update_vectors(
                    name,
                    points,
                    update_filter=None if replace else having(absent=vector),
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
    raise QdrantFault(problem)


def read_filter(filter: Any) -> models.Filter | None:
    """Return a filter from Qdrant's JSON. Raises InvalidFilter."""
    if filter is None:
        return None
    try:
        return models.Filter.model_validate(filter)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidFilter(
            f"`filter` is not a filter of Qdrant: {first['msg']} at `{place}`. Send an object with "
            "`must`, `should` or `must_not`, as Qdrant's documentation describes it.",
            field="filter",
        ) from None


def _stored(record: Any) -> StoredPoint:
    number = point_id(record.id)
    assert number is not None
    vectors = record.vector if isinstance(record.vector, Mapping) else {"": record.vector}
    return StoredPoint(number, vectors if record.vector is not None else {}, record.payload or {})


def _selector(vectors: bool | Sequence[str]) -> bool | list[str]:
    """Return which vectors to read; the unnamed one cannot be selected, so all are read."""
    if isinstance(vectors, bool):
        return vectors
    return True if "" in vectors else list(vectors)


def having(present: str | None = None, absent: str | None = None) -> models.Filter:
    """Return the filter of points that have one vector, and lack another."""
    return models.Filter(must=_has(present), must_not=_has(absent))


def _has(vector: str | None) -> list[Any] | None:
    return None if vector is None else [models.HasVectorCondition(has_vector=vector)]


def _dense_form(params: models.VectorParams) -> DenseForm:
    return DenseForm(
        size=params.size,
        distance=params.distance.value,
        dtype=params.datatype.value if params.datatype else "float32",
        plain=params.multivector_config is None,
    )


def point_id(value: Any) -> StoreId | None:
    """Return an id as Qdrant writes it; None for one that no point can have."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value) if 0 <= value < 2**64 else None
    try:
        return str(UUID(str(value)))
    except ValueError:
        return None


def stack(points: Sequence[StoredPoint], vector: str, dim: int) -> StoreVectors:
    """Return the vectors (n, dim) of points that all have the vector."""
    if not points:
        return np.empty((0, dim), np.float32)
    return np.asarray([point.vectors[vector] for point in points], dtype=np.float32)


@dataclass(eq=False)
class OpenFolder:
    """One handle on a folder. users: keys of the engines that use it; lock: serialises calls."""

    handle: Any
    users: set[int] = field(default_factory=set)
    lock: RLock = field(default_factory=RLock)


_FOLDERS: dict[str, OpenFolder] = {}
_LOCK = RLock()


def share_folder(path: str, user: int, load: Callable[[], Any]) -> OpenFolder:
    """Return the handle of a folder; `load` opens it if this process has not."""
    with _LOCK:
        folder = _FOLDERS.get(path)
        if folder is None:
            folder = _FOLDERS[path] = OpenFolder(load())
        folder.users.add(user)
        return folder


def leave_folder(path: str, user: int) -> None:
    """Close the handle when its last user leaves."""
    with _LOCK:
        folder = _FOLDERS.get(path)
        if folder is None:
            return
        folder.users.discard(user)
        if not folder.users:
            del _FOLDERS[path]
            with folder.lock:
                folder.handle.close()


@contextmanager
def qdrant_faults(where: str, *, filtered: bool = False) -> Iterator[None]:
    """Raise errors of stores. where: the collection; filtered: the call has a client's filter."""
    try:
        yield
    except AnchorageError:
        raise
    except UnexpectedResponse as error:
        raise _of_status(where, error, filtered) from None
    except (ResponseHandlingException, httpx.HTTPError) as error:
        source = getattr(error, "source", error)
        if isinstance(source, ValidationError):
            raise StoreUnsupported(
                f"The Qdrant server of {where} answered in a form that this client does not read. "
                "Ask the operator to compare the versions of both.",
            ) from None
        raise StoreUnavailable(
            f"The Qdrant server of {where} did not answer ({type(source).__name__}). Try again "
            "when it is up."
        ) from None
    except OSError as error:
        raise _of_text(where, f"{error.strerror or error}", filtered, error.errno) from None
    except (sqlite3.Error, QdrantFault) as error:
        raise _of_text(where, str(error), filtered) from None
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        # local mode raises these for names and filters that it does not know
        if not raised_by(error, QDRANT_PACKAGES) or (isinstance(error, TypeError) and not filtered):
            raise  # a mistake of ours
        if isinstance(error, KeyError):
            raise _changed(where, f"{error} is not there") from None
        raise _of_text(where, str(error), filtered) from None


def _of_status(where: str, error: UnexpectedResponse, filtered: bool) -> AnchorageError:
    text = error.content.decode(errors="replace")[:FAULT_SHOWN]
    status = error.status_code or 0
    if any(sign in text.lower() for sign in FULL_SIGNS) or status == 507:
        return _full(where)
    if status in (401, 403):
        return _refused(where, f"it answered {status}")
    if status == 404:
        return _changed(where, text)
    if status == 400 or status == 422:
        return _of_text(where, text, filtered)
    return StoreUnavailable(
        f"The Qdrant server of {where} answered {status}. Try again when it is healthy."
    )


def _of_text(where: str, text: str, filtered: bool, number: int | None = None) -> AnchorageError:
    low = text.lower()
    shown = text[:FAULT_SHOWN]
    if number in (errno.ENOSPC, errno.EDQUOT) or any(sign in low for sign in FULL_SIGNS):
        return _full(where)
    if any(sign in low for sign in LOCKED_SIGNS):
        return StoreUnavailable(
            f"Another process has the folder of {where} open, and Qdrant lets one process in. "
            "Close it there, or use a Qdrant server."
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or any(
        sign in low for sign in REFUSED_SIGNS
    ):
        return _refused(where, shown)
    if number is not None or any(sign in low for sign in CHANGED_SIGNS):
        return _changed(where, shown)
    if filtered:
        return InvalidFilter(
            f"Qdrant refuses the filter: {shown}. Send a filter of Qdrant's JSON.", field="filter"
        )
    return StoreUnavailable(
        f"Qdrant failed at {where}: {shown}. Try again; if it fails again, "
        "ask the operator to look at its log."
    )


def _full(where: str) -> StoreFull:
    return StoreFull(f"The disk of {where} is full. Free space there, then continue.")


def _refused(where: str, why: str) -> StoreRefused:
    return StoreRefused(
        f"Qdrant refuses access to {where} ({why}). Ask the operator for an API key, or for "
        "permissions of the folder, that allow reads and writes."
    )


def _changed(where: str, why: str) -> StoreChanged:
    return StoreChanged(
        f"The collection {where} is not as it was: {why}. Look at it, then begin a new plan."
    )
