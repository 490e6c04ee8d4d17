"""Searches of a table, with filters on its columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from app.errors import DimensionMismatch, InvalidFilter, InvalidOption, StoreUnsupported
from app.stores.pgvector.connections import SHORT_STATEMENT_S, StoreConnection
from app.stores.pgvector.rows import dim_of, read_texts, selected_key, stack_vectors
from app.stores.pgvector.tables import PgLayout, PgTable, index_metric
from app.stores.port import Hits, Metric, Search, StoreId
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


def where(filter: Any, rows: PgTable) -> tuple[sql.Composable, list[Any]]:
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

#: the limits of hnsw.ef_search
LEAST_EF, MAX_EF = 40, 1000


def search(
    connection: StoreConnection, layout: PgLayout, wanted: Search, options: Mapping[str, Any]
) -> list[Hits]:
    """Return the nearest rows of each query, in a transaction whose options it sets."""
    place = layout.table(wanted.side)
    dim = dim_of(connection, place)
    if wanted.queries.shape[1:] != (dim,):
        raise DimensionMismatch(
            f"The vectors of the table have {dim} dimensions; the queries have "
            f"{wanted.queries.shape[-1]}. Send vectors of the encoder that the table holds.",
            field="vectors",
        )
    metric = index_metric(connection, layout.seen) or "cosine"
    condition, values = where(wanted.filter or {}, place)
    statement = sql.SQL(
        "SELECT {key}, {column} {operator} %s::{type} AS distance, {vector} FROM {table} v "
        "WHERE {column} IS NOT NULL AND {condition} "
        "ORDER BY {column} {operator} %s::{type} LIMIT %s"
    ).format(
        key=selected_key(place),
        column=sql.Identifier("v", place.vectors.name),
        operator=_DISTANCES[metric],
        type=sql.Identifier(connection.extension, place.vectors.type_name),
        vector=sql.Identifier("v", place.vectors.name) if wanted.vectors else sql.SQL("NULL"),
        table=place.identifier,
        condition=condition,
    )
    settings = (
        {"enable_indexscan": "off", "statement_timeout": f"{SHORT_STATEMENT_S}s"}
        if wanted.exact
        else _index_settings(connection, wanted, options)
    )
    for name, value in ({"row_security": "on"} | settings).items():
        connection.execute("SELECT set_config(%s, %s, true)", [name, value])
    answers = []
    for query in wanted.queries.astype(np.float32):
        cursor = connection.cursor(binary=True)
        try:
            rows = cursor.execute(statement, [query, *values, query, wanted.k]).fetchall()
        except psycopg.errors.QueryCanceled:
            if not wanted.exact:
                raise
            raise StoreUnsupported(
                f"An exact search of this table takes more than {SHORT_STATEMENT_S} s.",
                field="exact",
            ) from None
        answers.append(sorted(rows, key=lambda row: float(row[1])))
    connection.execute("SELECT set_config('enable_indexscan', 'on', true)")
    hits = []
    for rows in answers:
        ids = [row[0] for row in rows]
        scores = [float(1 - row[1] if metric == "cosine" else -row[1]) for row in rows]
        found = stack_vectors([row[2] for row in rows], dim) if wanted.vectors else None
        content = _payloads(connection, layout.seen, ids) if wanted.payload else None
        hits.append(Hits(ids, scores, found, content))
    return hits


def _payloads(
    connection: StoreConnection, table: PgTable, ids: Sequence[StoreId]
) -> list[dict[str, Any]]:
    """Return the columns of each row that are neither the key nor the vector."""
    value = sql.SQL("(SELECT to_jsonb(p) FROM (SELECT {}) p)::text").format(
        sql.SQL(", ").join(sql.Identifier("r", name) for name in table.payload)
    )
    found = read_texts(connection, table, value, ids)
    return [json.loads(found.get(str(each)) or "{}") for each in ids]


def _index_settings(
    connection: StoreConnection, wanted: Search, options: Mapping[str, Any]
) -> dict[str, str]:
    """Return pgvector's settings of a search that uses an index."""
    ef, probes = str(options.get("ef_search", LEAST_EF)), str(options.get("probes", 10))
    if not (ef.isdecimal() and 1 <= int(ef) <= MAX_EF) or not (
        probes.isdecimal() and 1 <= int(probes) <= 32768
    ):
        raise InvalidOption(
            "`ef_search` is a number from 1 to 1000, and `probes` one from 1 to 32768.",
            field="options",
        )
    settings = {
        "hnsw.ef_search": str(max(int(ef), min(wanted.k, MAX_EF))),
        "ivfflat.probes": probes,
    }
    scan = options.get("iterative_scan", bool(wanted.filter) or wanted.k > MAX_EF)
    if scan and connection.version >= (0, 8):
        settings["hnsw.iterative_scan"] = "strict_order"
        settings["ivfflat.iterative_scan"] = "relaxed_order"
    return settings
