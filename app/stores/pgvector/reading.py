"""Pages, samples, searches with filters, and the checksum of a collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from psycopg import sql

from app.errors import DimensionMismatch, InvalidFilter, InvalidOption, StoreUnsupported
from app.stores.answers import (
    MAX_ANSWER_BYTES,
    MAX_TEXT,
    ROWS_A_READ,
    answer_too_large,
    read_parts,
)
from app.stores.pgvector.connections import (
    SHORT_STATEMENT_S,
    KeyKind,
    StoreConnection,
    key_type,
    stored_keys,
    to_vectors,
)
from app.stores.pgvector.layout import PgLayout, PgRelation, PgVectors, parse_number
from app.stores.port import (
    Cursor,
    HearRows,
    Hits,
    Metric,
    Page,
    RowsChecksum,
    StoreId,
    StoreVectors,
)
from app.types import is_unicode

_COMPARISONS = {
    "$eq": "=",
    "$ne": "<>",
    "$gt": ">",
    "$gte": ">=",
    "$lt": "<",
    "$lte": "<=",
    "$contains": "@>",
}


def where(filter: Any, rows: PgRelation) -> tuple[sql.Composable, list[Any]]:
    """Return a condition on `rows`, whose alias is `v`, and its parameters.

    filter  {column: value}, {column: [any of these]}, {column: null} or {column: {"$gt": value}};
            the operators are $eq, $ne, $gt, $gte, $lt, $lte, $in and $contains. All must hold.
    """
    if not isinstance(filter, Mapping):
        raise InvalidFilter(
            'A filter is an object of columns, as {"year": {"$gte": 2020}}.', field="filter"
        )
    types = {each.name: each.type_text for each in rows.columns}
    terms: list[sql.Composable] = [sql.SQL("TRUE")]
    values: list[Any] = []
    for name, condition in filter.items():
        if name not in types:
            raise InvalidFilter(
                f"The table has no column `{name}`. It has {', '.join(types)}.", field="filter"
            )
        if not isinstance(condition, Mapping):
            condition = {"$in" if isinstance(condition, list) else "$eq": condition}
        for operator, value in condition.items():
            term, more = _term(sql.Identifier("v", name), types[name], operator, value)
            terms.append(term)
            values += more
    return sql.SQL(" AND ").join(terms), values


def _term(
    column: sql.Identifier, type_text: str, operator: str, value: Any
) -> tuple[sql.Composable, list[Any]]:
    kind = sql.SQL(type_text)  # the catalogue writes it
    if operator == "$in" and isinstance(value, list):
        texts = [_text(each) for each in value if each is not None]
        term = sql.SQL("{} = ANY(CAST(%s AS {}[]))").format(column, kind)
        if None in value:
            term = sql.SQL("({} OR {} IS NULL)").format(term, column)
        return term, [texts]
    if operator not in _COMPARISONS or operator == "$in":
        raise InvalidFilter(
            f"`{operator}` is no operator of filters, or its value has the wrong form. The "
            f"operators are {', '.join(_COMPARISONS)} and $in with a list.",
            field="filter",
        )
    if value is None:
        negated = {"$eq": "IS NULL", "$ne": "IS NOT NULL"}.get(operator)
        if negated is None:
            raise InvalidFilter(f"`{operator}` does not apply to null.", field="filter")
        return sql.SQL("{} {}").format(column, sql.SQL(negated)), []
    sign = sql.SQL(_COMPARISONS[operator])
    if operator == "$contains":
        return sql.SQL("to_jsonb({}) @> CAST(%s AS jsonb)").format(column), [json.dumps(value)]
    return sql.SQL("{} {} CAST(%s AS {})").format(column, sign, kind), [_text(value)]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return json.dumps(value)
    if "\0" in value or not is_unicode(value):
        raise InvalidFilter(
            "A text of the filter contains the character U+0000 or half of a character, which "
            "PostgreSQL does not store. Send the text without it.",
            field="filter",
        )
    return value


_DISTANCES: dict[Metric, sql.SQL] = {
    "cosine": sql.SQL("<=>"),
    "dot": sql.SQL("<#>"),
    "euclidean": sql.SQL("<->"),
}

#: below this number of rows a sample reads all keys
SMALL_TABLE = 20_000

#: rows that a checksum reads at once
ROWS_A_FETCH = 10_000

#: most bytes of the columns that a search returns of all its rows
MAX_READ_BYTES = 256 << 20

#: the limits of hnsw.ef_search
LEAST_EF, MAX_EF = 40, 1000


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


def _page(
    connection: StoreConnection,
    vectors: PgVectors,
    kind: KeyKind,
    tail: sql.Composable,
    values: Any,
) -> Page:
    query = sql.SQL("SELECT {key}{text}, v.{column} FROM {table} v {tail}").format(
        key=sql.Identifier("v", vectors.key),
        text=sql.SQL("::text" if kind == "uuid" else ""),
        column=sql.Identifier(vectors.column),
        table=vectors.relation.identifier,
        tail=tail,
    )
    rows = connection.cursor(binary=True).execute(query, values).fetchall()
    ids = [row[0] for row in rows]
    dim = dim_of(connection, vectors) if rows or vectors.dim is None else vectors.dim
    return Page(ids, to_vectors([row[1] for row in rows], dim, vectors.type_name))


def scroll(
    connection: StoreConnection,
    vectors: PgVectors,
    kind: KeyKind,
    cursor: Cursor | None,
    limit: int,
) -> Page:
    """Return the next rows after the key `cursor`."""
    key = sql.Identifier("v", vectors.key)
    after: sql.Composable = sql.SQL("")
    if cursor is not None:
        after = sql.SQL("AND {} > %s::{}").format(key, key_type(kind))
    tail = sql.SQL("WHERE v.{} IS NOT NULL {} ORDER BY {} LIMIT %s").format(
        sql.Identifier(vectors.column), after, key
    )
    values = [limit] if cursor is None else [cursor, limit]
    page = _page(connection, vectors, kind, tail, values)
    return Page(page.ids, page.vectors, page.ids[-1] if len(page.ids) == limit else None)


def fetch(
    connection: StoreConnection, vectors: PgVectors, kind: KeyKind, ids: Sequence[StoreId]
) -> Page:
    """Return the rows of these ids that have a vector, in the order of `ids`."""
    tail = sql.SQL("WHERE {} = ANY(%s::{}[]) AND v.{} IS NOT NULL").format(
        sql.Identifier("v", vectors.key), key_type(kind), sql.Identifier(vectors.column)
    )
    page = _page(connection, vectors, kind, tail, [stored_keys(ids, kind)])
    places = {str(each): place for place, each in enumerate(page.ids)}
    order = [
        places[key]
        for each in ids
        if (key := str(each).lower() if kind == "uuid" else str(each)) in places
    ]
    return Page([page.ids[place] for place in order], page.vectors[order])


def sample(
    connection: StoreConnection, vectors: PgVectors, kind: KeyKind, count: int, seed: int
) -> Page:
    """Return rows of random pages of the table; of a small table, random rows."""
    key = sql.Identifier("v", vectors.key)
    order = sql.SQL("WHERE v.{} IS NOT NULL ORDER BY hashtextextended({}::text, %s) LIMIT %s")
    tail = order.format(sql.Identifier(vectors.column), key)
    rows = vectors.relation.tuples
    if rows > max(SMALL_TABLE, 20 * count):
        pages = max(vectors.relation.pages, 1)
        percent = min(100.0, max(400.0 * count / rows, 100.0 * count / pages))
        some = sql.SQL("TABLESAMPLE SYSTEM ({}) REPEATABLE ({}) ").format(percent, seed) + tail
        page = _page(connection, vectors, kind, some, [seed, count])
        if len(page.ids) == count:
            return page
    return _page(connection, vectors, kind, tail, [seed, count])


#: S: text, varchar, citext, and domains of them
_CATEGORY = (
    "SELECT t.typcategory::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
    "WHERE a.attrelid = %s AND a.attname = %s"
)


def texts(
    connection: StoreConnection, layout: PgLayout, column: str, ids: Sequence[StoreId]
) -> Any:
    if column not in {each.name for each in layout.table.columns}:
        raise StoreUnsupported(
            f"The table has no column `{column}`. Name the column of texts in `text_field`.",
            field="text_field",
        )
    row = connection.execute(_CATEGORY, [layout.table.oid, column]).fetchone()
    if row is None or row[0] != "S":
        raise StoreUnsupported(
            f"The column `{column}` has the type {layout.table.column(column).type_text}, which is "
            "no text. Name the column of texts in `text_field`.",
            field="text_field",
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
        key=sql.Identifier("r", layout.key.name),
        value=value,
        table=layout.table.identifier,
        type=key_type(layout.kind),
    )

    def read(first: int, count: int) -> list[Any]:
        keys = stored_keys(ids[first : first + count], layout.kind)
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


def set_search_options(
    connection: StoreConnection, k: int, options: Mapping[str, Any], *, exact: bool, filtered: bool
) -> None:
    """Set pgvector's options for this transaction."""
    settings: dict[str, str] = {"row_security": "on"}
    if exact:
        settings["enable_indexscan"] = "off"
        settings["statement_timeout"] = f"{SHORT_STATEMENT_S}s"
    else:
        ef = parse_number(options.get("ef_search", LEAST_EF))
        probes = parse_number(options.get("probes", 10))
        if ef is None or probes is None or not 1 <= ef <= MAX_EF or not 1 <= probes <= 32768:
            raise InvalidOption(
                "`ef_search` is a number from 1 to 1000, and `probes` one from 1 to 32768.",
                field="options",
            )
        settings |= {"hnsw.ef_search": str(max(ef, min(k, MAX_EF))), "ivfflat.probes": str(probes)}
        scan = options.get("iterative_scan", filtered or k > MAX_EF)
        if scan and connection.version >= (0, 8):
            settings["hnsw.iterative_scan"] = "strict_order"
            settings["ivfflat.iterative_scan"] = "relaxed_order"
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, true)", [name, value])


