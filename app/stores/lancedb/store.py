"""LanceDB as a Store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from app.errors import InvalidFilter, StoreChanged, StoreUnsupported
from app.stores.base import (
    Capabilities,
    Cursor,
    Hits,
    Metric,
    Page,
    RowsChecksum,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import as_json, row_number, rows_checksum
from app.stores.lancedb.beside import LancedbBeside
from app.stores.lancedb.columns import (
    DISTANCES,
    FLOATS,
    OWN_NAME,
    LanceColumns,
    LancePhase,
    distance_of,
    find_columns,
    find_index,
    id_filter,
    quoted,
    to_numpy,
)
from app.stores.lancedb.connection import LanceConnection
from app.stores.lancedb.staging import STAGED_ID, STAGED_VECTOR

#: ids in one condition of `fetch`
FETCH_IDS = 1000

LANCE_NOTES = (
    StoreNote(
        "columns-are-visible",
        "Until `finish`, clients that read all columns also see the columns of the reindexing, "
        "whose names contain `anchorage_`.",
    ),
    StoreNote(
        "changes-by-digest",
        "Writes of clients are found by digests of the vectors, in the fragments whose files "
        "changed, when the new vectors are complete and at a cutover.",
    ),
    StoreNote(
        "space-after-finish",
        "The old vectors stay in old versions of the table. Call `optimize` with "
        "`cleanup_older_than` to free their space.",
    ),
)


@dataclass(frozen=True, eq=False)
class LanceView:
    """The latest version of a table, and what a reindexing has made of it."""

    dataset: Any
    columns: LanceColumns
    phase: LancePhase
    staged: Any = None
    tag: str | None = None


class LancedbStore(Store):
    """A table of a LanceDB database."""

    capabilities = Capabilities(
        strategies=("column",), captures_writes=True, atomic_cutover=True, filters=True
    )

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.connection = LanceConnection(location)

    # --- state --------------------------------------------------------------------------------

    def staging_name(self, tag: str) -> str:
        return f"{self.location.collection}_anchorage_{tag}"

    def view(self, tag: str | None = None) -> LanceView:
        """Return the table as it is now, and of a reindexing; None: of the one that it has.

        Another process may end a reindexing and begin one, so that no tag is remembered.
        Raises StoreChanged, StoreUnsupported.
        """
        dataset = self.connection.dataset(self.location.collection)
        schema = dataset.schema
        tag = tag or min(self.find_tags(dataset), default=None)
        columns = find_columns(self.location, schema, tag or "00000000")
        if tag is None:
            return LanceView(dataset, columns, "none")
        if columns.old in schema.names:
            return LanceView(dataset, columns, "cut", tag=tag)
        staged = self.connection.find_table(self.staging_name(tag))
        if staged is not None:
            return LanceView(dataset, columns, "staged", staged, tag)
        phase: LancePhase = "open" if columns.new in schema.names else "none"
        return LanceView(dataset, columns, phase, tag=tag)

    def find_tags(self, dataset: Any) -> set[str]:
        """Return the tags of reindexings of a table, from its own tags and its columns."""
        with self.connection.faults():
            names = {*dataset.tags.list()}
        names |= {each.removesuffix("_digests") for each in dataset.schema.names}
        return {found[1] for name in names if (found := OWN_NAME.fullmatch(name))}

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        view = self.view()
        column = view.columns.vector
        kind = view.dataset.schema.field(column).type
        table = self.connection.table(self.location.collection)
        with self.connection.faults():
            rows = view.dataset.count_rows(filter=f"{quoted(column)} IS NOT NULL")
            indexed = find_index(table, column) is not None
        return StoreFacts(
            rows=rows,
            dim=kind.list_size,
            metric=self._metric(column),
            dtype=FLOATS[kind.value_type],
            indexed=indexed,
            strategies=self.capabilities.strategies,
            vector_field=column,
            vector_bytes=rows * kind.list_size * kind.value_type.bit_width // 8,
            notes=LANCE_NOTES,
        )

    def _metric(self, column: str) -> Metric:
        table = self.connection.table(self.location.collection)
        with self.connection.faults():
            option = self.location.options.get("distance")
            return DISTANCES[distance_of(table, column, option)]

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        """Read by position in one version, which a cursor pins.

        The sweep of a reindexing reads the version that `prepare` tagged: clients' later writes
        do not move its rows, and are found as changes.
        """
        view = self.view()
        dataset, id, vector = self._source(view, side)
        with self.connection.faults():
            if cursor is not None:
                dataset = dataset.checkout_version(cursor["version"])
            elif view.phase == "staged" and side == "old":
                dataset = dataset.checkout_version(f"anchorage_{view.tag}")
            if vector not in dataset.schema.names:
                raise StoreChanged(
                    "The columns were renamed after the scroll began. Begin again without cursor."
                )
            start = 0 if cursor is None else int(cursor["at"])
            stop = min(start + limit, dataset.count_rows())
            found = dataset.take(list(range(start, stop)), columns=[id, vector])
            more = stop < dataset.count_rows()
        page = _page_of(found)
        after = {"version": dataset.version, "at": stop} if more else None
        return Page(page.ids, page.vectors, after)

    def _source(self, view: LanceView, side: Side) -> tuple[Any, str, str]:
        """Return the dataset of a side, and its columns of ids and vectors."""
        if side == "new" and view.phase == "none":
            raise StoreChanged("The store has no new vectors. Prepare a reindexing first.")
        if side == "new" and view.phase == "staged":
            return view.staged.to_lance(), STAGED_ID, STAGED_VECTOR
        return view.dataset, view.columns.id, view.columns.side(side, view.phase)

    def sample(self, count: int, seed: int = 0) -> Page:
        view = self.view()
        dataset, id, vector = self._source(view, "old")
        with self.connection.faults():
            total = dataset.count_rows()
            draw = np.random.default_rng(seed).permutation(total)[:count]
            found = dataset.take(sorted(draw.tolist()), columns=[id, vector])
        return _page_of(found)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        dataset, id, vector = self._source(self.view(), side)
        found: dict[StoreId, StoreVectors] = {}
        for start in range(0, len(ids), FETCH_IDS):
            part = id_filter(id, ids[start : start + FETCH_IDS])
            with self.connection.faults():
                page = _page_of(dataset.to_table(columns=[id, vector], filter=part))
            found |= dict(zip(page.ids, page.vectors, strict=True))
        kept = [each for each in ids if each in found]
        dim = dataset.schema.field(vector).type.list_size
        vectors = np.stack([found[each] for each in kept]) if kept else np.zeros((0, dim))
        return Page(kept, np.ascontiguousarray(vectors, np.float32))

    def texts(self, ids: Sequence[StoreId]) -> Sequence[str | None]:
        name = self.location.text_field
        view = self.view()
        if name is None or name not in view.dataset.schema.names:
            raise StoreUnsupported(
                "The store names no column with the texts. Name one in `text_field`.",
                field="text_field",
            )
        found: dict[StoreId, str | None] = {}
        for start in range(0, len(ids), FETCH_IDS):
            part = id_filter(view.columns.id, ids[start : start + FETCH_IDS])
            with self.connection.faults():
                rows = view.dataset.to_table(columns=[view.columns.id, name], filter=part)
            found |= dict(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))
        return [found.get(id) for id in ids]

    def search(
        self,
        queries: StoreVectors,
        k: int,
        *,
        filter: Any = None,
        side: Side = "old",
        exact: bool = False,
        vectors: bool = False,
        payload: bool = False,
    ) -> Sequence[Hits]:
        if filter is not None and not isinstance(filter, str):
            raise InvalidFilter(
                'A filter of LanceDB is a condition in SQL, as text: "price < 10".',
                field="filter",
            )
        view = self.view()
        dataset, id, vector = self._source(view, side)
        metric = self._metric(view.columns.vector)
        others = self._others(view) if payload and dataset is view.dataset else []
        columns = list(dict.fromkeys([id, *([vector] if vectors else []), *others]))
        hits = []
        for query in np.asarray(queries, np.float32):
            nearest = {"column": vector, "q": query, "k": k, "use_index": not exact}
            nearest["metric"] = {v: k for k, v in DISTANCES.items()}[metric]
            with self.connection.faults():
                found = dataset.to_table(
                    columns=[*columns, "_distance"], filter=filter, nearest=nearest, prefilter=True
                )
            hits.append(_hits_of(found, id, vector if vectors else None, others, metric, payload))
        return hits

    def _others(self, view: LanceView) -> list[str]:
        """Return the columns that are not vectors of this reindexing."""
        own = {view.columns.vector, *view.columns.own(view.dataset.schema)}
        return [name for name in view.dataset.schema.names if name not in own]

    def checksum(self) -> RowsChecksum:
        view = self.view()
        with self.connection.faults():
            batches = view.dataset.to_batches(columns=self._others(view))
            return rows_checksum(
                row_number(as_json(row)) for batch in batches for row in batch.to_pylist()
            )

    # --- a reindexing -------------------------------------------------------------------------

    def beside(self, tag: str, dim: int, strategy: str | None = None) -> LancedbBeside:
        self.chosen_strategy(strategy)
        return LancedbBeside(self, tag, dim)

    def close(self) -> None:
        self.connection.close()


def _page_of(found: pa.Table) -> Page:
    """Return the rows with a vector, of a table with ids and vectors."""
    if found.column(1).null_count:
        found = found.filter(found.column(1).is_valid())
    return Page(found.column(0).to_pylist(), to_numpy(found.column(1)))


def _hits_of(
    found: pa.Table, id: str, vector: str | None, others: list[str], metric: Metric, payload: bool
) -> Hits:
    found = found.filter(found["_distance"].is_valid())
    distances = found["_distance"].to_numpy()
    scores = -distances if metric == "euclidean" else 1 - distances
    payloads: list[Mapping[str, Any]] = found.select(others).to_pylist() if payload else []
    return Hits(
        found[id].to_pylist(),
        scores.tolist(),
        to_numpy(found[vector]) if vector is not None else None,
        payloads if payload else None,
    )
