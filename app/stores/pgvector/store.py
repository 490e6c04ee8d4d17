"""A table of PostgreSQL with a column of vectors: reads, and searches with filters on columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from app.errors import DimensionMismatch, InvalidOption, StoreUnsupported
from app.stores import port as base
from app.stores.answers import MAX_TEXT
from app.stores.pgvector.checks import another_migration, find_obstacles, new_type
from app.stores.pgvector.connections import SHORT_STATEMENT_S, PgConnections, StoreConnection
from app.stores.pgvector.filtered import PgFilteredMigration, require_room
from app.stores.pgvector.filters import where
from app.stores.pgvector.indexes import SearchIndex, search_index
from app.stores.pgvector.mentions import find_mentions
from app.stores.pgvector.migration import PgMigration
from app.stores.pgvector.tables import PgLayout, PgTable, load_layout, stack_vectors, states_of
from app.stores.port import Cursor, Hits, Page, Search, Side, StoreId, StoreVectors

#: below this number of rows a sample reads all keys
SMALL_TABLE = 20_000

#: the limits of hnsw.ef_search
LEAST_EF, MAX_EF = 40, 1000

#: PostgreSQL's estimate of a comparison that takes a tenth of a second, and longest comparison of
#: all rows where the index has found too few
CHEAP_COST, FEW_ROWS_S = 25_000, 5

_DTYPES = {"vector": "float32", "halfvec": "float16"}

_DISTANCES: dict[base.Metric, sql.SQL] = {
    "cosine": sql.SQL("<=>"),
    "dot": sql.SQL("<#>"),
    "euclidean": sql.SQL("<->"),
}


def text_columns(table: PgTable, fields: Sequence[str], row: str) -> list[sql.Composable]:
    """Return columns of texts of a row, cut. Raises StoreUnsupported for a field that is none."""
    columns = [each.name for each in table.columns if each.category == "S"]
    for each in fields:
        if each not in columns:
            raise StoreUnsupported(
                f"The table has no column `{each}` of texts. Name another in `text_field`.",
                field="text_field",
            )
    cut = sql.SQL("left({}::text, {})")
    return [cut.format(sql.Identifier(row, each), MAX_TEXT) for each in fields]


class PgvectorStore(base.Store):
    """One table. options: `ef_search`, `probes`, `type`, `where`."""

    capabilities = base.Capabilities(captures_writes=True, atomic_cutover=True, filters=True)

    def __init__(self, location: base.StoreLocation) -> None:
        self.location = location
        self.connections = PgConnections(location.url)

    @contextmanager
    def _open(self, action: str, *, long: bool = False) -> Iterator[PgLayout]:
        with self.connections.use(action, long=long) as connection:
            yield load_layout(connection, self.location)

    def facts(self) -> base.StoreFacts:
        with self._open("to describe the table", long=True) as layout:
            seen = layout.seen
            [(rows, size)] = layout.connection.run(
                "SELECT count({}), (SELECT pg_total_relation_size(%s::oid)) FROM {}",
                seen.vectors.name,
                sql.SQL("{} v").format(seen.rows),
                params=[seen.oid],
            ).fetchall()
            index = search_index(seen)
            if seen.dim is None:
                seen.require_one_size()
            obstacles = find_obstacles(layout) if seen.selected is None else []
            return base.StoreFacts(
                rows=int(rows),
                dim=seen.read_dim(),
                metric="cosine" if index is None else index.metric,
                dtype=_DTYPES[seen.vectors.type_name],
                indexed=index is not None,
                can_migrate=not obstacles,
                vector_bytes=int(size),
                vector_field=seen.vectors.name,
                notes=(*obstacles, *find_mentions(seen)),
            )

    def require_dim(self, dim: int) -> None:
        with self._open("to describe the table") as layout:
            for other in states_of(layout.seen):
                raise another_migration(other.tag)
            if layout.seen.selected is None:
                new_type(layout, self.location, dim)
            else:
                require_room(layout, dim)

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        with self._open("to read rows") as layout:
            table = layout.table(side)
            page = table.read_page(*table.next_rows(cursor, limit))
            return Page(page.ids, page.vectors, page.ids[-1] if len(page.ids) == limit else None)

    def scroll_texts(self, cursor: Cursor | None, limit: int) -> base.TextPage:
        """One query reads keys and texts, without the vectors."""
        template = self.text_template()
        fields = template.fields
        with self._open("to read texts") as layout:
            table = layout.table("old")
            tail, values = table.next_rows(cursor, limit)
            query = sql.SQL("SELECT {}, {} FROM {} v WHERE {} IS NOT NULL {}").format(
                table.selected_key,
                sql.SQL(", ").join(text_columns(table, fields, "v")),
                table.rows,
                sql.Identifier("v", table.vectors.name),
                tail,
            )
            rows = layout.connection.cursor(binary=True).execute(query, values).fetchall()
        ids = [key for key, *_ in rows]
        texts = [template.fill(dict(zip(fields, each, strict=True))) for _, *each in rows]
        return base.TextPage(ids, texts, ids[-1] if len(ids) == limit else None)

    def sample(self, count: int, seed: int = 0) -> Page:
        """Return rows of random pages of the table; of a small table, random rows."""
        with self._open("to sample rows", long=True) as layout:
            table = layout.table("old")
            tail = sql.SQL("ORDER BY hashtextextended({}::text, %s) LIMIT %s").format(
                sql.Identifier("v", table.key.name)
            )
            [(rows, pages)] = layout.connection.execute(
                "SELECT reltuples, greatest(relpages, 1) FROM pg_class WHERE oid = %s", [table.oid]
            ).fetchall()
            if rows > max(SMALL_TABLE, 20 * count) and table.selected is None:
                percent = min(100.0, max(400.0 * count / rows, 100.0 * count / pages))
                some = sql.SQL("TABLESAMPLE SYSTEM ({}) REPEATABLE ({})").format(percent, seed)
                page = table.read_page(tail, [seed, count], some)
                if len(page.ids) == count:
                    return page
            return table.read_page(tail, [seed, count])

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        with self._open("to fetch rows") as layout:
            return layout.table(side).fetch(ids)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        with self._open("to read texts") as layout:
            [text] = text_columns(layout.seen, [field], "r")
            found = layout.seen.read_texts(text, ids)
            return [found.get(str(each)) for each in ids]

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        # Without an index PostgreSQL may be silent for longer than it is in other searches.
        with self._open("to search", long=wanted.exact) as layout:
            place = layout.table(wanted.side)
            dim = place.read_dim()
            if wanted.queries.shape[1:] != (dim,):
                raise DimensionMismatch(
                    f"The vectors of the table have {dim} dimensions; the queries have "
                    f"{wanted.queries.shape[-1]}. Send vectors of the encoder that the table "
                    "holds.",
                    field="vectors",
                )
            index = search_index(layout.seen)
            metric = "cosine" if index is None else index.metric
            return [
                self._hits(layout, wanted, metric, rows)
                for rows in self._nearest(layout, wanted, index, metric)
            ]

    def _nearest(
        self, layout: PgLayout, wanted: Search, index: SearchIndex | None, metric: base.Metric
    ) -> list[list[Any]]:
        """Return key, distance and perhaps vector of the nearest rows of each query.

        All rows of a filter are compared where that is cheap, or the index finds fewer than k: it
        misses most of those that are far from the query. It sets options of the transaction.
        """
        connection, place = layout.connection, layout.table(wanted.side)
        column = sql.Identifier("v", place.vectors.name)
        condition, values = where(wanted.filter or {}, layout.seen)
        template = sql.SQL(
            "SELECT {key}, {near} AS distance, {vector} FROM {table} v "
            "WHERE {column} IS NOT NULL AND {condition} ORDER BY {order} LIMIT %s"
        )
        of_column = SearchIndex(metric, "")
        names = {
            "key": place.selected_key,
            "near": of_column.distance(place, _DISTANCES[metric]),
            "column": column,
            "vector": column if wanted.vectors else sql.SQL("NULL"),
            "table": place.rows,
            "condition": condition,
        }
        of_all = template.format(**names, order=names["near"])
        used = index or of_column
        of_index = template.format(**names, order=used.distance(place, _DISTANCES[metric]))

        def ask(query: StoreVectors, statement: sql.Composed, limit: int) -> list[Any]:
            cursor = connection.cursor(binary=True)
            rows = cursor.execute(statement, [query, *values, query, limit]).fetchall()
            return sorted(rows, key=lambda row: float(row[1]))[: wanted.k]

        def is_cheap(query: StoreVectors) -> bool:
            self._set(connection, settings | {"enable_indexscan": "off"})
            explained = sql.SQL("EXPLAIN (FORMAT JSON) {}").format(of_all)
            [[[plan]]] = connection.execute(explained, [query, *values, query, wanted.k]).fetchall()
            return bool(plan["Plan"]["Total Cost"] < CHEAP_COST)

        answers = []
        settings = {"row_security": "on"} | self._index_settings(connection, wanted, index)
        may_lack = index is not None and bool(wanted.filter or place.selected)
        for query in wanted.queries.astype(np.float32):
            rows: list[Any] = []
            compares_all = wanted.exact or (may_lack and is_cheap(query))
            if not compares_all:
                self._set(connection, settings)
                rows = ask(query, of_index, wanted.k * used.rows_a_result)
            if compares_all or (may_lack and len(rows) < wanted.k):
                limit = SHORT_STATEMENT_S if compares_all else FEW_ROWS_S
                all_rows = {"enable_indexscan": "off", "statement_timeout": f"{limit}s"}
                try:
                    with connection.transaction():
                        self._set(connection, settings | all_rows)
                        rows = ask(query, of_all, wanted.k)
                except psycopg.errors.QueryCanceled:
                    if compares_all:
                        raise StoreUnsupported(
                            f"An exact search of this table takes more than {SHORT_STATEMENT_S} s.",
                            field="exact",
                        ) from None
            answers.append(rows)
        self._set(connection, {"enable_indexscan": "on"})
        return answers

    @staticmethod
    def _set(connection: StoreConnection, settings: Mapping[str, str]) -> None:
        """Change settings until the transaction ends."""
        template = sql.SQL("set_config({}, {}, true)")
        terms = [template.format(name, value) for name, value in settings.items()]
        connection.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(terms)))

    def _index_settings(
        self, connection: StoreConnection, wanted: Search, index: SearchIndex | None
    ) -> dict[str, str]:
        """Return pgvector's settings of a search that uses an index."""
        options, set_there = self.location.options, connection.search_settings
        ef, probes = (
            str(options.get(name) or max(least, int(set_there[name] or 0)))
            for name, least in (("ef_search", LEAST_EF), ("probes", 10))
        )
        if not (ef.isdecimal() and 1 <= int(ef) <= MAX_EF) or not (
            probes.isdecimal() and 1 <= int(probes) <= 32768
        ):
            raise InvalidOption(
                "`ef_search` is a number from 1 to 1000, and `probes` one from 1 to 32768.",
                field="options",
            )
        rows = wanted.k if index is None else wanted.k * index.rows_a_result
        settings = {
            "enable_indexscan": "on",
            "hnsw.ef_search": str(max(int(ef), min(rows, MAX_EF))),
            "ivfflat.probes": probes,
        }
        is_filtered = bool(wanted.filter or options.get("where"))
        if (is_filtered or rows > MAX_EF) and connection.version >= (0, 8):
            settings["hnsw.iterative_scan"] = "relaxed_order"
            settings["ivfflat.iterative_scan"] = "relaxed_order"
        return settings

    def search_advice(self) -> str:
        with self._open("to read the index") as layout:
            connection = layout.connection
            index = search_index(layout.table("new"))
            assert index is not None  # else a search compares all rows
            setting = "hnsw.ef_search" if index.method == "hnsw" else "ivfflat.probes"
            wanted = Search(np.zeros((0, 0), np.float32), 10)
            now = int(self._index_settings(connection, wanted, index)[setting])
            database = sql.Identifier(connection.info.dbname).as_string(connection)
            return (
                f"The index {index.name} ({index.method}) is searched with {setting} = {now}. "
                "Raise it for the service and for your clients, as the owner of the database: "
                f"SELECT '[1]'::vector; ALTER DATABASE {database} SET {setting} = {2 * now}; "
                "New connections have it. Then call `verify` again."
            )

    def _hits(self, layout: PgLayout, wanted: Search, metric: base.Metric, rows: list[Any]) -> Hits:
        ids = [row[0] for row in rows]
        scores = [float(1 - row[1] if metric == "cosine" else -row[1]) for row in rows]
        vectors = payloads = None
        if wanted.vectors:
            table, dim = layout.table(wanted.side), wanted.queries.shape[1]
            vectors = stack_vectors([row[2] for row in rows], table, dim)
        if wanted.payload:
            value = sql.SQL("(SELECT to_jsonb(p) FROM (SELECT {}) p)::text").format(
                sql.SQL(", ").join(sql.Identifier("r", name) for name in layout.seen.payload)
            )
            found = layout.seen.read_texts(value, ids)
            payloads = [json.loads(found.get(str(each)) or "{}") for each in ids]
        return Hits(ids, scores, vectors, payloads)

    def migration(self, tag: str, dim: int) -> base.Migration:
        made = PgFilteredMigration if self.location.options.get("where") else PgMigration
        return made(self.connections, self.location, tag, dim)

    def close(self) -> None:
        self.connections.close()
