"""What PostgreSQL's catalogue says about a table: columns, key, vectors and index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreUnsupported
from app.stores.base import Metric, StoreLocation
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.wire import KeyKind

_KEY_KINDS: dict[str, KeyKind] = {
    **dict.fromkeys(("int2", "int4", "int8"), "int"),
    **dict.fromkeys(("text", "varchar"), "text"),
    "uuid": "uuid",
}
assert set(_KEY_KINDS.values()) == set(get_args(KeyKind))

_VECTORS = ("vector", "halfvec", "bit", "sparsevec")
_METRIC_OF_OPERATORS: dict[str, Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}

_RELATION = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, pg_get_userbyid(c.relowner),
  c.relrowsecurity, c.relforcerowsecurity, c.reltuples::float8, c.relpages,
  c.relispartition OR EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)),
  c.relpersistence::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s"""

_COLUMNS_QUERY = """
SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.atttypmod, a.attnotnull,
  pg_get_expr(d.adbin, d.adrelid), a.attgenerated::text, a.attidentity::text, a.attnum
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_UNIQUE = """
SELECT i.indisprimary, array(SELECT a.attname::text FROM pg_attribute a
  WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]))
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL ORDER BY i.indisprimary DESC, i.indexrelid"""

_INDEXES = """
SELECT c.relname, m.amname, n.nspname, o.opcname, coalesce(c.reloptions, '{}')::text[],
  i.indpred IS NOT NULL
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
JOIN pg_opclass o ON o.oid = i.indclass[0] JOIN pg_namespace n ON n.oid = o.opcnamespace
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND a.attname = %s AND m.amname IN ('hnsw', 'ivfflat') AND i.indisvalid
ORDER BY i.indexrelid"""


@dataclass(frozen=True)
class PgColumn:
    """A column. generated and identity: as in pg_attribute, empty if it is neither."""

    name: str
    type_name: str
    type_text: str
    modifier: int
    not_null: bool
    default: str | None
    generated: str
    identity: str
    number: int


@dataclass(frozen=True)
class PgRelation:
    """A table or a view."""

    oid: int
    schema: str
    name: str
    kind: str
    owner: str
    row_security: bool
    force_row_security: bool
    tuples: float
    pages: int
    inherits: bool
    persistence: str
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
            "reindexing if it is not cut over.",
            field="vector_field",
        )


@dataclass(frozen=True)
class VectorIndex:
    """An hnsw or ivfflat index of a vector column."""

    name: str
    method: str
    schema: str
    operators: str
    options: tuple[str, ...]
    partial: bool

    @property
    def metric(self) -> Metric:
        return _METRIC_OF_OPERATORS.get(self.operators.split("_")[1], "cosine")


def find_relation(connection: StoreConnection, collection: str) -> int | None:
    """Return the oid of a table that is named as in SQL, or exactly. Raises StoreUnsupported."""
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
    columns = tuple(PgColumn(*each) for each in connection.execute(_COLUMNS_QUERY, [oid]))
    for name in (row[1], row[2], *(each.name for each in columns)):
        if "%" in name:
            raise StoreUnsupported(
                f"The name {name!r} contains a percent sign. Rename it.", field="collection"
            )
    return PgRelation(*[*row, columns])


def relation_named(connection: StoreConnection, schema: str, name: str) -> PgRelation:
    row = connection.execute(
        "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        [schema, name],
    ).fetchone()
    if row is None:
        raise StoreChanged(
            f"The table {name!r}, which the reindexing created or renamed, is missing. Restore "
            "it, or abandon the reindexing if it is not cut over."
        )
    return load_relation(connection, row[0])


def vector_column(relation: PgRelation, location: StoreLocation) -> PgColumn:
    """Return the column of vectors. Raises StoreUnsupported without exactly one to choose."""
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
) -> tuple[PgColumn, KeyKind]:
    """Return the key. Raises StoreUnsupported without a single unique column that is not null."""
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
    return column, _KEY_KINDS[column.type_name]


def vector_indexes(
    connection: StoreConnection, relation: PgRelation, column: str
) -> Sequence[VectorIndex]:
    rows = connection.execute(_INDEXES, [relation.oid, column]).fetchall()
    return [VectorIndex(*[*row[:4], tuple(row[4]), row[5]]) for row in rows]


def declared_dim(column: PgColumn) -> int | None:
    return column.modifier if column.modifier > 0 else None


def parse_number(text: Any) -> int | None:
    found = re.fullmatch(r"\d+", str(text))
    return int(found[0]) if found else None
