"""Where the vectors of a collection are now: before, during and after a migration.

PostgreSQL's catalogue says what a table is: columns, key, vectors and index. The state of a
migration is JSON in the comment of its queue table, so that any process can read it and each step
changes it in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnsupported
from app.stores.common import did_you_mean
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.values import KeyKind
from app.stores.port import Metric, Side, StoreLocation

_KEY_KINDS: dict[str, KeyKind] = {
    **dict.fromkeys(("int2", "int4", "int8"), "int"),
    **dict.fromkeys(("text", "varchar"), "text"),
    "uuid": "uuid",
}

_VECTORS = ("vector", "halfvec", "bit", "sparsevec")
_METRIC_OF_OPERATORS: dict[str, Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}

_RELATION = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_get_userbyid(c.relowner), c.relkind::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s"""

_COLUMNS_QUERY = """
SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.atttypmod, a.attnotnull,
  a.attgenerated <> ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_UNIQUE = """
SELECT i.indisprimary, array(SELECT a.attname::text FROM pg_attribute a
  WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]))
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL ORDER BY i.indisprimary DESC, i.indexrelid"""

_INDEX_OPERATORS = """
SELECT o.opcname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_am m ON m.oid = c.relam JOIN pg_opclass o ON o.oid = i.indclass[0]
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND a.attname = %s AND m.amname IN ('hnsw', 'ivfflat') AND i.indisvalid
ORDER BY i.indexrelid LIMIT 1"""


@dataclass(frozen=True)
class PgColumn:
    name: str
    type_name: str
    type_text: str
    modifier: int
    not_null: bool
    generated: bool


@dataclass(frozen=True)
class PgRelation:
    oid: int
    schema: str
    name: str
    owner: str
    columns: tuple[PgColumn, ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def column(self, name: str) -> PgColumn:
        for each in self.columns:
            if each.name == name:
                return each
        raise StoreChanged(
            f"The table {self.name!r} has no column {name!r}. Restore it, or abandon the "
            "migration if it is not cut over.",
            field="vector_field",
        )


#: tables that a client can name without their schema
_TABLES = (
    "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid) "
    "AND relnamespace <> 'pg_catalog'::regnamespace LIMIT 1000"
)


def find_relation(connection: StoreConnection, collection: str) -> int | None:
    """Return the oid of a table that is named as in SQL, or exactly."""
    try:
        row = connection.execute(
            "SELECT coalesce(to_regclass(%s), to_regclass(quote_ident(%s)))::oid::bigint",
            [collection, collection],
        ).fetchone()
    except (psycopg.errors.SyntaxError, psycopg.errors.InvalidName):
        raise StoreUnsupported(
            f"{collection!r} is not the name of a table. Write it as in SQL: `documents`, "
            '`public.documents` or `"My Schema"."My Table"`.',
            field="collection",
        ) from None
    except psycopg.errors.FeatureNotSupported:
        raise StoreUnsupported(
            f"{collection!r} names another database. Ask the operator for an address of it.",
            field="collection",
        ) from None
    return None if row is None or row[0] is None else int(row[0])


def load_relation(connection: StoreConnection, oid: int) -> PgRelation:
    row = connection.execute(_RELATION, [oid]).fetchone()
    if row is None:
        raise StoreChanged("The table no longer exists.", field="collection")
    *values, kind = row
    if kind not in ("r", "p"):
        raise StoreUnsupported(
            f"{row[2]!r} is not a table. Name the table that holds the vectors.",
            field="collection",
        )
    columns = tuple(PgColumn(*each) for each in connection.execute(_COLUMNS_QUERY, [oid]))
    for name in (row[1], row[2], *(each.name for each in columns)):
        if "%" in name:
            raise StoreUnsupported(
                f"The name {name!r} contains a percent sign. Rename it.", field="collection"
            )
    return PgRelation(*[*values, columns])


def relation_named(connection: StoreConnection, schema: str, name: str) -> PgRelation:
    row = connection.execute(
        "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        [schema, name],
    ).fetchone()
    if row is None:
        raise StoreChanged(
            f"The table {name!r}, which the migration created or renamed, is missing. Restore "
            "it; or `abandon` the migration if it is not cut over, and `finish` it if it is."
        )
    return load_relation(connection, row[0])


def vector_column(relation: PgRelation, location: StoreLocation) -> PgColumn:
    """Return the column of vectors."""
    every = [each for each in relation.columns if each.type_name in _VECTORS]
    names = ", ".join(f"`{each.name}`" for each in every) or "none"
    found = every
    if location.vector_field is not None:
        found = [each for each in relation.columns if each.name == location.vector_field]
        if not found:
            raise StoreUnsupported(
                f"The table {relation.name!r} has no column `{location.vector_field}`. Its columns "
                f"of vectors: {names}. Name one in `vector_field`.",
                field="vector_field",
            )
    if len(found) != 1:
        raise StoreUnsupported(
            f"The table {relation.name!r} needs one column of vectors; it has {names}. Name the "
            "column in `vector_field`.",
            field="vector_field",
        )
    [column] = found
    if column.type_name not in ("vector", "halfvec"):
        raise StoreUnsupported(
            f"The column `{column.name}` has the type {column.type_text}. Only `vector` and "
            "`halfvec` can be translated.",
            field="vector_field",
        )
    return column


def key_column(
    connection: StoreConnection, relation: PgRelation, location: StoreLocation
) -> tuple[str, KeyKind]:
    """Return the name and the kind of the key."""
    unique = connection.execute(_UNIQUE, [relation.oid]).fetchall()
    single = [columns[0] for _, columns in unique if len(columns) == 1]
    names = [
        each
        for each in single
        if relation.column(each).not_null and location.id_field in (None, each)
    ]
    if not names:
        composite = any(primary and len(columns) > 1 for primary, columns in unique)
        problem = "has a primary key of several columns" if composite else "has no primary key"
        if location.id_field is not None:
            problem = f"has no unique, not-null column `{location.id_field}`"
        raise StoreUnsupported(
            f"The table {relation.name!r} {problem}. Add a unique, not-null column of type "
            "bigint, text or uuid, and name it in `id_field`.",
            field="id_field",
        )
    column = relation.column(names[0])
    if column.type_name not in _KEY_KINDS:
        raise StoreUnsupported(
            f"The key `{column.name}` has the type {column.type_text}. Keys have the type "
            "integer, bigint, text, varchar or uuid; name another column in `id_field`.",
            field="id_field",
        )
    return column.name, _KEY_KINDS[column.type_name]


def index_metric(connection: StoreConnection, vectors: PgVectors) -> Metric | None:
    """Return the metric of the approximate index; None without an index."""
    row = connection.execute(_INDEX_OPERATORS, [vectors.relation.oid, vectors.column]).fetchone()
    return None if row is None else _METRIC_OF_OPERATORS.get(row[0].split("_")[1], "cosine")


_STATES = """
SELECT pg_get_userbyid(c.relowner), obj_description(c.oid, 'pg_class') FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relname ~ '^anchorage_[0-9a-f]{8}_queue$' AND n.nspname = %s"""

_TRACES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
UNION ALL SELECT n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE starts_with(p.proname, %(prefix)s)"""


