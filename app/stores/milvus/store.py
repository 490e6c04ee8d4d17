"""Milvus as a Store: the new vectors are in a second collection, and a cutover moves an alias.

The alias `anchorage_TAG_NAME` leads to the copy of the collection NAME, once it is complete.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymilvus import CollectionSchema, DataType, MilvusClient

from app.errors import InvalidFilter, StoreChanged, StoreRefused, StoreUnsupported, did_you_mean
from app.stores import port as base
from app.stores.answers import MAX_ANSWER_BYTES
from app.stores.common import as_json, random_runs, row_number
from app.stores.milvus.client import MilvusConnection
from app.stores.paired_store import ROWS_A_PAGE, PairedStore, Sides, StoredRow, choose_vector
from app.stores.port import Cursor, Hits, Search, Side, StoreFacts, StoreId, StoreNote, StoreVectors
from app.stores.second_collection import SecondCollection

#: seconds until a new collection is ready
LOAD_S = 120.0

#: most rows of one request that reads, and how many of these it may skip
MAX_WINDOW, MAX_OFFSET = 16_384, 15_000

#: values of the partition key that are counted, those of the most rows first
TENANTS = 1000

METRICS: dict[str, base.Metric] = {"COSINE": "cosine", "IP": "dot", "L2": "euclidean"}

#: types of the fields that a copy has as they are
COPIED = ("BOOL", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "VARCHAR", "ARRAY", "JSON")

#: what the description of an index has with its parameters
INDEX_STATE = ("total_rows", "indexed_rows", "pending_index_rows", "state")

#: the alias of a copy: the tag, and the name of the collection that it was made from
MARK = re.compile(r"anchorage_([0-9a-f]{8})_(\w+)")


@dataclass(frozen=True, eq=False)
class MilvusPlace:
    """A vector field of a collection.

    form    the collection as the server describes it
    wanted  name of the field; None: the only one
    """

    form: Mapping[str, Any]
    wanted: str | None

    @property
    def vector(self) -> str:
        """The name. Raises StoreUnsupported if it is not clear, which stops no `abandon`."""
        fields = self.fields.items()
        names = [name for name, each in fields if each["type"] == DataType.FLOAT_VECTOR]
        return choose_vector(self.name, names, self.wanted)

    @property
    def name(self) -> str:
        return str(self.form["collection_name"])

    @property
    def fields(self) -> dict[str, Mapping[str, Any]]:
        return {each["name"]: each for each in self.form["fields"]}

    @property
    def key(self) -> str:
        return next(name for name, each in self.fields.items() if each.get("is_primary"))

    @property
    def dim(self) -> int:
        return int(self.fields[self.vector]["params"]["dim"])

    @property
    def content(self) -> list[str]:
        """The fields of a row that are neither its id nor its vector."""
        names = [name for name in self.fields if name not in (self.key, self.vector)]
        return names + ["$meta"] * bool(self.form["enable_dynamic_field"])

    def copied(self, dim: int) -> dict[str, Any]:
        """Return the description of a copy with `dim` dimensions, whose fields get new numbers."""
        changed = {**self.fields[self.vector], "params": {"dim": dim}}
        fields = (self.fields | {self.vector: changed}).values()
        return {**self.form, "fields": [{**each, "field_id": 0} for each in fields]}

    def written(self, name: str, value: Any) -> Any:
        """Return a value as the library writes it, which takes a text as JSON that is ready."""
        field = self.fields.get(name, {})
        is_json = field.get("type") == DataType.JSON
        if is_json and (isinstance(value, str) or (value is None and not field.get("nullable"))):
            return json.dumps(value)
        return value

    def filter(self, operator: str, value: Any) -> str:
        """Return an expression about the ids of rows."""
        return comparison(self.key, operator, value)

    def after(self, id: StoreId | None) -> str:
        """Return an expression of the rows after this one; without an id, of all."""
        return "" if id is None else self.filter(">", id)


class MilvusStore(PairedStore):
    """A collection of a Milvus server."""

    capabilities = base.Capabilities(atomic_cutover=True, filters=True, exact_search=False)

    def __init__(self, location: base.StoreLocation) -> None:
        super().__init__(location, MilvusConnection(location.url))
        self._call = self.connection.call

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        name = self.location.collection
        aliases = self._call("list_aliases")["aliases"]
        here = self._find(name)
        if here is None:
            near = did_you_mean(name, [*aliases, *self._call("list_collections")])
            raise StoreChanged(f"Milvus has no alias and no collection `{name}`.{near}")
        marks = sorted(
            mark
            for mark in aliases
            if (match := MARK.fullmatch(mark))
            and (match[2] == here.name or mark in here.form["aliases"])
        )
        sources = {here.name}
        for mark in marks:
            found, old = MARK.fullmatch(mark).groups()  # type: ignore[union-attr]
            sources.add(old)
            if tag in (None, found) and mark in here.form["aliases"]:
                return Sides("cut", found, self._find(old), here)
            if tag in (None, found):
                return Sides("open", found, here, self._find(mark))
        if tag and (copy := copy_name(here, tag)) not in sources and self._find(copy):
            return Sides("open", tag, here)  # a crash interrupted `create` or `drop`
        return Sides("none", None, here)

    def _find(self, name: str) -> MilvusPlace | None:
        """Return the place of a collection or an alias, None if there is none."""
        try:
            form = self._call("describe_collection", name)
        except StoreChanged:
            return None
        return MilvusPlace(form, self.location.vector_field)

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        old: MilvusPlace = sides.old
        name, form = copy_name(old, tag), old.form
        options = {"num_shards": form["num_shards"], "properties": form["properties"]}
        if partition_key(form):
            options["num_partitions"] = form["num_partitions"]
        if not self._call("has_collection", name):
            self._call(
                "create_collection",
                name,
                schema=CollectionSchema.construct_from_dict(old.copied(dim)),
                consistency_level=form["consistency_level_name"],
                **{key: value for key, value in options.items() if value},
            )
        indexes = MilvusClient.prepare_index_params()
        for index in self._call("list_indexes", old.name):
            params = self._call("describe_index", old.name, index)
            indexes.add_index(**{k: v for k, v in params.items() if k not in INDEX_STATE})
        self._call("create_index", name, indexes, sync=False)
        replicas = len(self._call("describe_replica", old.name))
        self._call("load_collection", name, replica_number=replicas, within_s=LOAD_S)
        self._call("create_alias", name, f"anchorage_{tag}_{old.name}")

    def read_page(
        self, place: Any, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        rows = self._query(place, place.after(cursor), vectors, content, limit=limit)
        # fewer than the limit is no end: the server drops repeated ids after it
        return rows, rows[-1].id if rows else None

    def read_rows(
        self, place: Any, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> list[StoredRow]:
        is_text = DataType(place.fields[place.key]["type"]) == DataType.VARCHAR
        ids = [id for id in ids if isinstance(id, str) is is_text and (is_text or is_int64(id))]
        return self._query(place, place.filter("in", ids), vectors, content) if ids else []

    def _query(
        self, place: MilvusPlace, filter: str, vectors: bool, content: bool, **options: Any
    ) -> list[StoredRow]:
        """Return rows in the order of their ids, by default those that every client wrote."""
        fields = [place.key] + [place.vector] * vectors + place.content * content
        # without a limit, the server loses a last row for each repeated id before it
        options = {"consistency_level": "Strong", "limit": MAX_WINDOW, **options}
        found = self._call("query", place.name, filter, output_fields=fields, **options)
        return [stored_row(place, each, content) for each in found]

    def count_rows(self, place: Any) -> int:
        return self._count(place, "")

    def _count(self, place: MilvusPlace, filter: str) -> int:
        options = {"output_fields": ["count(*)"], "consistency_level": "Strong"}
        return int(self._call("query", place.name, filter, **options)[0]["count(*)"])

    def count_found(self, place: MilvusPlace) -> int:
        """A row in a partition of another key is found by its id, and not by its key."""
        total, key = self.count_rows(place), partition_key(place.form)
        if key is None:
            return total
        tenants: Counter[Any] = Counter()
        options: dict[str, Any] = {"consistency_level": "Strong", "limit": MAX_WINDOW}
        last, options["output_fields"] = None, [place.key, key]
        while rows := self._call("query", place.name, place.after(last), **options):
            tenants.update(row[key] for row in rows)
            last = rows[-1][place.key]
        for value, count in tenants.most_common(TENANTS):
            total -= max(0, count - self._count(place, comparison(key, "==", value)))
        return total

    def dim_of(self, place: Any) -> int:
        return int(place.dim)

    def rows_a_call(self, place: Any, *, whole: bool) -> int:
        # Each read waits for the server's clock, so it is as large as an answer may be.
        return max(1, min(ROWS_A_PAGE, MAX_ANSWER_BYTES // (8 * self.dim_of(place))))

    def write_rows(
        self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        assert vectors is not None  # each row of Milvus has a vector
        written = []
        for row, vector in zip(rows, vectors, strict=True):
            payload = {name: place.written(name, value) for name, value in row.payload.items()}
            written.append({**payload, place.key: row.id, place.vector: vector})
        if partition_key(place.form) is None:
            self._call("upsert", place.name, written)
            return
        # an upsert of 2.3.5 computes the partition of another field (milvus issue 30607)
        self.delete_rows(place, [row.id for row in rows])
        self._call("insert", place.name, written)

    def write_vectors(self, place: Any, rows: Sequence[StoredRow], vectors: StoreVectors) -> None:
        # With a key, a kill between the delete and the insert would lose rows that clients see:
        # they keep the translated vectors of the switch.
        if partition_key(place.form) is None:
            super().write_vectors(place, rows, vectors)

    def delete_rows(self, place: Any, ids: Sequence[StoreId]) -> None:
        # by `ids`, quotes are not escaped
        self._call("delete", place.name, filter=place.filter("in", list(ids)))

    def index_state(self, place: MilvusPlace) -> tuple[str, bool] | None:
        index = self._index(place)
        if not index["pending_index_rows"]:
            return None
        return str(index["state"]), index["state"] == "Failed"

    def swap(self, sides: Sides, visible: Side) -> float:
        if sides.old.copied(1)["fields"] != sides.new.copied(1)["fields"]:
            raise StoreChanged(
                "The collection and its copy no longer have the same fields, because a client "
                "added one. Abandon the migration, and plan a new one."
            )
        self._call("alter_alias", sides.place(visible).name, self.location.collection)
        return 0.0

    def drop(self, sides: Sides, side: Side) -> None:
        old, new = sides.old, sides.new
        place = old if side == "old" else new
        aliases = [] if new is None else new.form["aliases"]
        marks = [each for each in aliases if each.startswith(f"anchorage_{sides.tag}_")]
        if place and (others := set(place.form["aliases"]) - set(marks)):
            raise StoreRefused(
                f"The collection {place.name!r} still has the alias {min(others)!r}, so clients "
                "may use it. Move or drop the alias, then repeat the step."
            )
        if side == "new":  # its mark goes first: a server may keep collections with an alias
            for mark in marks:
                self._call("drop_alias", mark)
            self._call("drop_collection", copy_name(old, str(sides.tag)))
            return
        if place:
            self._call("drop_collection", place.name)
        for mark in marks:
            self._call("drop_alias", mark)

    # --- reading ------------------------------------------------------------------------------

    def _index(self, place: MilvusPlace) -> Mapping[str, Any]:
        """Return the index of the vectors. Raises StoreUnsupported."""
        names = self._call("list_indexes", place.name, field_name=place.vector)
        index = self._call("describe_index", place.name, names[0]) if names else {}
        if index.get("metric_type") not in METRICS:
            raise StoreUnsupported(
                f"The vectors {place.vector!r} of {place.name!r} have no index with the metric "
                "COSINE, IP or L2. Create one, and load the collection."
            )
        return index

    def facts_of(self, place: MilvusPlace) -> StoreFacts:
        index = self._index(place)
        return StoreFacts(
            rows=self.count_rows(place),
            dim=place.dim,
            metric=METRICS[index["metric_type"]],
            indexed=index.get("index_type") != "FLAT",
            vector_field=place.vector,
        )

    def copy_problem(self, place: MilvusPlace) -> StoreNote | None:
        return copy_problem(place, self.location.collection)

    def sample_ids(self, place: MilvusPlace, count: int, seed: int) -> Iterable[StoreId]:
        at, last = 0, None  # the row before the position `at`
        # the count has waited for all writes, so that the reads need not
        weak = {"consistency_level": "Eventually"}
        for start, length in random_runs(self.count_rows(place), count, seed):
            while start > at:
                skipped = min(start - at, MAX_OFFSET)
                options = {"offset": skipped - 1, "limit": 1, **weak}
                found = self._query(place, place.after(last), False, False, **options)
                if not found:
                    break
                at, last = at + skipped, found[0].id
            found = self._query(place, place.after(last), False, False, limit=length, **weak)
            yield from (row.id for row in found)
            at, last = at + length, found[-1].id if found else last

    def migration(self, tag: str, dim: int) -> SecondCollection:
        return SecondCollection(self, tag, dim)

    def search_place(self, place: Any, wanted: Search) -> list[Hits]:
        if not isinstance(wanted.filter, str | None):
            raise InvalidFilter(
                "`filter` is an expression of Milvus, such as \"year > 2020 and topic == 'art'\". "
                "Send a text.",
                field="filter",
            )
        sign = -1.0 if METRICS[self._index(place)["metric_type"]] == "euclidean" else 1.0
        answer = self._call(
            "search",
            place.name,
            list(wanted.queries),
            wanted.filter or "",
            wanted.k,
            filtered=bool(wanted.filter),
            anns_field=place.vector,
            consistency_level="Strong",
        )
        return [
            Hits([each.id for each in found], [sign * float(each.distance) for each in found])
            for found in answer
        ]


def copy_problem(place: MilvusPlace, collection: str) -> StoreNote | None:
    """Return why a collection cannot be replaced by a copy; None if it can."""
    form, name = place.form, place.name
    others = [each for each in form["fields"] if each["name"] != place.vector]
    if collection == name:
        return StoreNote(
            "no-alias",
            f"Clients use the collection by its own name. For a migration, turn the name into an "
            f"alias, once: `client.rename_collection({name!r}, '{name}_1')`, then "
            f"`client.create_alias('{name}_1', {name!r})`. Between both, for some milliseconds, "
            "calls of clients fail; a cutover then has no gap.",
        )
    if form["auto_id"]:
        code, problem = "auto-id", "Milvus makes the ids, so a copy would have other ones"
    elif form["num_partitions"] > 1 and partition_key(form) is None:
        code, problem = "partitions", "a copy would not have its partitions"
    elif form["properties"].get("collection.ttl.seconds", "0") not in ("0", "-1"):
        code, problem = "ttl", "its rows expire, and in a copy they would live longer"
    elif form["functions"] or any(DataType(each["type"]).name not in COPIED for each in others):
        code, problem = "fields", "a copy would lose its functions or fields, as other vectors"
    else:
        return None
    return StoreNote(code, f"{name!r} cannot be migrated: {problem}. Searches work.")


def partition_key(form: Mapping[str, Any]) -> str | None:
    return next((each["name"] for each in form["fields"] if each.get("is_partition_key")), None)


def comparison(field: str, operator: str, value: Any) -> str:
    return f"{field} {operator} {json.dumps(value, ensure_ascii=False)}"


def copy_name(place: MilvusPlace, tag: str) -> str:
    return re.sub(r"_[0-9a-f]{8}$", "", place.name) + f"_{tag}"


def is_int64(id: Any) -> bool:
    return isinstance(id, int) and not isinstance(id, bool) and -(2**63) <= id < 2**63


def stored_row(place: MilvusPlace, fields: Mapping[str, Any], content: bool) -> StoredRow:
    payload = dict(fields)
    id, value = payload.pop(place.key), payload.pop(place.vector, None)
    vector = None if value is None else np.asarray(value, np.float32)
    digest = row_number(as_json(id), as_json(payload)) if content else 0
    return StoredRow(id, vector, payload, digest=digest)
