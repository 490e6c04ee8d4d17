"""Tables with vectors: where they are before, during and after a migration, and their rows.

PostgreSQL's catalogue says what a table is: columns, key, vectors and index. The state of a
migration is JSON in the comment of its queue table, so that any process can read it and each step
changes it in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnavailable, StoreUnsupported, did_you_mean
from app.stores.answers import MAX_ANSWER_BYTES, MAX_CONTENT_BYTES
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.filters import join_vectors, require_dim, select_rows
from app.stores.port import Cursor, Page, Side, StoreId, StoreLocation, StoreVectors
from app.stores.text_templates import parse_template

#: the type of a parameter, of an array of them, and of the keys in tables of ours, by the type of
#: a client's key
_KEY_TYPES = {
    **dict.fromkeys(("int2", "int4", "int8"), "bigint"),
    **dict.fromkeys(("text", "varchar"), "text"),
    "uuid": "uuid",
}

_TABLE = """
SELECT n.nspname, c.relname, pg_get_userbyid(c.relowner), c.relkind::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s"""

_COLUMNS = """
SELECT a.attname, t.typname, t.typcategory::text, format_type(a.atttypid, a.atttypmod),
  a.atttypmod, a.attnotnull, a.attgenerated <> '',
  coalesce((SELECT max(1 + i.indisprimary::int) FROM pg_index i
    WHERE i.indrelid = a.attrelid AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum AND i.indisunique
    AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL), 0)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

#: tables that a client can name without their schema
_VISIBLE = (
    "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid) "
    "AND relnamespace <> 'pg_catalog'::regnamespace LIMIT 1000"
)

_STATES = """
SELECT pg_get_userbyid(c.relowner), obj_description(c.oid, 'pg_class') FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relname ~ '^anchorage_[0-9a-f]{8}_queue$' AND n.nspname = %s"""

#: name, and statements that lock and that drop each table and function of a migration
_TRACES = """
WITH t(schema, name, id) AS (SELECT relnamespace, relname, oid FROM pg_class WHERE relkind = 'r'
  UNION ALL SELECT pronamespace, proname, oid FROM pg_proc)
SELECT t.name, (SELECT string_agg(format('LOCK TABLE ONLY %%s IN ACCESS EXCLUSIVE MODE',
    g.oid::regclass), '; ') FROM pg_class g WHERE g.oid = t.id
    OR g.oid IN (SELECT tgrelid FROM pg_trigger WHERE tgfoid = t.id)),
  CASE WHEN p.oid IS NULL THEN format('DROP TABLE %%I.%%I', n.nspname, t.name)
    ELSE format('DROP FUNCTION %%I.%%I() CASCADE', n.nspname, t.name) END
FROM t JOIN pg_namespace n ON n.oid = t.schema LEFT JOIN pg_proc p ON p.oid = t.id
WHERE starts_with(t.name, %s)
  AND t.schema = coalesce((SELECT relnamespace FROM pg_class WHERE oid = %s), t.schema)
ORDER BY p.oid IS NULL, t.name"""


class PgColumn(NamedTuple):
    """A column.

    category  of its type: S for texts
    unique    2 for the primary key, 1 for another column with a unique index, else 0
    """

    name: str
    type_name: str
    category: str
    type_text: str
    modifier: int
    not_null: bool
    generated: bool
    unique: int


