"""Pages, samples, texts and the checksum of a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from app.errors import StoreUnsupported
from app.stores.answers import (
    MAX_ANSWER_BYTES,
    MAX_TEXT,
    ROWS_A_READ,
    answer_too_large,
    read_parts,
)
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout, PgVectors
from app.stores.pgvector.values import key_type, stored_keys, to_vectors
from app.stores.port import Cursor, HearRows, Page, RowsChecksum, StoreId

#: below this number of rows a sample reads all keys
SMALL_TABLE = 20_000

#: rows that a checksum reads at once
ROWS_A_FETCH = 10_000

#: most bytes of the columns that a search returns of all its rows
MAX_READ_BYTES = 256 << 20


def dim_of(connection: StoreConnection, vectors: PgVectors) -> int:
    """Return the dimensions: declared, or of the first vector."""
    if vectors.dim is not None:
        return vectors.dim
    row = connection.run(
        "SELECT vector_dims({0}) FROM {1} WHERE {0} IS NOT NULL LIMIT 1",
        vectors.column,
        vectors.relation.identifier,
    ).fetchone()
    if row is None:
        raise StoreUnsupported(
            f"The column `{vectors.column}` declares no dimension and has no vectors. Declare it, "
            "as `vector(384)`, or insert rows first.",
            field="vector_field",
        )
    return int(row[0])


def selected_key(vectors: PgVectors) -> sql.Composable:
    """Return the key of a row `v` as ids are: UUIDs are text."""
    key = sql.Identifier("v", vectors.key)
    return sql.SQL("{}::text").format(key) if vectors.kind == "uuid" else key


def _page(
    connection: StoreConnection,
    vectors: PgVectors,
    tail: sql.Composable,
    values: Any,
    sampled: sql.Composable = sql.SQL(""),  # noqa: B008 (a constant)
) -> Page:
    """Return rows `v` with a vector. tail: more conditions, order and limit."""
    column = sql.Identifier("v", vectors.column)
    query = sql.SQL("SELECT {}, {} FROM {} v {} WHERE {} IS NOT NULL {}").format(
        selected_key(vectors), column, vectors.relation.identifier, sampled, column, tail
    )
    rows = connection.cursor(binary=True).execute(query, values).fetchall()
    dim = dim_of(connection, vectors)
    return Page(
        [row[0] for row in rows], to_vectors([row[1] for row in rows], dim, vectors.type_name)
    )


def scroll(
    connection: StoreConnection, vectors: PgVectors, cursor: Cursor | None, limit: int
) -> Page:
    """Return the next rows after the key `cursor`."""
    key, after, values = sql.Identifier("v", vectors.key), sql.Composed([]), [limit]
    if cursor is not None:
        after = sql.SQL("AND {} > %s::{}").format(key, key_type(vectors.kind))
        values = [cursor, limit]
    tail = sql.SQL("{} ORDER BY {} LIMIT %s").format(after, key)
    page = _page(connection, vectors, tail, values)
    return Page(page.ids, page.vectors, page.ids[-1] if len(page.ids) == limit else None)


def fetch(connection: StoreConnection, vectors: PgVectors, ids: Sequence[StoreId]) -> Page:
    """Return the rows of these ids that have a vector, in the order of `ids`."""
    keys = stored_keys(ids, vectors.kind)
    tail = sql.SQL("AND {} = ANY(%s::{}[])").format(
        sql.Identifier("v", vectors.key), key_type(vectors.kind)
    )
    page = _page(connection, vectors, tail, [keys])
    places = {str(each): place for place, each in enumerate(page.ids)}
    order = [places[str(key)] for key in keys if str(key) in places]
    return Page([page.ids[place] for place in order], page.vectors[order])


def sample(connection: StoreConnection, vectors: PgVectors, count: int, seed: int) -> Page:
    """Return rows of random pages of the table; of a small table, random rows."""
    tail = sql.SQL("ORDER BY hashtextextended({}::text, %s) LIMIT %s").format(
        sql.Identifier("v", vectors.key)
    )
    [(rows, pages)] = connection.execute(
        "SELECT reltuples, greatest(relpages, 1) FROM pg_class WHERE oid = %s",
        [vectors.relation.oid],
    ).fetchall()
    if rows > max(SMALL_TABLE, 20 * count):
        percent = min(100.0, max(400.0 * count / rows, 100.0 * count / pages))
        some = sql.SQL("TABLESAMPLE SYSTEM ({}) REPEATABLE ({})").format(percent, seed)
        page = _page(connection, vectors, tail, [seed, count], some)
        if len(page.ids) == count:
            return page
    return _page(connection, vectors, tail, [seed, count])


#: S: text, varchar, citext, and domains of them
_CATEGORY = (
    "SELECT t.typcategory::text, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a "
    "JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = %s AND a.attname = %s "
    "AND a.attnum > 0 AND NOT a.attisdropped"
)


def texts(
    connection: StoreConnection, layout: PgLayout, column: str, ids: Sequence[StoreId]
) -> list[str | None]:
    row = connection.execute(_CATEGORY, [layout.table.oid, column]).fetchone()
    if row is None or row[0] != "S":
        problem = f"The table has no column `{column}`."
        if row is not None:
            problem = f"The column `{column}` has the type {row[1]}, which is no text."
        raise StoreUnsupported(
            f"{problem} Name the column of texts in `text_field`.", field="text_field"
        )
    text = sql.SQL("left({}::text, {})").format(sql.Identifier("r", column), MAX_TEXT)
    found = _read_bounded(connection, layout, text, ids)
    return [found.get(str(each)) for each in ids]


def _read_bounded(
    connection: StoreConnection, layout: PgLayout, value: sql.Composable, ids: Sequence[StoreId]
) -> dict[str, str | None]:
    """Return a text of each row `r`, by its key."""
    query = sql.SQL(
        "SELECT k, CASE WHEN size <= %s THEN t END, size FROM (SELECT *, sum(octet_length(t)) OVER "
        "() AS size FROM (SELECT {key}::text AS k, {value} AS t FROM {table} r "
        "WHERE {key} = ANY(%s::{type}[])) texts) sized"
    ).format(
        key=sql.Identifier("r", layout.seen.key),
        value=value,
        table=layout.table.identifier,
        type=key_type(layout.seen.kind),
    )

    def read(first: int, count: int) -> list[Any]:
        keys = stored_keys(ids[first : first + count], layout.seen.kind)
        rows = connection.execute(query, [MAX_ANSWER_BYTES, keys]).fetchall()
        if rows and (rows[0][2] or 0) > MAX_ANSWER_BYTES:
            raise answer_too_large()
        return rows

    found: dict[str, str | None] = {}
    size = 0
    for _, rows in read_parts(len(ids), ROWS_A_READ, read, lambda first: ids[first]):
        found |= {row[0]: row[1] for row in rows}
        size += int(rows[0][2] or 0) if rows else 0
        if size > MAX_READ_BYTES:
            raise StoreUnsupported(
                f"The columns of these {len(ids)} rows have more than {MAX_READ_BYTES >> 20} MiB. "
                "Ask for fewer rows."
            )
    return found


def payloads(
    connection: StoreConnection, layout: PgLayout, ids: Sequence[StoreId]
) -> list[dict[str, Any]]:
    """Return the columns of each row that are neither the key nor the vector."""
    columns = [sql.Identifier("r", name) for name in layout.payload]
    value = sql.SQL("(SELECT to_jsonb(p) FROM (SELECT {}) p)::text").format(
        sql.SQL(", ").join(columns)
    )
    found = _read_bounded(connection, layout, value, ids)
    return [json.loads(found.get(str(each)) or "{}") for each in ids]


def checksum(connection: StoreConnection, layout: PgLayout, hear: HearRows) -> RowsChecksum:
    """Return sums of two hashes of each row's text: PostgreSQL streams, the order is free."""
    names = [layout.seen.key, *sorted(layout.payload)]
    query = sql.SQL(
        "SELECT hashtextextended(h, 0), hashtextextended(h, 1) "
        "FROM (SELECT ROW({columns})::text AS h FROM {table} t) hashes"
    ).format(
        columns=sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
        table=layout.table.identifier,
    )
    count, sums = 0, (0, 0)
    reading = connection.cursor("anchorage_checksum", binary=True)
    with connection.transaction(), reading as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(ROWS_A_FETCH):
            parts = zip(sums, *rows, strict=True)
            count, sums = count + len(rows), (sum(next(parts)), sum(next(parts)))
            hear(count)
    digest = hashlib.sha256(f"{names}:{sums[0]}:{sums[1]}".encode()).hexdigest()
    return RowsChecksum(count, digest)
