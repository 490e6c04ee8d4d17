"""LanceDB as a Store: the new vectors become a second column, and a cutover renames both.

The columns are two sides of the same rows, so nothing but vectors is copied. A column of digests
tells whether a client wrote a vector since the other one was made of it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from app.errors import InvalidFilter, StoreChanged, StoreUnsupported
from app.stores.base import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    Metric,
    Page,
    RowsChecksum,
    Side,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import as_json, row_number, rows_checksum
from app.stores.lancedb.columns import (
    DISTANCES,
    FLOATS,
    OWN_NAME,
    build_like,
    digests_of,
    distance_of,
    find_id,
    find_index,
    find_vector,
    id_filter,
    quoted,
    to_arrow,
    to_numpy,
)
from app.stores.lancedb.connection import LanceConnection
from app.stores.lancedb.merge import (
    IDS_A_FILTER,
    STAGED_DIGEST,
    STAGED_ID,
    STAGED_VECTOR,
    Merge,
    pair_of,
)
from app.stores.second_collection import PairedStore, Sides, StoredRow, fingerprint

LANCE_NOTES = (
    StoreNote(
        "columns-are-visible",
        "Until `finish`, clients that read all columns also see the columns of the migration, "
        "whose names contain `anchorage_`.",
    ),
    StoreNote(
        "changes-by-digest",
        "Writes of clients are found by digests of the vectors, when the new vectors are "
        "complete, with each synchronisation, and at a cutover.",
    ),
    StoreNote(
        "space-after-finish",
        "The old vectors stay in old versions of the table. Call `optimize` with "
        "`cleanup_older_than` to free their space.",
    ),
)


@dataclass(frozen=True, eq=False)
class LancePlace:
    """A column of vectors in the latest version of a table.

    pair    column of digests; None: there is none yet
    half    place of this vector's digest in a pair
    sweep   tag of the version that a scroll from the beginning reads; None: the latest
    staged  the table that has only new vectors; None: the column is in the clients' table
    """

    dataset: Any
    id: str
    vector: str
    pair: str | None = None
    half: int = 0
    sweep: str | None = None
    staged: Any = None

    @property
    def kind(self) -> pa.DataType:
        return self.dataset.schema.field(self.vector).type


class LancedbStore(PairedStore):
    """A table of a LanceDB database."""

    capabilities = Capabilities(captures_writes=True, atomic_cutover=True, filters=True)
    shares_rows = True

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self.location = location
        self.connection = LanceConnection(location)
        self._name = location.collection

    def close(self) -> None:
        self.connection.close()

    # --- state --------------------------------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        dataset = self.connection.dataset(self._name)
        for each in [tag] if tag else sorted(self._tags(dataset)):
            sides = self._sides_of(dataset, each)
            if sides.phase != "none":
                return sides
        id = find_id(self.location, dataset.schema)
        return Sides(
            "none", None, LancePlace(dataset, id, find_vector(self.location, dataset.schema))
        )

    def _tags(self, dataset: Any) -> set[str]:
        with self.connection.faults():
            names = {*dataset.tags.list()}
        names |= {each.removesuffix("_digests") for each in dataset.schema.names}
        return {found[1] for name in names if (found := OWN_NAME.fullmatch(name))}

    def _sides_of(self, dataset: Any, tag: str) -> Sides:
        schema = dataset.schema
        id, vector = find_id(self.location, schema), find_vector(self.location, schema)
        new, pair = f"{vector}_anchorage_{tag}", f"anchorage_{tag}_digests"
        if f"{new}_old" in schema.names:
            old = LancePlace(dataset, id, f"{new}_old", pair, 0)
            return Sides("cut", tag, old, LancePlace(dataset, id, vector, pair, 1))
        staged = self.connection.find_table(self._staged_name(tag))
        if staged is not None:
            old = LancePlace(dataset, id, vector, sweep=f"anchorage_{tag}")
            table = staged.to_lance()
            return Sides(
                "open", tag, old, LancePlace(table, STAGED_ID, STAGED_VECTOR, staged=staged)
            )
        old = LancePlace(dataset, id, vector, pair, 0)
        if new not in schema.names or pair not in schema.names:
            return Sides("none", None, LancePlace(dataset, id, vector))
        return Sides("open", tag, old, LancePlace(dataset, id, new, pair, 1))

    def _staged_name(self, tag: str) -> str:
        return f"{self._name}_anchorage_{tag}"

    # --- verbs of the second collection -------------------------------------------------------

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        old: LancePlace = sides.old
        with self.connection.faults():
            if not has_unique_ids(old.dataset, old.id):
                raise StoreChanged(
                    f"The column `{old.id}` holds an id more than once, or rows without one. "
                    "A migration needs one id for each row. Name another column in `id_field`."
                )
            self._drop_version(tag)
            table = self.connection.table(self._name)
            table.tags.create(f"anchorage_{tag}", table.version)
            fields = [
                pa.field(STAGED_ID, old.dataset.schema.field(old.id).type),
                pa.field(STAGED_VECTOR, pa.list_(old.kind.value_type, dim)),
                pa.field(STAGED_DIGEST, pa.int64()),
            ]
            self.connection.database.create_table(self._staged_name(tag), schema=pa.schema(fields))

    def read_page(
        self, place: LancePlace, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        """Read by position in one version, which a cursor pins."""
        names = [place.id, place.vector, *([place.pair] if place.pair else [])]
        found, after = self._take(place.dataset, cursor, limit, names, place.sweep)
        return _rows_of(found, place), after

    def _take(
        self,
        dataset: Any,
        cursor: Cursor | None,
        limit: int,
        names: Sequence[str],
        sweep: str | None = None,
    ) -> tuple[pa.Table, Cursor | None]:
        with self.connection.faults():
            if cursor is not None:
                dataset = dataset.checkout_version(cursor["version"])
            elif sweep is not None:
                dataset = dataset.checkout_version(sweep)
            if any(name not in dataset.schema.names for name in names):
                raise StoreChanged(
                    "The columns were renamed after the scroll began. Begin again without cursor."
                )
            start = 0 if cursor is None else int(cursor["at"])
            stop = min(start + limit, dataset.count_rows())
            found = dataset.take(list(range(start, stop)), columns=list(dict.fromkeys(names)))
            more = stop < dataset.count_rows()
        return found, {"version": dataset.version, "at": stop} if more else None

    def read_rows(
        self, place: LancePlace, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> dict[StoreId, StoredRow]:
        names = [place.id, place.vector, *([place.pair] if place.pair else [])]
        found = self._by_ids(place, ids, names)
        return {row.id: row for part in found for row in _rows_of(part, place)}

    def _by_ids(
        self, place: LancePlace, ids: Sequence[StoreId], names: Sequence[str]
    ) -> Iterator[pa.Table]:
        for start in range(0, len(ids), IDS_A_FILTER):
            part = id_filter(place.id, ids[start : start + IDS_A_FILTER])
            with self.connection.faults():
                yield place.dataset.to_table(columns=list(names), filter=part)

    def compare_page(
        self, sides: Sides, source: Side, cursor: Cursor | None, limit: int
    ) -> tuple[list[tuple[StoredRow, StoredRow | None]], Cursor | None]:
        """Read both sides of the same rows at once."""
        here, there = sides.old, sides.new
        if source == "new":
            here, there = there, here
        names = [here.id, here.vector, there.vector, here.pair]
        found, after = self._take(here.dataset, cursor, limit, names)
        others = {row.id: row for row in _rows_of(found, there)}
        rows = [row for row in _rows_of(found, here) if row.vector is not None]
        return [(row, others.get(row.id)) for row in rows], after

    def count_rows(self, place: LancePlace) -> int:
        with self.connection.faults():
            return int(place.dataset.count_rows(filter=f"{quoted(place.vector)} IS NOT NULL"))

    def dim_of(self, place: LancePlace) -> int:
        return int(place.kind.list_size)

    def write_rows(
        self, place: LancePlace, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        assert vectors is not None  # a comparison leaves out rows without a vector
        vectors = np.asarray(vectors, np.float32)
        if place.staged is None:
            self._update(place, rows, dict(zip((row.id for row in rows), vectors, strict=True)))
            return
        data = [
            pa.array([row.id for row in rows], place.dataset.schema.field(STAGED_ID).type),
            to_arrow(vectors, place.kind),
            pa.array([row.digest for row in rows], pa.int64()),
        ]
        with self.connection.faults():
            place.staged.add(pa.Table.from_arrays(data, schema=place.dataset.schema))

    def skip_rows(self, sides: Sides, target: Side, rows: Sequence[StoredRow]) -> None:
        place = sides.place(target)
        stay = self.read_rows(place, [row.id for row in rows], vectors=True, content=False)
        kept = {id: row.vector for id, row in stay.items() if target == "old"}
        self._update(place, rows, {id: each for id, each in kept.items() if each is not None})

    def _update(
        self, place: LancePlace, rows: Sequence[StoredRow], vectors: Mapping[StoreId, StoreVectors]
    ) -> None:
        for start in range(0, len(rows), IDS_A_FILTER):
            part = {row.id: row.digest for row in rows[start : start + IDS_A_FILTER]}
            self.connection.committing(lambda part=part: self._replace(place, part, vectors))  # type: ignore[misc]

    def _replace(
        self,
        place: LancePlace,
        digests: Mapping[StoreId, int],
        vectors: Mapping[StoreId, StoreVectors],
    ) -> None:
        """Rewrite whole rows, as clients' updates do, so that indexes of the others stay valid.

        Fails with a conflict if somebody changes the table between reading and writing.
        """
        dataset = self.connection.dataset(self._name)
        rows = dataset.to_table(filter=id_filter(place.id, list(digests)))
        if not rows.num_rows:
            return
        ids = rows[place.id].to_pylist()
        empty = np.zeros(place.kind.list_size, np.float32)
        found = np.stack([vectors.get(id, empty) for id in ids])
        column = to_arrow(found, place.kind)
        other, own = [digests[id] for id in ids], digests_of(to_numpy(column)).tolist()
        valid = [bool(each.any()) for each in found]
        if not all(valid):
            pairs = zip(column.to_pylist(), valid, strict=True)
            column = pa.array([each if ok else None for each, ok in pairs], place.kind)
        pair = pair_of(other, own) if place.half else pair_of(own, other)
        for name, values in ((place.vector, column), (place.pair, pair)):
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(index), values)
        merge = dataset.merge_insert(place.id).when_matched_update_all()
        merge.conflict_retries(0).execute(rows)

    def delete_rows(self, place: LancePlace, ids: Sequence[StoreId]) -> None:
        if place.staged is not None:  # otherwise a row is gone from both sides at once
            with self.connection.faults():
                for start in range(0, len(ids), IDS_A_FILTER):
                    place.staged.delete(id_filter(STAGED_ID, ids[start : start + IDS_A_FILTER]))

    def complete(self, sides: Sides) -> None:
        """Merge the new vectors into the table, and build an index like the old one."""
        if sides.phase == "cut" or sides.tag is None:
            return
        old: LancePlace = sides.old
        new = f"{old.vector}_anchorage_{sides.tag}"
        if sides.new.staged is not None:
            pair = f"anchorage_{sides.tag}_digests"
            with self.connection.faults():
                Merge(self.connection, self._name, sides.new.staged, old.id, new, pair).run()
                self.connection.database.drop_table(self._staged_name(sides.tag))
        table = self.connection.table(self._name)
        dims = (self.dim_of(old), self.dim_of(sides.new))
        self.connection.committing(lambda: build_like(table, old.vector, new, *dims))

    def swap(self, sides: Sides, visible: Side) -> float:
        name = sides.visible.vector
        new = f"{name}_anchorage_{sides.tag}"
        hidden = new if visible == "old" else f"{new}_old"
        steps = [
            {"path": name, "rename": hidden},
            {"path": sides.place(visible).vector, "rename": name},
        ]
        table = self.connection.table(self._name)
        begun = time.monotonic()
        self.connection.committing(lambda: table.alter_columns(*steps))
        return time.monotonic() - begun

    def drop(self, sides: Sides, side: Side) -> None:
        """Drop a column with its index, and the digests; or the table of new vectors."""
        place: LancePlace = sides.place(side)
        table = self.connection.table(self._name)
        pair = f"anchorage_{sides.tag}_digests"
        own = {pair, f"{sides.old.vector}_anchorage_{sides.tag}"} if side == "new" else {pair}
        with self.connection.faults():
            if place.staged is None:
                own.add(place.vector)
                index = find_index(table, place.vector)
                if index is not None:
                    self.connection.committing(lambda: table.drop_index(index.name))
            names = sorted(own & set(sides.old.dataset.schema.names))
            if names:
                self.connection.committing(lambda: table.drop_columns(names))
            if place.staged is not None:
                self.connection.database.drop_table(self._staged_name(str(sides.tag)))
            self._drop_version(str(sides.tag))

    def _drop_version(self, tag: str) -> None:
        table = self.connection.table(self._name)
        if f"anchorage_{tag}" in table.tags.list():
            table.tags.delete(f"anchorage_{tag}")

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        place: LancePlace = self.find_sides().visible
        kind, table = place.kind, self.connection.table(self._name)
        with self.connection.faults():
            rows = place.dataset.count_rows()  # with a filter, it would read all vectors
            indexed = find_index(table, place.vector) is not None
        return StoreFacts(
            rows=rows,
            dim=kind.list_size,
            metric=self._metric(place.vector),
            dtype=FLOATS[kind.value_type],
            indexed=indexed,
            vector_field=place.vector,
            vector_bytes=rows * kind.list_size * kind.value_type.bit_width // 8,
            notes=LANCE_NOTES,
        )

    def _metric(self, column: str) -> Metric:
        table = self.connection.table(self._name)
        with self.connection.faults():
            option = self.location.options.get("distance")
            return DISTANCES[distance_of(table, column, option)]

    def sample(self, count: int, seed: int = 0) -> Page:
        place: LancePlace = self.find_sides().old
        with self.connection.faults():
            total = place.dataset.count_rows()
            draw = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
            found = place.dataset.take(sorted(draw.tolist()), columns=[place.id, place.vector])
        plain = LancePlace(place.dataset, place.id, place.vector)
        return self._page(place, _rows_of(found, plain), None)

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        name, place = field, self.find_sides().old
        if name is None or name not in place.dataset.schema.names:
            raise StoreUnsupported(
                "The store names no column with the texts. Name one in `text_field`.",
                field="text_field",
            )
        found: dict[StoreId, str | None] = {}
        for part in self._by_ids(place, ids, [place.id, name]):
            found |= dict(zip(part[place.id].to_pylist(), part[name].to_pylist(), strict=True))
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
        sides = self.find_sides()
        place: LancePlace = sides.place(side)
        metric = self._metric(sides.visible.vector)
        others = self._others(sides) if payload and place.staged is None else []
        columns = list(dict.fromkeys([place.id, *([place.vector] if vectors else []), *others]))
        distance = {value: key for key, value in DISTANCES.items()}[metric]
        hits = []
        for query in np.asarray(queries, np.float32):
            nearest = {"column": place.vector, "q": query, "k": k, "use_index": not exact}
            with self.connection.faults():
                found = place.dataset.to_table(
                    columns=[*columns, "_distance"],
                    filter=filter,
                    nearest={**nearest, "metric": distance},
                    prefilter=True,
                )
            found = found.filter(found["_distance"].is_valid())
            distances = found["_distance"].to_numpy()
            scores = -distances if metric == "euclidean" else 1 - distances
            hits.append(
                Hits(
                    found[place.id].to_pylist(),
                    scores.tolist(),
                    to_numpy(found[place.vector]) if vectors else None,
                    found.select(others).to_pylist() if payload else None,
                )
            )
        return hits

    def _others(self, sides: Sides) -> list[str]:
        """Return the columns that are neither vectors of this migration nor its digests."""
        own = {sides.old.vector}
        if sides.new is not None and sides.new.staged is None:
            own |= {sides.new.vector, sides.new.pair}
        return [name for name in sides.old.dataset.schema.names if name not in own]

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        sides = self.find_sides()
        with self.connection.faults():
            batches = sides.old.dataset.to_batches(columns=self._others(sides))
            pages = ([row_number(as_json(row)) for row in each.to_pylist()] for each in batches)
            return rows_checksum(pages, hear)


def has_unique_ids(dataset: Any, column: str) -> bool:
    """Return whether each row has an id, and no two the same. Holds eight bytes of each row."""
    seen = array("Q")
    for batch in dataset.to_batches(columns=[column]):
        seen.extend(fingerprint(id, None) for id in batch[column].to_pylist())
        if batch[column].null_count:
            return False
    numbers = np.sort(np.asarray(seen, np.uint64))
    return not bool((numbers[1:] == numbers[:-1]).any())


def _rows_of(found: pa.Table, place: LancePlace) -> list[StoredRow]:
    """Return rows of a place: those with a vector, and those that are known to have none."""
    ids, column = found[place.id].to_pylist(), found[place.vector]
    vectors, valid = to_numpy(column), column.is_valid().to_pylist()
    own = digests_of(vectors).tolist()
    pairs = found[place.pair].to_pylist() if place.pair else [None] * len(ids)
    rows = []
    for id, vector, ok, digest, pair in zip(ids, vectors, valid, own, pairs, strict=True):
        if ok or pair:
            # no origin: a client wrote the vector since
            origin = pair[1 - place.half] if pair and pair[place.half] == digest else None
            rows.append(StoredRow(id, vector if ok else None, None, digest, origin))
    return rows