@dataclass(frozen=True)
class PgVectors:
    """A column of vectors, and the key in the same table."""

    relation: PgRelation
    key: str
    kind: KeyKind
    column: str
    type_name: str
    dim: int | None


@dataclass(frozen=True)
class PgState:
    """What the store remembers of a migration.

    phase   prepared, cut-over or rolled-back
    table   name of the collection in its schema
    dim     dimensions of the new vectors, and type_name, their type
    key     name of the key, and column, of the column of vectors
    files   numbers of both tables' files, when their rows were last known to be the same
    """

    tag: str
    phase: str
    table: str
    dim: int
    type_name: str
    key: str
    column: str
    files: Sequence[Sequence[int]] = ()

    @property
    def queue(self) -> str:
        return name_of(self.tag, "queue")

    @property
    def marks(self) -> str:
        """The name of the table of keys whose old vector was translated back."""
        return name_of(self.tag, "translated")

    @property
    def new(self) -> str:
        """The name of the table with the new vectors, until a cutover."""
        return name_of(self.tag, "new")

    @property
    def hidden(self) -> str:
        """The name of the table that clients do not see."""
        return name_of(self.tag, "old") if self.is_cut_over else self.new

    @property
    def is_cut_over(self) -> bool:
        return self.phase == "cut-over"

    def text(self) -> str:
        return json.dumps({"anchorage": 1, "state": self.__dict__}, separators=(",", ":"))