@dataclass(frozen=True)
class PgTable:
    """A table with a key and a column of vectors, which a connection reads.

    texts     names of the columns that make up the text of a row
    where     values of columns in the rows of the store; None: it has all rows
    selected  the query of these rows
    """

    connection: StoreConnection
    oid: int
    schema: str
    name: str
    owner: str
    columns: Sequence[PgColumn]
    key: PgColumn
    vectors: PgColumn
    texts: Sequence[str] = ()
    where: Mapping[str, Any] | None = None
    selected: sql.Composable | None = None

    @property
    def rows(self) -> sql.Composable:
        """What a query reads rows from."""
        return self.identifier if self.selected is None else self.selected

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def key_type(self) -> str:
        return _KEY_TYPES[self.key.type_name]

    @property
    def dim(self) -> int | None:
        """The dimensions that the column declares."""
        return self.vectors.modifier if self.vectors.modifier > 0 else None

    @property
    def vector_type(self) -> sql.Identifier:
        return sql.Identifier(self.connection.extension, self.vectors.type_name)

    @property
    def zero(self) -> sql.Composed:
        """The vector of zeros, which a row without a new vector has in a NOT NULL column."""
        return sql.SQL("array_fill(0::real, ARRAY[{}])::{}").format(
            self.read_dim(), self.vector_type
        )

    @property
    def payload(self) -> list[str]:
        """Names of the columns without the key and the vector."""
        hidden = {self.key.name, self.vectors.name}
        return [each.name for each in self.columns if each.name not in hidden]

    @property
    def selected_key(self) -> sql.Composable:
        """The key of a row `v` as ids are: UUIDs are text."""
        key = sql.Identifier("v", self.key.name)
        return sql.SQL("{}::text").format(key) if self.key_type == "uuid" else key

    def stored_keys(self, ids: Sequence[StoreId]) -> list[Any]:
        """Return the ids that the key can hold, as parameters."""
        keys: list[Any] = []
        for each in ids:
            with suppress(ValueError):
                if self.key_type == "bigint" and not -(2**63) <= int(each) < 2**63:
                    continue
                if self.key_type == "text" and "\0" in str(each):
                    continue
                keys.append({"bigint": int, "text": str, "uuid": UUID}[self.key_type](each))
        return keys

    def read_dim(self, of_empty: int | None = None) -> int:
        """Return the dimensions: declared, or of most of the first vectors, or `of_empty`."""
        if self.dim is not None:
            return self.dim
        row = self.connection.run(
            "SELECT vector_dims(v) FROM (SELECT {0} AS v FROM {1} r WHERE {0} IS NOT NULL "
            "LIMIT 100) first GROUP BY 1 ORDER BY count(*) DESC LIMIT 1",
            self.vectors.name,
            self.rows,
        ).fetchone() or (of_empty,)
        if row[0] is None:
            raise StoreUnsupported(
                f"The column `{self.vectors.name}` declares no dimension and has no vectors. "
                "Declare it, as `vector(384)`, or insert rows first.",
                field="vector_field",
            )
        return int(row[0])

    def require_one_size(self) -> None:
        """Raises StoreUnsupported where a column that declares no dimension has several."""
        found = self.connection.run(
            "SELECT vector_dims({0}), count(*) FROM {1} r WHERE {0} IS NOT NULL GROUP BY 1 "
            "ORDER BY 2 DESC LIMIT 10",
            self.vectors.name,
            self.rows,
        ).fetchall()
        if len(found) > 1:
            sizes = ", ".join(f"{count} of {size}" for size, count in found)
            key, column = (sql.Identifier(each.name) for each in (self.key, self.vectors))
            odd = sql.SQL("SELECT {} FROM {} r WHERE vector_dims({}) <> {}").format(
                key, self.rows, column, found[0][0]
            )
            raise StoreUnsupported(
                f"`{self.vectors.name}` has vectors of several dimensions: {sizes}. Delete the odd "
                f"rows, or write them again ({odd.as_string(self.connection)}), or name the rows "
                'of one model in the option `where`, as {"tenant": 7}.',
                field="options",
            )

    def next_rows(self, cursor: Cursor | None, limit: int) -> tuple[sql.Composable, list[Any]]:
        """Return the end of a query of the next rows `v`, and its parameters."""
        key = sql.Identifier("v", self.key.name)
        if cursor is None:
            return sql.SQL("ORDER BY {} LIMIT %s").format(key), [limit]
        tail = sql.SQL("AND {0} > %s::{1} ORDER BY {0} LIMIT %s")
        return tail.format(key, sql.SQL(self.key_type)), [cursor, limit]

    def read_page(
        self,
        tail: sql.Composable,
        values: Any,
        chosen: sql.Composable = sql.SQL(""),  # noqa: B008 (a constant)
    ) -> Page:
        """Return rows `v` with a vector.

        chosen  a sample or a join
        tail    conditions, order and limit
        """
        column = sql.Identifier("v", self.vectors.name)
        query = sql.SQL("SELECT {}, {} FROM {} v {} WHERE {} IS NOT NULL {}").format(
            self.selected_key, column, self.rows, chosen, column, tail
        )
        rows = self.connection.cursor(binary=True).execute(query, values).fetchall()
        vectors = stack_vectors([row[1] for row in rows], self, self.read_dim(of_empty=0))
        return Page([row[0] for row in rows], vectors)

    def fetch(self, ids: Sequence[StoreId]) -> Page:
        """Return the rows of these ids that have a vector, in the order of `ids`."""
        wanted = sql.SQL(
            "JOIN unnest(%s::{}[]) WITH ORDINALITY wanted(key, place) ON wanted.key = v.{}"
        ).format(sql.SQL(self.key_type), sql.Identifier(self.key.name))
        return self.read_page(sql.SQL("ORDER BY wanted.place"), [self.stored_keys(ids)], wanted)

    def read_texts(self, value: sql.Composable, ids: Sequence[StoreId]) -> dict[str, str | None]:
        """Return a text of each row `r`, by its key, one row after another."""
        query = sql.SQL(
            "SELECT k, CASE WHEN octet_length(t) <= {most} THEN t END, octet_length(t) FROM "
            "(SELECT {key}::text AS k, {value} AS t FROM {table} r "
            "WHERE {key} = ANY(%s::{type}[]) OFFSET 0) texts"
        ).format(
            most=MAX_ANSWER_BYTES,
            key=sql.Identifier("r", self.key.name),
            value=value,
            table=self.rows,
            type=sql.SQL(self.key_type),
        )
        found: dict[str, str | None] = {}
        left = MAX_CONTENT_BYTES
        for key, text, size in self.connection.cursor().stream(query, [self.stored_keys(ids)]):
            if (size or 0) > MAX_ANSWER_BYTES:
                raise StoreUnsupported(
                    f"The row with the id {key} is too large to read: it has more than "
                    f"{MAX_ANSWER_BYTES >> 20} MiB. Store less in each row."
                )
            found[key], left = text, left - (size or 0)
            if left < 0:
                raise StoreUnsupported(
                    f"The columns of these {len(ids)} rows have more than "
                    f"{MAX_CONTENT_BYTES >> 20} MiB. Ask for fewer rows."
                )
        return found


