"""Which rows of a table: those of a store, and those of a search's filter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from psycopg import sql

from app.errors import DimensionMismatch, InvalidFilter, InvalidOption
from app.types import is_unicode

if TYPE_CHECKING:
    from app.stores.pgvector.tables import PgTable

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


def select_rows(table: PgTable, wanted: Any) -> sql.Composable:
    """Return the query of the rows whose columns have these values. Raises InvalidOption."""
    template = sql.SQL("(SELECT * FROM {} r WHERE {})")
    return template.format(table.identifier, match_rows(table, wanted, "r"))


def match_rows(table: PgTable, wanted: Any, alias: str) -> sql.Composable:
    """Return the condition of a row whose columns have these values. Raises InvalidOption.

    wanted  {column: text, number or boolean}
    """
    types = {each.name: each.type_text for each in table.columns if each.name != table.vectors.name}
    terms: list[sql.Composable] = []
    for name, value in wanted.items() if isinstance(wanted, Mapping) else [("where", None)]:
        if name not in types or not isinstance(value, str | int | float) or "%" in str(value):
            raise InvalidOption(
                f"The option `where` names `{name}`. It is an object of columns and their values, "
                'as {"tenant": 7}: texts without `%`, numbers or booleans. '
                f"The columns are {', '.join(types)}.",
                field="options",
            )
        literal = sql.Literal(_text(value))
        column, kind = sql.Identifier(alias, name), sql.SQL(types[name])
        terms.append(sql.SQL("{} = {}::{}").format(column, literal, kind))
    return sql.SQL(" AND ").join(terms or [sql.SQL("TRUE")])


def join_vectors(seen: PgTable, other: PgTable) -> sql.Composable:
    """Return the query of the rows of a filtered store with the vectors of the other table."""
    key, vector = sql.Identifier(seen.key.name), sql.Identifier(seen.vectors.name)
    columns = [sql.Identifier("s", name) for name in (seen.key.name, *seen.payload)]
    return sql.SQL("(SELECT {}, o.{} FROM {} s JOIN {} o ON o.{} = s.{})").format(
        sql.SQL(", ").join(columns), vector, seen.rows, other.identifier, key, key
    )


def require_dim(table: PgTable, dim: int) -> None:
    """Raises DimensionMismatch for rows with vectors of another size, and says how to find them."""
    find = sql.SQL("SELECT {0}, vector_dims({1}) FROM {2} r WHERE vector_dims({1}) <> {3}").format(
        sql.Identifier(table.key.name), sql.Identifier(table.vectors.name), table.rows, dim
    )
    rows = table.connection.execute(find + sql.SQL(" LIMIT 5")).fetchall()
    if rows:
        named = ", ".join(f"{id} ({size})" for id, size in rows)
        raise DimensionMismatch(
            f"Rows have vectors of another size than {dim}: {named}. A client writes by another "
            "model. Stop it, and write these rows again by the right one, or delete them. All of "
            f"them: {find.as_string(table.connection)}"
        )