@dataclass(frozen=True)
class PgLayout:
    """A collection. seen: the table of its name; hidden: the other table of a migration."""

    seen: PgVectors
    hidden: PgVectors | None = None
    state: PgState | None = None

    @property
    def table(self) -> PgRelation:
        return self.seen.relation

    @property
    def other(self) -> PgVectors:
        """The vectors that clients do not see."""
        if self.hidden is None:
            raise StoreChanged("The store has no new vectors: no migration is in progress.")
        return self.hidden

    def vectors(self, side: Side) -> PgVectors:
        is_cut_over = self.state is not None and self.state.is_cut_over
        return self.seen if is_cut_over == (side == "new") else self.other

    @property
    def payload(self) -> list[str]:
        """Names of the columns without the key and the vector."""
        hidden = {self.seen.key, self.seen.column}
        return [each.name for each in self.table.columns if each.name not in hidden]


def name_of(tag: str, part: str) -> str:
    return f"anchorage_{tag}_{part}"


def states_of(connection: StoreConnection, schema: str) -> list[tuple[str, PgState]]:
    """Return the states in the comments of queue tables, each with the owner of its table."""
    states = []
    for owner, text in connection.execute(_STATES, [schema]).fetchall():
        with suppress(ValueError, TypeError, KeyError):  # somebody else's comment
            states.append((owner, PgState(**json.loads(text or "")["state"])))
    return states


def traces_of(
    connection: StoreConnection, location: StoreLocation, tag: str
) -> list[tuple[str, str]]:
    """Return schema and name of each table and function of a migration.

    Names alone tell them: the collection may be gone or have another schema, and the state
    unreadable.
    """
    oid = find_relation(connection, location.collection)
    schema = "" if oid is None else load_relation(connection, oid).schema
    rows = connection.execute(_TRACES, {"prefix": name_of(tag, "")}).fetchall()
    return [row for row in rows if schema in ("", row[0])]


def load_layout(connection: StoreConnection, location: StoreLocation) -> PgLayout:
    """Return where everything is now."""
    oid = find_relation(connection, location.collection)
    if oid is None:
        tables = (str(name) for (name,) in connection.execute(_TABLES).fetchall())
        raise StoreChanged(
            f"There is no table {location.collection!r}, or the role of the address must not see "
            f"its schema. Check `collection`.{did_you_mean(location.collection, tables)}",
            field="collection",
        )
    table = load_relation(connection, oid)
    # Anybody may create a table with such a name and comment, but not for the owner.
    states = [
        state
        for owner, state in states_of(connection, table.schema)
        if (owner, state.table) == (table.owner, table.name)
    ]
    if len(states) > 1:
        raise StoreRefused(
            f"The table {table.name!r} has traces of several migrations: "
            f"{', '.join(each.tag for each in states)}. Abandon all except one."
        )
    key, kind = key_column(connection, table, location)
    seen = vectors_of(table, key, kind, vector_column(table, location))
    if not states:
        return PgLayout(seen)
    [state] = states
    hidden = relation_named(connection, table.schema, state.hidden)
    other = vectors_of(hidden, state.key, kind, hidden.column(state.column))
    return PgLayout(seen, other, state)


def vectors_of(relation: PgRelation, key: str, kind: KeyKind, column: PgColumn) -> PgVectors:
    dim = column.modifier if column.modifier > 0 else None
    return PgVectors(relation, key, kind, column.name, column.type_name, dim)