def search(
    connection: StoreConnection,
    vectors: PgVectors,
    kind: KeyKind,
    metric: Metric,
    query: StoreVectors,
    k: int,
    filter: Any,
    *,
    with_vectors: bool,
) -> tuple[list[StoreId], list[float], StoreVectors | None]:
    """Return ids, scores and vectors of the k nearest rows of one query (d)."""
    condition, values = where(filter or {}, vectors.relation)
    column = sql.Identifier("v", vectors.column)
    text = "[" + ",".join(map(repr, query.tolist())) + "]"
    statement = sql.SQL(
        "SELECT {key}{text}, {column} {operator} %s::{type} AS distance, {vector} FROM {table} v "
        "WHERE {column} IS NOT NULL AND {condition} "
        "ORDER BY {column} {operator} %s::{type} LIMIT %s"
    ).format(
        key=sql.Identifier("v", vectors.key),
        text=sql.SQL("::text" if kind == "uuid" else ""),
        column=column,
        operator=_DISTANCES[metric],
        type=sql.Identifier(connection.extension, vectors.type_name),
        vector=column if with_vectors else sql.SQL("NULL"),
        table=vectors.relation.identifier,
        condition=condition,
    )
    rows = connection.cursor(binary=True).execute(statement, [text, *values, text, k]).fetchall()
    rows.sort(key=lambda row: row[1])
    scores = [1 - row[1] if metric == "cosine" else -row[1] for row in rows]
    if not with_vectors:
        return [row[0] for row in rows], scores, None
    return (
        [row[0] for row in rows],
        scores,
        to_vectors([row[2] for row in rows], len(query), vectors.type_name),
    )


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


def check_queries(queries: StoreVectors, dim: int) -> None:
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise DimensionMismatch(
            f"The vectors of the table have {dim} dimensions; the queries have "
            f"{queries.shape[-1]}. Send vectors of the encoder that the table holds.",
            field="vectors",
        )


def checksum(connection: StoreConnection, layout: PgLayout, hear: HearRows) -> RowsChecksum:
    """Return sums of two hashes of each row's text: PostgreSQL streams, the order is free."""
    names = [layout.key.name, *sorted(layout.payload)]
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


def hits(
    found: tuple[list[StoreId], list[float], StoreVectors | None],
    rows: Sequence[Mapping[str, Any]] | None,
) -> Hits:
    ids, scores, vectors = found
    return Hits(ids, np.asarray(scores, dtype=float).tolist(), vectors, rows)