@dataclass(frozen=True)
class PgState:
    """What the store remembers of a migration.

    phase  prepared, cut-over or rolled-back
    table  name of the collection in its schema
    files  numbers of both tables' files, when their rows were last known to be the same
    where  the rows of the store, if it has not all
    """

    tag: str
    phase: str
    table: str
    files: Sequence[Sequence[int]] = ()
    where: Mapping[str, Any] | None = None

    @property
    def hidden(self) -> str:
        """The name of the table that clients do not see."""
        return name_of(self.tag, "old" if self.is_cut_over else "new")

    @property
    def is_cut_over(self) -> bool:
        return self.phase == "cut-over"


@dataclass(frozen=True)
class PgLayout:
    """A collection. seen: the table of its name; hidden, moving: those of a migration."""

    seen: PgTable
    hidden: PgTable | None = None
    moving: PgState | None = None

    @property
    def connection(self) -> StoreConnection:
        return self.seen.connection

    @property
    def other(self) -> PgTable:
        """The table that clients do not see."""
        if self.hidden is None:
            raise StoreChanged("The store has no new vectors: no migration is in progress.")
        return self.hidden

    @property
    def state(self) -> PgState:
        if self.moving is None:
            raise StoreChanged(
                "The table has no traces of this migration. Plan a new one.", field="collection"
            )
        return self.moving

    @property
    def queue(self) -> sql.Identifier:
        return sql.Identifier(self.seen.schema, name_of(self.state.tag, "queue"))

    def files(self) -> list[list[int]]:
        """Return numbers that change when PostgreSQL rewrites a table, or adds a column."""
        rows = self.connection.execute(
            "SELECT oid::bigint, pg_relation_filenode(oid)::bigint, relnatts FROM pg_class "
            "WHERE oid = ANY(%s) ORDER BY 1",
            [[self.seen.oid, self.other.oid]],
        ).fetchall()
        return [list(row) for row in rows]

    def table(self, side: Side) -> PgTable:
        is_cut_over = self.moving is not None and self.moving.is_cut_over
        return self.seen if is_cut_over == (side == "new") else self.other


def name_of(tag: str, part: str) -> str:
    return f"anchorage_{tag}_{part}"


def find_table(connection: StoreConnection, collection: str) -> int | None:
    """Return the oid of a table that is named as in SQL, or exactly."""
    try:
        row = connection.execute(
            "SELECT coalesce(to_regclass(%s), to_regclass(quote_ident(%s)))::oid::bigint",
            [collection, collection],
        ).fetchone()
    except (
        psycopg.errors.SyntaxError,
        psycopg.errors.InvalidName,
        psycopg.errors.FeatureNotSupported,
    ):
        raise StoreUnsupported(
            f"{collection!r} is not the name of a table in this database. Write it as in SQL: "
            '`documents`, `public.documents` or `"My Schema"."My Table"`.',
            field="collection",
        ) from None
    return None if row is None or row[0] is None else int(row[0])


def load_table(connection: StoreConnection, oid: int, location: StoreLocation) -> PgTable:
    row = connection.execute(_TABLE, [oid]).fetchone()
    if row is None:
        raise StoreChanged("The table no longer exists.", field="collection")
    schema, name, owner, kind = row
    if kind not in ("r", "p"):
        raise StoreUnsupported(
            f"{name!r} is not a table. Name the table that holds the vectors.", field="collection"
        )
    columns = [PgColumn(*each) for each in connection.execute(_COLUMNS, [oid])]
    for each in (schema, name, *(column.name for column in columns)):
        if "%" in each:
            raise StoreUnsupported(
                f"The name {each!r} contains a percent sign. Rename it.", field="collection"
            )
    key = _choose_key(name, columns, location.id_field)
    vectors = _choose_vectors(name, columns, location.vector_field)
    fields = parse_template(location.text_field).fields if location.text_field else []
    texts = [each.name for each in columns if each.name in fields]
    table = PgTable(connection, oid, schema, name, owner, columns, key, vectors, texts)
    if wanted := location.options.get("where"):
        table = replace(table, where=wanted, selected=select_rows(table, wanted))
    return table


