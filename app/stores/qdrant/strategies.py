"""The strategies of Qdrant, which reports no writes of its clients.

`collection`: a second collection of the same configuration, and one switch of an alias. Only for
clients that use an alias: a collection cannot be renamed. What clients wrote or deleted meanwhile
is found by comparisons before and after the switch.

`named-vector`: the new vectors are another named vector of the same points. Payloads, ids and other
vectors stay where they are. The collection's metadata names the vector that clients pass as
`using`: the cutover is one change of it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel
from qdrant_client import models

from app.errors import ReindexingActive, StoreChanged, StoreUnsupported, WrongState
from app.stores.base import (
    Beside,
    Changes,
    StoreId,
    StoreLocation,
    StoreVectors,
    Switch,
    TranslateRows,
)
from app.stores.qdrant.catch_up import CatchUp, copy_points
from app.stores.qdrant.client import QdrantEngine, VectorPlace, having, stack
from app.stores.qdrant.store import (
    LIVE_VECTORS,
    TAGGED_METADATA,
    QdrantCollection,
    QdrantLayout,
    alias_of,
    copy_problem,
    find_layout,
    metadata_of,
)

#: points of one request that catches up
POINTS_PER_CATCH_UP = 500


class QdrantBeside(Beside):
    """New vectors in Qdrant: what both strategies share."""

    def __init__(self, engine: QdrantEngine, location: StoreLocation, tag: str, dim: int) -> None:
        self._engine, self._location, self._tag, self._dim = engine, location, tag, dim

    def _layout(self) -> QdrantLayout | None:
        """Return the layout; None if this reindexing is not in the collection."""
        layout = find_layout(self._engine, self._location)
        return layout if layout.tag == self._tag else None

    def _free_layout(self) -> QdrantLayout:
        """Return the layout. Raises ReindexingActive for another reindexing in the collection."""
        layout = find_layout(self._engine, self._location)
        if layout.tag not in (None, self._tag):
            raise ReindexingActive(
                f"The collection has another reindexing, {layout.tag}. Finish or abandon it first."
            )
        return layout

    def count(self) -> int:
        layout = self._layout()
        if layout is None or layout.new is None:
            return 0
        return self._engine.count(layout.new.collection, having(present=layout.new.vector))

    def changes(self, limit: int) -> Changes:
        return Changes([], np.empty((0, self._dim), np.float32))

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        if len(changes):
            raise StoreUnsupported("Qdrant captures no writes, so there are no changes to apply.")

    def finish(self) -> None:
        layout = self._layout()
        if layout is None:
            return
        if not layout.cut_over:
            raise WrongState("The old vectors are in use. Cut over before you finish.")
        self._drop(layout.old, layout)

    def abandon(self) -> None:
        layout = self._layout()
        if layout is None:
            return
        if layout.cut_over:
            raise WrongState("The new vectors are in use. Roll back before you abandon.")
        self._drop(layout.new, layout)

    @abstractmethod
    def _drop(self, place: VectorPlace | None, layout: QdrantLayout) -> None:
        """Delete one side, and the traces of the reindexing."""


class SecondCollectionBeside(QdrantBeside):
    """New vectors in a second collection, with copies of payloads and of other vectors."""

    def _prepared(self) -> QdrantLayout:
        layout = self._layout()
        if layout is None or layout.new is None or layout.old is None:
            raise StoreChanged(
                f"The aliases of the reindexing {self._tag} are gone: another client moved the "
                f"alias {self._location.collection!r} or deleted a collection. Look at the "
                "aliases, then begin a new plan."
            )
        return layout

    # --- create and fill --------------------------------------------------------------------------

    def prepare(self) -> None:
        layout = self._free_layout()
        if layout.tag is not None:
            return
        if problem := copy_problem(layout.form, self._location):
            raise StoreUnsupported(problem.detail, field="strategy")
        name = re.sub(r"-[0-9a-f]{8}$", "", layout.form.name) + f"-{self._tag}"
        with self._engine.session() as client:
            if not client.collection_exists(name):
                client.create_collection(name, **copied_config(layout, self._dim))
            info = layout.form.config
            for field, index in info.payload_schema.items():
                client.create_payload_index(name, field, index.params or index.data_type)
            client.update_collection_aliases(
                [
                    _create_alias(alias_of(self._tag, "new"), name),
                    _create_alias(alias_of(self._tag, "old"), layout.form.name),
                ]
            )

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        layout = self._prepared()
        new = dict(zip(ids, vectors, strict=True))
        copy_points(self._engine, layout.side("old"), layout.side("new"), new, replace=replace)

    def build_index(self) -> None:
        self._engine.wait_for_index(self._prepared().side("new").collection)

    # --- switch -----------------------------------------------------------------------------------

    def cutover(self, translate: TranslateRows) -> Switch:
        layout = self._prepared()
        if layout.cut_over:
            return Switch(0.0)
        old, new = layout.side("old"), layout.side("new")
        self._compare_forms(old, new)
        changes = CatchUp(self._engine, old, new, translate)
        gone = changes.before_switch()
        if self._prepared().cut_over:
            # of another process: the ids may be points that clients have written since
            return Switch(0.0)
        changes.delete(gone)
        self._switch(new)
        changes.delete(changes.after_switch())
        return Switch(0.0)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        layout = self._prepared()
        if layout.cut_over:
            # rows that clients deleted since come back: nothing may delete old rows but a person
            old = layout.side("old")
            changes = CatchUp(self._engine, layout.side("new"), old, translate_back)
            changes.before_switch()
            self._switch(old)
            changes.after_switch()
        return Switch(0.0)

    def _compare_forms(self, old: VectorPlace, new: VectorPlace) -> None:
        forms = [self._engine.form(place.collection) for place in (old, new)]
        sizes = [{each: form.dense[each].size for each in form.dense} for form in forms]
        sizes[0][old.vector] = self._dim
        if sizes[0] != sizes[1] or forms[0].sparse != forms[1].sparse:
            raise StoreChanged(
                f"The vectors of {old.collection!r} changed since the reindexing began, and "
                f"{new.collection!r} has the earlier form. Abandon it and begin a new plan."
            )

    def _switch(self, place: VectorPlace) -> None:
        with self._engine.session() as client:
            client.update_collection_aliases(
                [
                    _delete_alias(self._location.collection),
                    _create_alias(self._location.collection, place.collection),
                ]
            )

    def _drop(self, place: VectorPlace | None, layout: QdrantLayout) -> None:
        with self._engine.session() as client:
            if place is not None:
                client.delete_collection(place.collection)
            marks = [alias_of(self._tag, "old"), alias_of(self._tag, "new")]
            there = {each.alias_name for each in client.get_aliases().aliases}
            client.update_collection_aliases(
                [_delete_alias(alias) for alias in marks if alias in there]
            )


def copied_config(layout: QdrantLayout, dim: int) -> dict[str, Any]:
    """Return the arguments that create a collection like the old one, with `dim` dimensions."""
    config = layout.form.config.config
    params = config.params
    vector = layout.live.vector
    if isinstance(params.vectors, models.VectorParams):
        vectors: Any = params.vectors.model_copy(update={"size": dim})
    else:
        vectors = dict(params.vectors)
        vectors[vector] = vectors[vector].model_copy(update={"size": dim})
    strict = getattr(config, "strict_mode_config", None)
    metadata = {
        key: value
        for key, value in (getattr(config, "metadata", None) or {}).items()
        if not TAGGED_METADATA.fullmatch(key)
    }
    arguments = {
        "vectors_config": vectors,
        "sparse_vectors_config": params.sparse_vectors,
        "shard_number": params.shard_number,
        "sharding_method": params.sharding_method,
        "replication_factor": params.replication_factor,
        "write_consistency_factor": params.write_consistency_factor,
        "on_disk_payload": params.on_disk_payload,
        "payload": getattr(params, "payload", None),
        "id_tracker": getattr(params, "id_tracker", None),
        "hnsw_config": _as(models.HnswConfigDiff, config.hnsw_config),
        "optimizers_config": _as(models.OptimizersConfigDiff, config.optimizer_config),
        "wal_config": _as(models.WalConfigDiff, config.wal_config),
        "quantization_config": config.quantization_config,
        "strict_mode_config": strict and _as(models.StrictModeConfig, strict),
        "metadata": metadata or None,
    }
    return {key: value for key, value in arguments.items() if value is not None}


def _as(kind: type[BaseModel], value: BaseModel | None) -> BaseModel | None:
    """Return the settings that the server reports as those that it takes."""
    if value is None:
        return None
    known = value.model_dump(exclude_none=True, include=set(kind.model_fields))
    return kind.model_validate(known)


def _create_alias(alias: str, collection: str) -> models.CreateAliasOperation:
    return models.CreateAliasOperation(
        create_alias=models.CreateAlias(alias_name=alias, collection_name=collection)
    )


def _delete_alias(alias: str) -> models.DeleteAliasOperation:
    return models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))


class NamedVectorBeside(QdrantBeside):
    """New vectors under another name in the same collection."""

    def _prepared(self) -> QdrantLayout:
        layout = self._layout()
        if layout is None or layout.new is None or layout.old is None:
            raise StoreChanged(
                f"{self._location.collection!r} no longer has both vectors of the reindexing "
                f"{self._tag}. Look at the collection, then begin a new plan."
            )
        size = layout.form.dense[layout.new.vector].size
        if size != self._dim:
            raise StoreChanged(
                f"The vector {layout.new.vector!r} has {size} dimensions, and the reindexing "
                f"writes {self._dim}. Another client replaced it. Begin a new plan."
            )
        return layout

    def prepare(self) -> None:
        layout = self._free_layout()
        if not self._engine.can_add_vectors():
            raise StoreUnsupported(
                "Qdrant adds named vectors to a collection from version 1.18 on, and this server "
                "is older. Choose the strategy `collection`.",
                field="strategy",
            )
        name = layout.form.name
        if layout.tag is None:
            entry = {
                "field": layout.field,
                "old": layout.live.vector,
                "new": _new_name(layout.live.vector, self._tag),
            }
            self._engine.set_metadata(name, {metadata_of(self._tag): entry})
        else:
            entry = layout.form.metadata[metadata_of(self._tag)]
        if entry["new"] not in layout.form.dense:
            like = layout.form.dense[entry["old"]]
            self._engine.add_vector(name, entry["new"], like, self._dim)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        new = self._prepared().side("new")
        self._engine.set_vectors(new.collection, new.vector, ids, vectors, replace=replace)

    def build_index(self) -> None:
        self._engine.wait_for_index(self._prepared().form.name)

    def cutover(self, translate: TranslateRows) -> Switch:
        layout = self._prepared()
        old, new = layout.side("old"), layout.side("new")
        if not layout.cut_over:
            self._fill(old, new, translate)
            self._show(layout, new.vector)
        self._fill(old, new, translate)  # of clients that had not seen the switch
        return Switch(0.0)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        layout = self._prepared()
        if layout.cut_over:
            old, new = layout.side("old"), layout.side("new")
            self._fill(new, old, translate_back)
            self._show(layout, old.vector)
            self._fill(new, old, translate_back)  # of clients that had not seen the switch
        return Switch(0.0)

    def _fill(self, source: VectorPlace, target: VectorPlace, translate: TranslateRows) -> None:
        """Write the vectors of points that a client wrote meanwhile with one of both vectors."""
        size = find_layout(self._engine, self._location).form.dense[source.vector].size
        missing = having(present=source.vector, absent=target.vector)
        offset: StoreId | None = None
        while True:
            points, offset = self._engine.scroll(
                source.collection,
                offset,
                POINTS_PER_CATCH_UP,
                having=missing,
                vectors=[source.vector],
            )
            if points:
                ids = [point.id for point in points]
                vectors = translate(ids, stack(points, source.vector, size))
                self._engine.set_vectors(
                    target.collection, target.vector, ids, vectors, replace=False
                )
            if offset is None:
                return

    def _show(self, layout: QdrantLayout, vector: str) -> None:
        live = {**(layout.form.metadata.get(LIVE_VECTORS) or {}), layout.field: vector}
        if vector == layout.field:
            del live[layout.field]
        self._engine.set_metadata(layout.form.name, {LIVE_VECTORS: live or None})

    def _drop(self, place: VectorPlace | None, layout: QdrantLayout) -> None:
        if place is not None:
            self._engine.drop_vector(place.collection, place.vector)
        self._engine.set_metadata(layout.form.name, {metadata_of(self._tag): None})


def _new_name(old: str, tag: str) -> str:
    """Return the name of the new vector: the old one without an earlier tag, and the tag."""
    base = re.sub(r"-[0-9a-f]{8}$", "", old) or "anchorage"
    return f"{base}-{tag}"


class QdrantStore(QdrantCollection):
    """A collection. keeps_lengths is False until `facts` finds that it is not a Cosine one."""

    def beside(self, tag: str, dim: int, strategy: str | None = None) -> Beside:
        named = self.chosen_strategy(strategy) == "named-vector"
        kind = NamedVectorBeside if named else SecondCollectionBeside
        return kind(self.engine, self.location, tag, dim)
