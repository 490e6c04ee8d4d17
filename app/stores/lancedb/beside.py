"""A second column of vectors in the same table. A cutover renames both in one commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from app.errors import ReindexingActive, StoreChanged
from app.stores.base import Beside, Changes, Side, StoreId, StoreVectors, Switch, TranslateRows
from app.stores.common import translate_changes
from app.stores.lancedb.changes import ChangeFinder, LanceToken
from app.stores.lancedb.columns import build_like, find_index, quoted
from app.stores.lancedb.staging import Merge, StagedVectors, staged_schema

if TYPE_CHECKING:
    from app.stores.lancedb.store import LancedbStore, LanceView

#: changes that a cutover translates at once
CHANGED_A_PAGE = 1000


class LancedbBeside(Beside):
    """The strategy `column`."""

    def __init__(self, store: LancedbStore, tag: str, dim: int) -> None:
        self._store = store
        self._connection = store.connection
        self._name = store.location.collection
        self._tag = tag
        self._version_tag = f"anchorage_{tag}"
        self._staging = store.staging_name(tag)
        self._dim = dim
        self._staged: StagedVectors | None = None
        self._finder: ChangeFinder | None = None

    def _require(self, *phases: str) -> LanceView:
        view = self._store.view(self._tag)
        if view.phase not in phases:
            raise StoreChanged(
                f"The table `{self._name}` is not as this reindexing left it: its new vectors are "
                "missing, or were switched by somebody else. Abandon it and plan a new one."
            )
        return view

    def _changes(self, view: LanceView) -> ChangeFinder:
        if self._finder is None:
            self._finder = ChangeFinder(self._connection, self._name, view.columns)
        return self._finder

    # --- writing ------------------------------------------------------------------------------

    def prepare(self) -> None:
        view = self._store.view(self._tag)
        others = self._store.find_tags(view.dataset) - {self._tag}
        if others:
            raise ReindexingActive(
                f"The table has another reindexing, {min(others)}. Finish or abandon it first."
            )
        if view.phase != "none":
            self._check_dim(view)
            return
        schema = view.dataset.schema
        kind = schema.field(view.columns.vector).type
        with self._connection.faults():
            self._require_unique_ids(view)
            table = self._connection.table(self._name)
            if self._version_tag in table.tags.list():
                table.tags.delete(self._version_tag)
            table.tags.create(self._version_tag, table.version)
            new = staged_schema(schema.field(view.columns.id).type, _sized(kind, self._dim))
            self._connection.database.create_table(self._staging, schema=new)

    def _check_dim(self, view: LanceView) -> None:
        schema = view.staged.schema if view.staged is not None else view.dataset.schema
        name = "vector" if view.staged is not None else view.columns.side("new", view.phase)
        found = schema.field(name).type.list_size
        if found != self._dim:
            raise StoreChanged(
                f"The new vectors of this reindexing have {found} dimensions instead of "
                f"{self._dim}. Abandon it and plan a new one."
            )

    def _require_unique_ids(self, view: LanceView) -> None:
        ids = view.dataset.to_table(columns=[view.columns.id]).column(0)
        if ids.null_count or len(ids.unique()) != len(ids):
            raise StoreChanged(
                f"The column `{view.columns.id}` holds an id more than once, or rows without one. "
                "A reindexing needs one id for each row. Name another column in `id_field`."
            )

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        view = self._require("staged", "open")
        if view.phase == "staged":
            if self._staged is None:
                self._staged = StagedVectors(view.staged)
            staged = self._staged
            with self._connection.faults():
                staged.write(ids, np.asarray(vectors, np.float32), replace)
            return
        page = self._store.fetch(ids, "old")
        if not replace:
            present = set(self._store.fetch(ids, "new").ids)
            kept = [place for place, id in enumerate(page.ids) if id not in present]
            page = type(page)([page.ids[place] for place in kept], page.vectors[kept])
        new = dict(zip(ids, vectors, strict=True))
        if page.ids:
            changes = Changes(page.ids, page.vectors, (), LanceToken("old"))
            written = np.stack([new[id] for id in page.ids])
            self._changes(view).apply(changes, written, view.phase)

    def count(self) -> int:
        view = self._store.view(self._tag)
        if view.phase == "none":
            return 0
        with self._connection.faults():
            if view.phase == "staged":
                return int(view.staged.count_rows())
            column = view.columns.side("new", view.phase)
            return int(view.dataset.count_rows(filter=f"{quoted(column)} IS NOT NULL"))

    def build_index(self) -> None:
        """Merge the new vectors into the table, and build an index like the old one."""
        view = self._require("staged", "open", "cut")
        if view.phase == "cut":
            return
        table = self._connection.table(self._name)
        with self._connection.faults():
            if view.phase == "staged":
                staged, self._staged = view.staged, None
                Merge(self._connection, self._name, view.columns, staged, self._version_tag).run()
                self._connection.database.drop_table(self._staging)
            old_dim = view.dataset.schema.field(view.columns.vector).type.list_size
            columns = view.columns
        self._connection.committing(
            lambda: build_like(table, columns.vector, columns.new, old_dim, self._dim)
        )

    # --- changes of clients -------------------------------------------------------------------

    def changes(self, limit: int) -> Changes:
        """Return changed rows; before `build_index` none, because it compares the vectors."""
        view = self._store.view(self._tag)
        if view.phase not in ("open", "cut"):
            return Changes([], np.zeros((0, self._dim), np.float32), (), LanceToken("old"))
        side: Side = "new" if view.phase == "cut" else "old"
        with self._connection.faults():
            return self._changes(view).find(side, view.phase, limit)

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        view = self._require("open", "cut")
        self._changes(view).apply(changes, vectors, view.phase)

    def _drain(self, translate: TranslateRows) -> None:
        while len(changes := self.changes(CHANGED_A_PAGE)):
            self.apply(changes, translate_changes(translate, changes))

    # --- steps --------------------------------------------------------------------------------

    def cutover(self, translate: TranslateRows) -> Switch:
        view = self._require("staged", "open", "cut")
        if view.phase == "cut":
            return Switch(0.0)
        if view.phase == "staged":
            self.build_index()
        self._drain(translate)
        names = view.columns
        pause = self._rename({names.vector: names.old, names.new: names.vector})
        self._bring_late("old", translate)
        return Switch(pause)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        view = self._require("open", "cut")
        if view.phase == "open":
            return Switch(0.0)
        self._drain(translate_back)
        names = view.columns
        pause = self._rename({names.vector: names.new, names.old: names.vector})
        self._bring_late("new", translate_back)
        return Switch(pause)

    def _rename(self, names: dict[str, str]) -> float:
        table = self._connection.table(self._name)
        steps = [{"path": old, "rename": new} for old, new in names.items()]
        begun = time.monotonic()
        self._connection.committing(lambda: table.alter_columns(*steps))
        return time.monotonic() - begun

    def _bring_late(self, side: Side, translate: TranslateRows) -> None:
        """Apply what clients committed to `side` between the last look and the rename."""
        view = self._require("open", "cut")
        finder = self._changes(view)
        while True:
            with self._connection.faults():
                late = finder.find(side, view.phase, CHANGED_A_PAGE, late=True)
            if not len(late):
                return
            finder.apply(late, translate_changes(translate, late), view.phase)

    def finish(self) -> None:
        view = self._require("none", "cut")
        with self._connection.faults():
            if view.phase == "cut":
                self._drop(view, view.columns.old)
            self._drop_version_tag()

    def abandon(self) -> None:
        view = self._require("none", "staged", "open")
        with self._connection.faults():
            self._drop(view, view.columns.new)
            if view.staged is not None:
                self._staged = None
                self._connection.database.drop_table(self._staging)
            self._drop_version_tag()

    def _drop(self, view: LanceView, vector: str) -> None:
        """Drop a column of vectors with its index, and the digests."""
        table = self._connection.table(self._name)
        index = find_index(table, vector)
        if index is not None:
            self._connection.committing(lambda: table.drop_index(index.name))
        names = [
            name for name in (vector, view.columns.digests) if name in view.dataset.schema.names
        ]
        if names:
            self._connection.committing(lambda: table.drop_columns(names))

    def _drop_version_tag(self) -> None:
        table = self._connection.table(self._name)
        if self._version_tag in table.tags.list():
            table.tags.delete(self._version_tag)


def _sized(kind: pa.DataType, dim: int) -> pa.DataType:
    """Return the type of vectors of the same numbers with `dim` dimensions."""
    return pa.list_(kind.value_type, dim)
