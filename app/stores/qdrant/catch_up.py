"""Carries writes of clients from one collection to another, before and after a switch.

Qdrant reports no writes, so whole collections are compared: by ids, and by digests of payloads and
other vectors. The digests of one comparison tell which points clients wrote during the switch.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from qdrant_client import models

from app.stores.base import StoreId, TranslateRows
from app.stores.common import as_json, row_number
from app.stores.qdrant.client import (
    NUMBERS_PER_REQUEST,
    POINTS_PER_READ,
    CollectionForm,
    QdrantEngine,
    StoredPoint,
    VectorPlace,
    stack,
)

#: most points of one copy
POINTS_PER_COPY = 500


class CatchUp:
    """One direction: the collection that clients write, and the one that they will see.

    It holds 16 bytes for each point between `before_switch` and `after_switch`.
    """

    def __init__(
        self,
        engine: QdrantEngine,
        source: VectorPlace,
        target: VectorPlace,
        translate: TranslateRows,
    ) -> None:
        self._engine, self._source, self._target = engine, source, target
        self._translate = translate
        self._form = engine.form(source.collection)
        dense, sparse = self._form.dense, self._form.sparse
        self._others = [each for each in [*dense, *sparse] if each != source.vector]
        self._ids, self._contents = array("Q"), array("Q")

    def before_switch(self) -> list[StoreId]:
        """Copy points that the target lacks or has otherwise; return ids that the source lacks."""
        gone: list[StoreId] = []
        stale: list[StoreId] = []
        source = self._read_source()
        names = [self._target.vector, *self._others]
        target = self._engine.every_point(self._target.collection, vectors=names, payload=True)
        for here, there in _pairs(source, target):
            if here is None:
                assert there is not None
                gone.append(there.id)
            elif there is None or self._differ(here, there):
                stale.append(here.id)
            if len(stale) == POINTS_PER_COPY:
                self._copy(stale)
                stale = []
        self._copy(stale)
        return gone

    def after_switch(self) -> list[StoreId]:
        """Copy points that clients wrote to the source since `before_switch` read them.

        Returns ids that they deleted there.
        """
        known, ids = np.sort(np.asarray(self._contents)), np.asarray(self._ids)
        stale: list[StoreId] = []
        self._ids, self._contents = array("Q"), array("Q")
        for point in self._read_source():
            place = int(np.searchsorted(known, self._contents[-1]))
            if place == len(known) or known[place] != self._contents[-1]:
                stale.append(point.id)
        for first in range(0, len(stale), POINTS_PER_COPY):
            self._copy(stale[first : first + POINTS_PER_COPY])
        lost = {int(each) for each in np.setdiff1d(ids, np.asarray(self._ids))}
        if not lost:
            return []
        points = self._engine.every_point(self._target.collection)
        return [point.id for point in points if _id_number(point.id) in lost]

    def delete(self, ids: Sequence[StoreId]) -> None:
        """Delete points of the target."""
        for first in range(0, len(ids), POINTS_PER_READ):
            part = list(ids[first : first + POINTS_PER_READ])
            with self._engine.session() as client:
                client.delete(self._target.collection, models.PointIdsList(points=part))

    def _differ(self, here: StoredPoint, there: StoredPoint) -> bool:
        if (self._source.vector in here.vectors) != (self._target.vector in there.vectors):
            return True
        return digest(here, self._others, self._form) != digest(there, self._others, self._form)

    def _copy(self, ids: Sequence[StoreId]) -> None:
        if not ids:
            return
        vector = self._source.vector
        found = self._engine.retrieve(self._source.collection, ids, vectors=[vector])
        vectors: dict[StoreId, Any] = dict.fromkeys(found)
        points = [point for point in found.values() if vector in point.vectors]
        if points:
            keys = [point.id for point in points]
            new = self._translate(keys, stack(points, vector, self._form.dense[vector].size))
            vectors.update(zip(keys, new, strict=True))
        copy_points(self._engine, self._source, self._target, vectors, replace=True)

    def _read_source(self) -> Iterator[StoredPoint]:
        """Yield the points that clients write, and note the id and the content of each."""
        name = self._source.collection
        for point in self._engine.every_point(name, vectors=True, payload=True):
            self._ids.append(_id_number(point.id))
            number = digest(point, self._others, self._form)
            vector = point.vectors.get(self._source.vector, ())
            content = hashlib.blake2b(number.to_bytes(16, "big"), digest_size=8)
            content.update(np.asarray(vector, np.float32).tobytes())
            self._contents.append(int.from_bytes(content.digest(), "big"))
            yield point


def copy_points(
    engine: QdrantEngine,
    source: VectorPlace,
    target: VectorPlace,
    vectors: Mapping[StoreId, Any],
    *,
    replace: bool,
) -> None:
    """Copy points with other vectors of one name. None: the point has no such vector."""
    ids = list(vectors)
    longest = max((len(each) for each in vectors.values() if each is not None), default=1)
    step = max(1, min(POINTS_PER_COPY, NUMBERS_PER_REQUEST // longest))
    for first in range(0, len(ids), step):
        part = ids[first : first + step]
        there = engine.retrieve(target.collection, part, vectors=[target.vector])
        if not replace:
            part = [
                each
                for each in part
                if each not in there or target.vector not in there[each].vectors
            ]
        points = engine.retrieve(source.collection, part, vectors=True, payload=True)
        fresh: list[Any] = []
        known: list[Any] = []
        for each, point in points.items():
            named = {key: value for key, value in point.vectors.items() if key != source.vector}
            if vectors[each] is not None:
                named[target.vector] = [float(value) for value in vectors[each]]
            bare = named[""] if set(named) == {""} else named
            struct = models.PointStruct(id=each, vector=bare, payload=dict(point.payload))
            (known if each in there else fresh).append(struct)
        _upsert(engine, target.collection, fresh, insert_only=not replace)
        _upsert(engine, target.collection, known, insert_only=False)


def digest(point: StoredPoint, others: Sequence[str], form: CollectionForm) -> int:
    """Return a number of the id, the payload and the other vectors of a point.

    Of other Cosine vectors only the presence counts: a copy scales them to unit length again,
    which can change the last bit.
    """
    parts = [as_json(point.id), as_json(point.payload)]
    for name in sorted(set(others) & set(point.vectors)):
        parts.append(name.encode() + b"\0")
        value = point.vectors[name]
        if name in form.sparse:
            parts.append(as_json(sorted(zip(value.indices, value.values, strict=True))))
        elif form.dense[name].distance != "Cosine":
            parts.append(np.asarray(value, np.float32).tobytes())
    return row_number(*parts)


def _upsert(engine: QdrantEngine, name: str, points: list[Any], *, insert_only: bool) -> None:
    if not points:
        return
    # servers before 1.18 may not know the mode; they rely on the read before
    mode = {"update_mode": models.UpdateMode.INSERT_ONLY}
    more = mode if insert_only and engine.can_add_vectors() else {}
    with engine.session() as client:
        client.upsert(name, points, **more)


def _id_number(value: StoreId) -> int:
    name = json.dumps(value).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def _pairs(
    source: Iterator[StoredPoint], target: Iterator[StoredPoint]
) -> Iterator[tuple[StoredPoint | None, StoredPoint | None]]:
    """Merge two ascending scrolls; yield the points of each id. Numbers precede UUIDs."""
    here, there = next(source, None), next(target, None)
    while here is not None or there is not None:
        if there is None or (here is not None and _order(here.id) < _order(there.id)):
            yield here, None
            here = next(source, None)
        elif here is None or _order(there.id) < _order(here.id):
            yield None, there
            there = next(target, None)
        else:
            yield here, there
            here, there = next(source, None), next(target, None)


def _order(value: StoreId) -> tuple[bool, int, str]:
    return (False, value, "") if isinstance(value, int) else (True, 0, value)
