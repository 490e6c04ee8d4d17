"""Rows of a table: keys and vectors as PostgreSQL has them, and pages of both."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import numpy as np
from psycopg import sql

from app.errors import DimensionMismatch, StoreUnsupported
from app.stores.answers import MAX_ANSWER_BYTES
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.tables import PgTable
from app.stores.port import Page, StoreId, StoreVectors

#: most bytes of the columns that a search returns of all its rows
MAX_READ_BYTES = 256 << 20


def zero_vector(connection: StoreConnection, table: PgTable) -> sql.Composed:
    """Return the vector of zeros, which a row without a new vector has in a NOT NULL column."""
    return sql.SQL("array_fill(0::real, ARRAY[{}])::{}").format(
        sql.Literal(table.dim), sql.Identifier(connection.extension, table.vectors.type_name)
    )


def stored_keys(ids: Sequence[StoreId], table: PgTable) -> list[Any]:
    """Return the ids that the key can hold, as parameters."""
    keys: list[Any] = []
    for each in ids:
        with suppress(ValueError):
            if table.key_type == "bigint" and not -(2**63) <= int(each) < 2**63:
                continue
            if table.key_type == "text" and "\0" in str(each):
                continue
            keys.append({"bigint": int, "text": str, "uuid": UUID}[table.key_type](each))
    return keys


def selected_key(table: PgTable) -> sql.Composable:
    """Return the key of a row `v` as ids are: UUIDs are text."""
    key = sql.Identifier("v", table.key.name)
    return sql.SQL("{}::text").format(key) if table.key_type == "uuid" else key


def dim_of(connection: StoreConnection, table: PgTable) -> int:
    """Return the dimensions: declared, or of the first vector."""
    if table.dim is not None:
        return table.dim
    row = connection.run(
        "SELECT vector_dims({0}) FROM {1} WHERE {0} IS NOT NULL LIMIT 1",
        table.vectors.name,
        table.identifier,
    ).fetchone()
    if row is None:
        raise StoreUnsupported(
            f"The column `{table.vectors.name}` declares no dimension and has no vectors. Declare "
            "it, as `vector(384)`, or insert rows first.",
            field="vector_field",
        )
    return int(row[0])


def stack_vectors(found: Sequence[Any], dim: int) -> StoreVectors:
    """Return vectors of pgvector's own classes as one matrix (n, d)."""
    vectors = np.zeros((len(found), dim), np.float32)
    for place, each in enumerate(found):
        if each.dimensions() != dim:
            raise DimensionMismatch(
                f"The column holds vectors of different dimensions; at least one has not {dim}. "
                "Declare the dimension of the column, as `vector(384)`."
            )
        vectors[place] = each.to_numpy()
    return vectors


def read_page(
    connection: StoreConnection,
    table: PgTable,
    tail: sql.Composable,
    values: Any,
    chosen: sql.Composable = sql.SQL(""),  # noqa: B008 (a constant)
) -> Page:
    """Return rows `v` with a vector. chosen: a sample or a join; tail: conditions, order, limit."""
    column = sql.Identifier("v", table.vectors.name)
    query = sql.SQL("SELECT {}, {} FROM {} v {} WHERE {} IS NOT NULL {}").format(
        selected_key(table), column, table.identifier, chosen, column, tail
    )
    rows = connection.cursor(binary=True).execute(query, values).fetchall()
    dim = dim_of(connection, table)
    return Page([row[0] for row in rows], stack_vectors([row[1] for row in rows], dim))


def fetch(connection: StoreConnection, table: PgTable, ids: Sequence[StoreId]) -> Page:
    """Return the rows of these ids that have a vector, in the order of `ids`."""
    wanted = sql.SQL(
        "JOIN unnest(%s::{}[]) WITH ORDINALITY wanted(key, place) ON wanted.key = v.{}"
    ).format(sql.SQL(table.key_type), sql.Identifier(table.key.name))
    tail = sql.SQL("ORDER BY wanted.place")
    return read_page(connection, table, tail, [stored_keys(ids, table)], wanted)


def read_texts(
    connection: StoreConnection, table: PgTable, value: sql.Composable, ids: Sequence[StoreId]
) -> dict[str, str | None]:
    """Return a text of each row `r`, by its key, one row after another."""
    query = sql.SQL(
        "SELECT k, CASE WHEN octet_length(t) <= {most} THEN t END, octet_length(t) FROM "
        "(SELECT {key}::text AS k, {value} AS t FROM {table} r "
        "WHERE {key} = ANY(%s::{type}[]) OFFSET 0) texts"
    ).format(
        most=MAX_ANSWER_BYTES,
        key=sql.Identifier("r", table.key.name),
        value=value,
        table=table.identifier,
        type=sql.SQL(table.key_type),
    )
    found: dict[str, str | None] = {}
    left = MAX_READ_BYTES
    for key, text, size in connection.cursor().stream(query, [stored_keys(ids, table)]):
        found[key], left = text, left - (size or 0)
        if (size or 0) > MAX_ANSWER_BYTES:
            raise StoreUnsupported(
                f"The row with the id {key} is too large to read: it has more than "
                f"{MAX_ANSWER_BYTES >> 20} MiB. Store less in each row."
            )
        if left < 0:
            raise StoreUnsupported(
                f"The columns of these {len(ids)} rows have more than {MAX_READ_BYTES >> 20} MiB. "
                "Ask for fewer rows."
            )
    return found
