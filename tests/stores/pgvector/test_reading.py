"""Names, types, keys, filters and searches of tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from uuid import UUID, uuid4

import numpy as np
import pytest

from app.errors import DimensionMismatch, InvalidFilter, StoreChanged, StoreUnsupported
from app.stores.answers import MAX_TEXT
from app.stores.pgvector import PgvectorStore
from app.stores.port import Search, StoreLocation
from tests.stores.pgvector.tables import NEW_DIM, TAG, Table, sweep, text, translate, vectors_of


def test_quoted_names(new_table: Callable[..., Table]) -> None:
    table = new_table('Uni-cöde with ""quotes""')
    table.execute(
        'CREATE TABLE {t} ("Key Of" int PRIMARY KEY, "Some Text" text, "The Vector" vector(4))'
    )
    for each, vector in enumerate(vectors_of(5)):
        table.execute("INSERT INTO {t} VALUES (%s, %s, %s)", [each, f"{each} % é", text(vector)])
    store = table.store(text_field="Some Text")
    before, contents = store.facts(), table.contents()
    assert (before.rows, before.dim, before.indexed) == (5, 4, False)
    assert store.texts([1, 7]) == ["1 % é", None]
    [hits] = store.search(
        Search(vectors_of(5)[[2]], 2, filter={"Some Text": "2 % é"}, payload=True)
    )
    assert (hits.ids, hits.payloads) == ([2], [{"Some Text": "2 % é"}])
    sweep(store, migration := store.migration(TAG, NEW_DIM))
    migration.cutover(translate)
    migration.finish()
    assert store.facts().dim == NEW_DIM
    assert table.contents() == contents
    assert table.traces() == []


def test_large_rows_are_read_in_parts_and_a_row_above_the_limit_is_named(
    new_table: Callable[..., Table],
) -> None:
    table = new_table()
    table.execute("CREATE TABLE {t} (id int PRIMARY KEY, body text, embedding vector(4))")
    table.insert((each, "x" * 1100000, text(v)) for each, v in enumerate(vectors_of(20)))
    store = table.store(text_field="body")
    assert [len(each or "") for each in store.texts(range(20))] == [MAX_TEXT] * 20
    [hits] = store.search(Search(vectors_of(20)[:1], 20, payload=True))
    assert [len(each["body"]) for each in hits.payloads or ()] == [1100000] * 20
    table.execute("UPDATE {t} SET body = repeat('x', 17000000) WHERE id = 7")
    assert len(store.texts(range(20))) == 20
    with pytest.raises(StoreUnsupported, match="row with the id 7 is too large"):
        store.search(Search(vectors_of(20)[:1], 20, payload=True))
    assert len(store.search(Search(vectors_of(20)[:1], 20))[0].ids) == 20


def test_halfvec(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.execute("CREATE TABLE {t} (id smallint PRIMARY KEY, embedding halfvec(4))")
    table.execute("CREATE INDEX ON {t} USING hnsw (embedding halfvec_l2_ops)")
    for each, vector in enumerate(vectors_of(8)):
        table.execute("INSERT INTO {t} VALUES (%s, %s)", [each, text(vector)])
    store = table.store()
    facts = store.facts()
    assert (facts.dtype, facts.metric, facts.indexed) == ("float16", "euclidean", True)
    found = store.fetch([3]).vectors[0]
    assert np.array_equal(found, vectors_of(8)[3].astype(np.float16).astype(np.float32))
    sweep(store, migration := store.migration(TAG, NEW_DIM))
    assert np.allclose(store.fetch([3], "new").vectors[0], translate(None, found), atol=1e-2)
    migration.abandon()


@pytest.mark.parametrize("kind", ["uuid", "text"])
def test_keys_that_are_not_numbers(new_table: Callable[..., Table], kind: str) -> None:
    table = new_table()
    table.execute(f"CREATE TABLE {{t}} (id {kind} PRIMARY KEY, body text, embedding vector(4))")
    keys = [str(uuid4()) if kind == "uuid" else f"schlüssel {each}" for each in range(25)]
    vectors = dict(zip(keys, vectors_of(25), strict=True))
    table.insert((key, f"b {key}", text(vector)) for key, vector in vectors.items())
    store = table.store()
    pages = [store.scroll(None, 20), store.scroll(sorted(keys)[19], 20)]
    assert [id for page in pages for id in page.ids] == sorted(keys)
    asked = [keys[3], "no such key", keys[1].upper() if kind == "uuid" else keys[1]]
    assert store.fetch(asked).ids == [keys[3], keys[1]]
    sweep(store, migration := store.migration(TAG, NEW_DIM))
    extra = str(UUID(int=7)) if kind == "uuid" else "extra"
    table.execute("INSERT INTO {t} VALUES (%s, 'x', %s)", [extra, text(vectors[keys[0]])])
    migration.cutover(translate)
    assert np.allclose(store.fetch([extra], "new").vectors[0], translate(None, vectors[keys[0]]))
    migration.finish()
    assert store.facts().rows == 26


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ("id int, embedding vector(4)", "no primary key of one column"),
        ("a int, b int, embedding vector(4), PRIMARY KEY (a, b)", "no primary key of one column"),
        ("id float8 PRIMARY KEY, embedding vector(4)", "double precision"),
        ("id int PRIMARY KEY, embedding bit(4)", "one column of the type `vector` or `halfvec`"),
        ("id int PRIMARY KEY, a vector(4), b vector(4)", "vector_field"),
        ("id int PRIMARY KEY, body text", "none"),
        ('id int PRIMARY KEY, "in %" int, embedding vector(4)', "percent sign"),
    ],
)
def test_tables_that_are_refused(new_table: Callable[..., Table], columns: str, word: str) -> None:
    table = new_table()
    table.execute(f"CREATE TABLE {{t}} ({columns})")
    with pytest.raises(StoreUnsupported, match=word):
        table.store().facts()


def test_a_unique_column_serves_as_key(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.execute(
        "CREATE TABLE {t} (a int, b int, slug text NOT NULL UNIQUE, embedding vector(4), "
        "PRIMARY KEY (a, b))"
    )
    table.execute("INSERT INTO {t} VALUES (1, 2, 'x', '[1,2,3,4]')")
    assert table.store(id_field="slug").scroll(None, 5).ids == ["x"]
    with pytest.raises(StoreUnsupported, match="no unique, not-null column `a`"):
        table.store(id_field="a").facts()


@pytest.mark.parametrize("name", ["no.such_table", "NOT a name", "a.b.c.d", 'x"; DROP TABLE y'])
def test_names_of_no_table(pgvector_url: str, name: str) -> None:
    store = PgvectorStore(StoreLocation("pgvector", pgvector_url, name))
    with closing(store), pytest.raises((StoreUnsupported, StoreChanged), match="table"):
        store.facts()


def test_missing_columns_are_named(table: Table) -> None:
    with pytest.raises(StoreUnsupported, match=r"no column `nope`.* vectors: `embedding`"):
        table.store(vector_field="nope").facts()
    with pytest.raises(StoreUnsupported, match="no column `nope` of texts"):
        table.store(text_field="nope").texts([1])
    with pytest.raises(StoreUnsupported, match="no column `id` of texts"):
        table.store(text_field="id").texts([1])


def test_comments_of_others_are_no_states(table: Table) -> None:
    table.execute("COMMENT ON TABLE {t} IS '{\"anchorage\": oops'")
    table.execute("CREATE TABLE {s}.anchorage_00000000_queue (key int)")
    table.execute("COMMENT ON TABLE {s}.anchorage_00000000_queue IS '{\"anchorage\": 1}'")
    assert table.store().scroll(None, 3).ids == [0, 1, 2]


def test_filters(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.execute(
        "CREATE TABLE {t} (id int PRIMARY KEY, year int, tags text[], meta jsonb, day date, "
        "embedding vector(4))"
    )
    table.execute(
        "INSERT INTO {t} SELECT i, 2000 + i, ARRAY['t' || i % 3], jsonb_build_object('n', i), "
        "CASE WHEN i <> 5 THEN date '2020-01-01' + i END, '[1,2,3,4]' FROM generate_series(0, 19) i"
    )
    store = table.store()

    def ids(filter: object) -> list[int]:
        [hits] = store.search(Search(vectors_of(1), 100, filter=filter, exact=True))
        return sorted(hits.ids)

    assert ids({"year": 2003}) == [3]
    assert ids({"year": {"$gte": 2018}}) == [18, 19]
    assert ids({"year": [2001, 2002, 1]}) == [1, 2]
    assert ids({"year": {"$gt": 2001, "$lt": 2004}, "id": {"$ne": 2}}) == [3]
    assert ids({"meta": {"$contains": {"n": 4}}}) == [4]
    assert ids({"tags": {"$contains": ["t0"]}}) == list(range(0, 20, 3))
    assert ids({"day": None}) == [5]
    assert ids({"day": ["2020-01-02", None]}) == [1, 5]
    evil = '"; DROP TABLE docs; --'
    wrong = [{evil: 1}, {"year": {"$evil": 1}}, {"year": "x"}, [1], {"year": {"$gt": None}}]
    wrong += [{"tags": "a\0b"}, {"tags": ["\ud800"]}, {"meta": {"$contains": "a\0b"}}]
    for filter in wrong:
        with pytest.raises(InvalidFilter):
            ids(filter)


def test_searches_use_the_index_and_find_more_rows_than_its_default(table: Table) -> None:
    table.insert((1000 + each, "x", text(vector)) for each, vector in enumerate(vectors_of(200, 9)))
    store = table.store(options={"ef_search": 60})
    [hits] = store.search(Search(vectors_of(1), 120))
    assert len(hits.ids) == len(set(hits.ids)) == 120
    [exact] = store.search(Search(vectors_of(1), 120, exact=True, vectors=True))
    assert exact.vectors is not None
    query = vectors_of(1)[0]
    cosines = exact.vectors @ query / np.linalg.norm(exact.vectors, axis=1) / np.linalg.norm(query)
    assert np.allclose(cosines, exact.scores, atol=1e-5)
    assert len(set(hits.ids) & set(exact.ids)) > 100
    with pytest.raises(DimensionMismatch):
        store.search(Search(np.zeros((1, 5), np.float32), 3))


def test_a_sample_of_a_large_table_comes_from_random_pages(new_table: Callable[..., Table]) -> None:
    table = new_table()
    table.execute("CREATE TABLE {t} (id int PRIMARY KEY, embedding vector(4))")
    table.execute(
        "INSERT INTO {t} SELECT i, ARRAY[i, 1, 2, 3]::vector FROM generate_series(1, 30000) i"
    )
    table.execute("ANALYZE {t}")
    store = table.store()
    page = store.sample(200, seed=1)
    assert len(set(page.ids)) == 200
    assert [row[0] for row in page.vectors] == list(page.ids)
    assert min(page.ids) < 6000
    assert max(page.ids) > 24000
    assert store.sample(200, seed=1).ids == page.ids
    assert store.sample(200, seed=2).ids != page.ids
