"""What the connector needs of Qdrant, so that server, local mode and edge share one connector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np

from app.errors import InvalidRequest, StoreUnsupported
from app.stores.base import Hits, Metric, StoreId, StoreVectors

#: name of the metadata of each distance that the connector reads
METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclidean"}

#: characters that no Qdrant server allows in the name of a collection
FORBIDDEN_IN_COLLECTIONS = frozenset('<>:"/\\|?*\0\x1f')


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
    metadata  what the collection notes of itself; the edge engine keeps it in a file
    config    configuration as the client reports it; None for edge
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
class Having:
    """Selects points that have one vector, and optionally lack another."""

    present: str | None = None
    absent: str | None = None


@dataclass(frozen=True, eq=False)
class NearestQuery:
    """One search of a named vector."""

    using: str
    k: int
    filter: Any
    exact: bool
    vectors: bool
    payload: bool


class QdrantEngine(ABC):
    """Calls of one Qdrant: each is safe in threads and raises the errors of stores."""

    @abstractmethod
    def form(self, name: str) -> CollectionForm:
        """Return the form of a collection or alias. Raises StoreChanged if there is none."""

    @abstractmethod
    def can_add_vectors(self) -> bool:
        """Return whether a collection can get another named vector."""

    @abstractmethod
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
        """Return points in the order of their ids, and the offset of the next."""

    @abstractmethod
    def retrieve(
        self,
        name: str,
        ids: Sequence[StoreId],
        *,
        vectors: bool | Sequence[str] = False,
        payload: bool | Sequence[str] = False,
    ) -> dict[StoreId, StoredPoint]:
        """Return the points of these ids that exist."""

    @abstractmethod
    def count(self, name: str, having: Having | None = None) -> int:
        """Return the exact number of points."""

    @abstractmethod
    def sample(self, name: str, using: str, count: int) -> list[StoredPoint]:
        """Return random points that have the vector."""

    @abstractmethod
    def nearest(self, name: str, queries: StoreVectors, query: NearestQuery) -> list[Hits]:
        """Return the results of each query."""

    @abstractmethod
    def add_vector(self, name: str, vector: str, like: DenseForm, size: int) -> None:
        """Add a named vector."""

    @abstractmethod
    def drop_vector(self, name: str, vector: str) -> None:
        """Delete a named vector of all points."""

    @abstractmethod
    def set_vectors(
        self,
        name: str,
        vector: str,
        ids: Sequence[StoreId],
        values: StoreVectors,
        *,
        replace: bool,
    ) -> None:
        """Set one vector of existing points; without `replace` only where they lack it."""

    @abstractmethod
    def set_metadata(self, name: str, changes: Mapping[str, Any]) -> None:
        """Set members of the metadata; None deletes one."""

    @abstractmethod
    def wait_for_index(self, name: str) -> None:
        """Return when the optimiser has built the indexes; edge builds none."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection or folder. The next call opens it."""


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


def named(vectors: Any) -> dict[str, Any]:
    """Return the vectors of a record by name."""
    if vectors is None:
        return {}
    return dict(vectors) if isinstance(vectors, Mapping) else {"": vectors}


def stack(points: Sequence[StoredPoint], vector: str, dim: int) -> StoreVectors:
    """Return the vectors (n, dim) of points that all have the vector."""
    if not points:
        return np.empty((0, dim), np.float32)
    return np.asarray([point.vectors[vector] for point in points], dtype=np.float32)


def checked_name(collection: str) -> str:
    """Return the name of a collection. Raises InvalidRequest if it could leave the address."""
    if (
        collection in ("", ".", "..")
        or len(collection) > 255
        or FORBIDDEN_IN_COLLECTIONS & set(collection)
    ):
        raise InvalidRequest(
            f"{collection!r} is not the name of a Qdrant collection. A name has 1 to 255 "
            'characters, without any of < > : " / \\ | ? *. Send such a name.',
            field="collection",
        )
    return collection


def metric_of(form: DenseForm, vector: str) -> Metric:
    """Return the metric. Raises StoreUnsupported for vectors that cannot be translated."""
    if not form.plain:
        problem = "holds several vectors per point (a multivector)"
    elif form.dtype not in ("float32", "float16"):
        problem = f"stores numbers of type {form.dtype}"
    elif form.distance not in METRICS:
        problem = f"has the distance {form.distance}"
    else:
        return METRICS[form.distance]
    raise StoreUnsupported(
        f"The vector {vector!r} {problem}. Anchorage reads single vectors of float32 or float16 "
        "with the distances Cosine, Dot and Euclid. Choose another vector in `vector_field`.",
        field="vector_field",
    )
