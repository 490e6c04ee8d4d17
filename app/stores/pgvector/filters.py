"""Filters of searches: a JSON object of columns, as SQL with parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from psycopg import sql

from app.errors import InvalidFilter
from app.stores.pgvector.catalogue import PgRelation
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


def where(filter: Any, rows: PgRelation, alias: str = "r") -> tuple[sql.Composable, list[Any]]:
    """Return a condition on `rows` and its parameters.

    filter  {column: value}, {column: [any of these]}, {column: null} or {column: {"$gt": value}};
            the operators are $eq, $ne, $gt, $gte, $lt, $lte, $in and $contains. All must hold.
    Raises InvalidFilter.
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
            term, more = _term(sql.Identifier(alias, name), types[name], operator, value)
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
