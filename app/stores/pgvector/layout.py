"""Where the rows and the vectors of a collection lie now: before, during and after a reindexing.

The state of a reindexing is JSON in the comment of its queue table, so that any process can read
it and each step changes it in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnsupported
from app.stores.base import Side, StoreLocation
from app.stores.pgvector.catalogue import (
    PgColumn,
    PgRelation,
    declared_dim,
    find_relation,
    key_column,
    load_relation,
    relation_named,
    vector_column,
)
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.wire import KeyKind

#: begins the comments that this connector writes
MARK = '{"anchorage":'

_MARKED = (
    "SELECT c.relname, d.description FROM pg_class c JOIN pg_description d ON d.objoid = c.oid "
    "AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0 "
    "WHERE c.relnamespace = %s::regnamespace AND starts_with(d.description, %s)"
)


@dataclass(frozen=True)
class PgVectors:
    """A column of vectors, and the key in the same table."""

    relation: PgRelation
    key: str
    column: str
    type_name: str
    dim: int | None


@dataclass(frozen=True)
class PgState:
    """What the store remembers of a reindexing.

    phase     prepared, cut-over or rolled-back
    table     name of the collection in its schema
    dim       dimensions of the new vectors, and type_name, their type
    form      columns and key that `prepare` found
    details   of the strategy
    """

    tag: str
    strategy: str
    phase: str
    table: str
    dim: int
    type_name: str
    form: Mapping[str, Any]
    details: Mapping[str, Any]

    @property
    def queue(self) -> str:
        return name_of(self.tag, "queue")

    @property
    def new(self) -> str:
        return name_of(self.tag, "new")

    @property
    def is_cut_over(self) -> bool:
        return self.phase == "cut-over"

    def text(self) -> str:
        return mark_text(state=self.__dict__)

    def moved(self, phase: str, **details: Any) -> PgState:
        return replace(self, phase=phase, details={**self.details, **details})


@dataclass(frozen=True)
class PgLayout:
    """A collection.

    table  what has the collection's name: a table, or the view of strategy `side`
    rows   the table with everything except the vectors (and with the old ones, at first)
    """

    table: PgRelation
    rows: PgRelation
    key: PgColumn
    kind: KeyKind
    old: PgVectors
    new: PgVectors | None
    state: PgState | None
    is_view: bool

    def vectors(self, side: Side) -> PgVectors:
        if side == "old":
            return self.old
        if self.new is None:
            raise StoreChanged("The store has no new vectors: no reindexing is in progress.")
        return self.new

    @property
    def seen(self) -> PgVectors:
        """The vectors that clients see."""
        return self.new if self.new and self.state and self.state.is_cut_over else self.old

    @property
    def payload(self) -> list[str]:
        """Names of the columns that clients see, without the key and the vector."""
        hidden = {self.key.name, self.old.column}
        return [each.name for each in self.table.columns if each.name not in hidden]


def name_of(tag: str, part: str) -> str:
    return f"anchorage_{tag}_{part}"


def mark_text(**content: Any) -> str:
    return json.dumps({"anchorage": 1, **content}, separators=(",", ":"))


def marks(connection: StoreConnection, schema: str) -> dict[str, dict[str, Any]]:
    """Return the JSON of each comment in the schema that this connector wrote, by table."""
    rows = connection.execute(_MARKED, [sql_schema(schema), MARK]).fetchall()
    return {name: json.loads(text) for name, text in rows}


def sql_schema(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


def states_of(found: Mapping[str, Mapping[str, Any]], table: str) -> list[PgState]:
    every = [PgState(**each["state"]) for each in found.values() if "state" in each]
    return [each for each in every if each.table == table]


def states_of_tag(
    connection: StoreConnection, location: StoreLocation, tag: str
) -> list[tuple[str, PgState]]:
    """Return the schema and the state of a reindexing, also if its table has changed or is gone."""
    oid = find_relation(connection, location.collection)
    if oid is not None:
        schemas = [load_relation(connection, oid).schema]
    else:
        rows = connection.execute(
            "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relname = %s",
            [name_of(tag, "queue")],
        ).fetchall()
        schemas = [row[0] for row in rows]
    name = location.collection.replace('"', "")
    found = []
    for schema in schemas:
        for content in marks(connection, schema).values():
            state = PgState(**content["state"]) if "state" in content else None
            names = () if state is None else (state.table, f"{schema}.{state.table}")
            if state is not None and state.tag == tag and name in names:
                found.append((schema, state))
    return found


def comment(relation: sql.Identifier, text: str | None, kind: str = "TABLE") -> sql.Composed:
    return sql.SQL("COMMENT ON {} {} IS {}").format(
        sql.SQL(kind),
        relation,
        sql.Literal(text),
    )


def load_layout(connection: StoreConnection, location: StoreLocation) -> PgLayout:
    """Return where everything lies now. Raises StoreChanged and StoreUnsupported."""
    oid = find_relation(connection, location.collection)
    if oid is None:
        raise StoreChanged(
            f"There is no table {location.collection!r}, or the role of the address must not see "
            "its schema. Check `collection`.",
            field="collection",
        )
    table = load_relation(connection, oid)
    found = marks(connection, table.schema)
    states = states_of(found, table.name)
    if len(states) > 1:
        raise StoreRefused(
            f"The table {table.name!r} has traces of several reindexings: "
            f"{', '.join(each.tag for each in states)}. Abandon all except one."
        )
    state = states[0] if states else None
    if table.kind == "v":
        return _layout_of_view(connection, location, table, found, state)
    if table.kind not in ("r", "p"):
        raise StoreUnsupported(
            f"{table.name!r} is not a table. Name the table that holds the vectors.",
            field="collection",
        )
    key, kind = key_column(connection, table, location)
    column = vector_column(table, location)
    seen = vectors_of(table, key.name, column)
    if state is None:
        return PgLayout(table, table, key, kind, seen, None, None, is_view=False)
    other = relation_named(
        connection,
        table.schema,
        state.details["old"] if state.strategy == "swap" and state.is_cut_over else state.new,
    )
    old_names = state.details["column"], state.details["key"]
    beside = vectors_of(other, old_names[1], other.column(old_names[0]))
    old, new = (beside, seen) if state.is_cut_over else (seen, beside)
    return PgLayout(table, table, key, kind, old, new, state, is_view=False)


def vectors_of(relation: PgRelation, key: str, column: PgColumn) -> PgVectors:
    return PgVectors(relation, key, column.name, column.type_name, declared_dim(column))


def _layout_of_view(
    connection: StoreConnection,
    location: StoreLocation,
    table: PgRelation,
    found: Mapping[str, Mapping[str, Any]],
    state: PgState | None,
) -> PgLayout:
    """A view that strategy `side` made, at a cutover or at an earlier `finish`."""
    kept = [
        each["view"] for each in found.values() if each.get("view", {}).get("name") == table.name
    ]
    if state is not None:
        names: Mapping[str, Any] = state.details
    elif kept:
        names = kept[0]
    else:
        raise StoreUnsupported(
            f"{table.name!r} is a view. Name the table that holds the vectors.",
            field="collection",
        )
    rows = relation_named(connection, table.schema, names["rows"])
    key, kind = key_column(connection, rows, location)
    old_relation = relation_named(connection, table.schema, names["old"])
    old = vectors_of(old_relation, names["key"], old_relation.column(names["column"]))
    new = None
    if state is not None:
        new_relation = relation_named(connection, table.schema, state.new)
        new = vectors_of(new_relation, names["key"], new_relation.column(names["column"]))
    return PgLayout(table, rows, key, kind, old, new, state, is_view=True)