def _choose_key(table: str, columns: Sequence[PgColumn], wanted: str | None) -> PgColumn:
    found = [
        each
        for each in columns
        if each.unique and each.not_null and (wanted is None or each.name == wanted)
    ]
    if not found:
        problem = "has no primary key of one column"
        if wanted is not None:
            problem = f"has no unique, not-null column `{wanted}`"
        raise StoreUnsupported(
            f"The table {table!r} {problem}. Add a unique, not-null column of type bigint, text or "
            "uuid, and name it in `id_field`.",
            field="id_field",
        )
    key = max(found, key=lambda each: each.unique)
    if key.type_name not in _KEY_TYPES:
        raise StoreUnsupported(
            f"The key `{key.name}` has the type {key.type_text}. Keys have the type integer, "
            "bigint, text, varchar or uuid; name another column in `id_field`.",
            field="id_field",
        )
    return key


def _choose_vectors(table: str, columns: Sequence[PgColumn], wanted: str | None) -> PgColumn:
    every = [each for each in columns if each.type_name in ("vector", "halfvec")]
    found = [each for each in every if wanted in (None, each.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"`{each.name}`" for each in every) or "none"
    problem = "needs one column of the type `vector` or `halfvec`"
    if wanted is not None:
        problem = f"has no column `{wanted}` of the type `vector` or `halfvec`"
    raise StoreUnsupported(
        f"The table {table!r} {problem}. Its columns of vectors: {names}. Name one in "
        "`vector_field`.",
        field="vector_field",
    )


def stack_vectors(found: Sequence[Any], table: PgTable, dim: int) -> StoreVectors:
    """Return vectors of pgvector's own classes as one matrix (n, d)."""
    vectors = np.zeros((len(found), dim), np.float32)
    for place, each in enumerate(found):
        if each.dimensions() != dim:
            require_dim(table, dim)
            raise StoreUnavailable("Rows got vectors of this size meanwhile. Try again.")
        vectors[place] = each.to_numpy()
    return vectors


def load_layout(connection: StoreConnection, location: StoreLocation) -> PgLayout:
    """Return where everything is now."""
    oid = find_table(connection, location.collection)
    if oid is None:
        tables = (str(name) for (name,) in connection.execute(_VISIBLE).fetchall())
        raise StoreChanged(
            f"There is no table {location.collection!r}, or the role of the address must not see "
            f"its schema. Check `collection`.{did_you_mean(location.collection, tables)}",
            field="collection",
        )
    seen = load_table(connection, oid, location)
    states = [state for state in states_of(seen) if state.where == seen.where]
    if not states:
        return PgLayout(seen)
    if len(states) > 1:
        raise StoreRefused(
            f"The table {seen.name!r} has traces of several migrations: "
            f"{', '.join(each.tag for each in states)}. Abandon all except one."
        )
    [state] = states
    hidden = find_table(connection, sql.Identifier(seen.schema, state.hidden).as_string(connection))
    if hidden is None:
        raise StoreChanged(
            f"The table {state.hidden!r}, which the migration created or renamed, is missing. "
            "Restore it; or `abandon` the migration if it is not cut over, and `finish` it if it "
            "is."
        )
    whole = replace(location, options={**location.options, "where": None})
    other = load_table(connection, hidden, whole)
    if seen.selected is not None:
        other = replace(other, selected=join_vectors(seen, other))
    return PgLayout(seen, other, state)


def states_of(table: PgTable) -> list[PgState]:
    """Return the states of migrations of a table, from the comments of queue tables."""
    states = []
    # Anybody may create a table with such a name and comment, but not for the owner.
    for owner, text in table.connection.execute(_STATES, [table.schema]).fetchall():
        with suppress(ValueError, TypeError, KeyError):  # somebody else's comment
            state = json.loads(text or "")["state"]  # of earlier versions, with further members
            known = {name: state[name] for name in PgState.__dataclass_fields__ if name in state}
            made = PgState(**known)
            if (owner, made.table) == (table.owner, table.name):
                states.append(made)
    return states


def traces_of(
    connection: StoreConnection, location: StoreLocation, tag: str
) -> list[tuple[str, str | None, str]]:
    """Return each table and function of a migration: its name, and how to lock and to drop it.

    The one with the triggers is the first. Names alone tell them: the collection may be gone or
    have another schema, and the state unreadable.
    """
    oid = find_table(connection, location.collection)
    return connection.execute(_TRACES, [name_of(tag, ""), oid]).fetchall()
