"""The approximate index of a table: of its column of vectors, or of an expression of that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import sql

from app.stores.pgvector.tables import PgTable
from app.stores.port import Metric

_METRICS: dict[str, Metric] = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}

#: columns before expressions; a partial index serves a store of the same rows
_FOUND = """
SELECT split_part(o.opcname, '_', 2), format_type(x.atttypid, x.atttypmod),
  CASE WHEN i.indkey[0] = 0 THEN pg_get_indexdef(i.indexrelid, 1, true) END,
  c.relname, m.amname
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
JOIN pg_opclass o ON o.oid = i.indclass[0]
JOIN pg_attribute x ON x.attrelid = i.indexrelid AND x.attnum = 1
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = %s
WHERE i.indrelid = %s AND m.amname IN ('hnsw', 'ivfflat') AND i.indisvalid
  AND (i.indkey[0] = a.attnum OR i.indkey[0] = 0 AND EXISTS (SELECT FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
      AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
ORDER BY i.indkey[0] = 0, i.indexrelid"""

#: expressions that a search can use: a cast of the column, and one of its signs
EXPRESSION = re.compile(
    r'\((?:"?\w+"?|binary_quantize\("?\w+"?\))::(?:vector|halfvec|bit)\(\d+\)\)'
)

#: rows of an index of signs that are compared by their vectors, for each result
SIGNS_A_RESULT = 10


@dataclass(frozen=True)
class SearchIndex:
    """An index.

    expression  what it indexes; None: the column itself
    type_text   of what it holds, as `halfvec(3072)`
    method      `hnsw` or `ivfflat`
    """

    metric: Metric
    type_text: str
    expression: str | None = None
    name: str = ""
    method: str = ""

    @property
    def rows_a_result(self) -> int:
        return SIGNS_A_RESULT if self.type_text.startswith("bit") else 1

    def distance(self, table: PgTable, operator: sql.SQL) -> sql.Composable:
        """Return the distance of rows of a table to a parameter, as the index orders them."""
        if self.expression is None:
            template = sql.SQL("{} {} %s::{}")
            column = sql.Identifier("v", table.vectors.name)
            return template.format(column, operator, table.vector_type)
        size = f"({table.read_dim()})"
        expression, type_text = (
            sql.SQL(re.sub(r"\(\d+\)", size, each)) for each in (self.expression, self.type_text)
        )
        query = sql.SQL("%s::{}").format(table.vector_type)
        if self.rows_a_result > 1:
            query, operator = sql.SQL("binary_quantize({})").format(query), sql.SQL("<~>")
        return sql.SQL("{} {} {}::{}").format(expression, operator, query, type_text)


def search_index(table: PgTable) -> SearchIndex | None:
    """Return the index that searches of a table use; None without one."""
    found = table.connection.execute(_FOUND, [table.vectors.name, table.oid]).fetchall()
    for operators, type_text, expression, name, method in found:
        metric = _METRICS.get(operators, "cosine")
        if expression is None or EXPRESSION.fullmatch(expression):
            return SearchIndex(metric, type_text, expression, name, method)
    return None
