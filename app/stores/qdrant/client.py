"""Qdrant by its Python client: a server over HTTP, or a folder in local mode."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError
from qdrant_client import QdrantClient, models

from app.errors import InvalidFilter, StoreChanged, StoreUnavailable
from app.stores.base import Hits, StoreId, StoreVectors
from app.stores.qdrant.engine import (
    CollectionForm,
    DenseForm,
    Having,
    NearestQuery,
    QdrantEngine,
    StoredPoint,
    named,
    point_id,
    stack,
)
from app.stores.qdrant.faults import QdrantFault, qdrant_faults
from app.stores.qdrant.pool import leave_folder, share_folder

#: most seconds of one call
CALL_TIMEOUT_S = 60
#: most seconds that `wait_for_index` waits
INDEX_TIMEOUT_S = 24 * 3600
#: first version of the server that adds named vectors to a collection
ADDS_VECTORS = (1, 18)
#: most numbers of one request: 10 bytes each in JSON, below the server's 32 MB
NUMBERS_PER_REQUEST = 1_000_000


class ClientEngine(QdrantEngine):
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
        having: Having | None = None,
        vectors: bool | Sequence[str] = False,
        payload: bool = False,
    ) -> tuple[list[StoredPoint], StoreId | None]:
        with self.session() as client:
            records, following = client.scroll(
                name,
                scroll_filter=_having_filter(having),
                limit=limit,
                offset=offset,
                with_payload=payload,
                with_vectors=_selector(vectors),
            )
        return [_stored(each) for each in records], _offset(following)

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

    def count(self, name: str, having: Having | None = None) -> int:
        with self.session() as client:
            return int(client.count(name, count_filter=_having_filter(having), exact=True).count)

    def sample(self, name: str, using: str, count: int) -> list[StoredPoint]:
        with self.session() as client:
            answer = client.query_points(
                name,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                query_filter=_having_filter(Having(present=using)),
                limit=count,
                with_payload=False,
                with_vectors=_selector([using]),
            )
        return [_stored(each) for each in answer.points]

    def nearest(self, name: str, queries: StoreVectors, query: NearestQuery) -> list[Hits]:
        request: dict[str, Any] = {
            "using": query.using,
            "filter": read_filter(query.filter),
            "limit": query.k,
            "with_payload": query.payload,
            "with_vector": _selector([query.using]) if query.vectors else False,
        }
        if self.remote and query.exact:
            # local mode is always exact
            request["params"] = models.SearchParams(exact=True)
        requests = [models.QueryRequest(query=each.tolist(), **request) for each in queries]
        with self.session(filtered=query.filter is not None) as client:
            answers = client.query_batch_points(name, requests)
        return [hits_of(each.points, query, queries.shape[1]) for each in answers]

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
                    update_filter=None if replace else _having_filter(Having(absent=vector)),
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


def hits_of(points: Sequence[Any], query: NearestQuery, dim: int) -> Hits:
    """Return results of one query; larger scores are nearer."""
    found = [_stored(each) for each in points]
    return Hits(
        ids=[each.id for each in found],
        scores=[float(each.score) for each in points],
        vectors=stack(found, query.using, dim) if query.vectors else None,
        payloads=[dict(each.payload) for each in found] if query.payload else None,
    )


def _stored(record: Any) -> StoredPoint:
    number = point_id(record.id)
    assert number is not None
    return StoredPoint(number, named(record.vector), record.payload or {})


def _offset(value: Any) -> StoreId | None:
    return None if value is None else point_id(value)


def _selector(vectors: bool | Sequence[str]) -> bool | list[str]:
    """Return which vectors to read; the unnamed one cannot be selected, so all are read."""
    if isinstance(vectors, bool):
        return vectors
    return True if "" in vectors else list(vectors)


def _having_filter(having: Having | None) -> models.Filter | None:
    if having is None:
        return None
    return models.Filter(must=_has(having.present), must_not=_has(having.absent))


def _has(vector: str | None) -> list[Any] | None:
    return None if vector is None else [models.HasVectorCondition(has_vector=vector)]


def _dense_form(params: models.VectorParams) -> DenseForm:
    return DenseForm(
        size=params.size,
        distance=params.distance.value,
        dtype=params.datatype.value if params.datatype else "float32",
        plain=params.multivector_config is None,
    )
