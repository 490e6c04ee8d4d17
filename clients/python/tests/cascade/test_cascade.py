"""Cascades over real indexes: Qdrant's local mode, and PostgreSQL with pgvector."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row

from anchorage_client.cascade import Cascade, PgvectorIndex, QdrantIndex

models = pytest.importorskip("qdrant_client.models")
pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")
from llama_index.core.schema import TextNode  # noqa: E402
from llama_index.core.vector_stores.utils import node_to_metadata_dict  # noqa: E402
from qdrant_client import QdrantClient  # noqa: E402

from anchorage_client.cascade import langchain, llamaindex  # noqa: E402

ROWS = 200


@pytest.fixture(scope="module")
def old_vectors(texts):
    return texts.client.embed(texts.sentences[:ROWS], model="old")


@pytest.fixture(scope="module")
def qdrant(texts, old_vectors):
    """Points with the payload that langchain-qdrant writes, and with plain fields beside it."""
    client = QdrantClient(":memory:")
    vector = models.VectorParams(size=256, distance=models.Distance.DOT)
    client.create_collection("docs", vectors_config={"text": vector, "other": vector})
    points = []
    for row, (text, numbers) in enumerate(zip(texts.sentences, old_vectors, strict=False)):
        payload = {"page_content": text, "metadata": {"row": row}, "text": text, "row": row}
        vectors = {"text": numbers.tolist(), "other": numbers[::-1].tolist()}
        points.append(models.PointStruct(id=row, vector=vectors, payload=payload))
    client.upsert("docs", points)
    yield client
    client.close()


@pytest.fixture(scope="module")
def connection(pgvector_url, texts, old_vectors):
    """The table that langchain-postgres writes, with an HNSW index, and one of halfvec."""
    columns = "embedding {}(256), document text, cmetadata jsonb, collection_id int"
    rows = [
        (f"d{row}", str(numbers.tolist()), text, json.dumps({"row": row}), row % 2)
        for row, (text, numbers) in enumerate(zip(texts.sentences, old_vectors, strict=False))
    ]
    with psycopg.connect(pgvector_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA cascade_client")
        for name, kind in (("documents", "vector"), ("halves", "halfvec")):
            table = f"cascade_client.{name}"
            connection.execute(
                f"CREATE TABLE {table} (id text PRIMARY KEY, {columns.format(kind)})"
            )
            with connection.cursor() as cursor:
                insert = f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s)"  # noqa: S608
                cursor.executemany(insert, rows)
        connection.execute(
            "CREATE INDEX ON cascade_client.documents USING hnsw (embedding vector_cosine_ops)"
        )
        yield connection
        connection.execute("DROP SCHEMA cascade_client CASCADE")


@pytest.fixture(params=["qdrant", "pgvector"])
def index(request, qdrant, connection):
    return {
        "qdrant": QdrantIndex(qdrant, "docs", using="text"),
        "pgvector": PgvectorIndex(connection, "cascade_client.halves", metadata="cmetadata"),
    }[request.param]


def test_the_order_is_that_of_the_translated_candidates(texts, index, old_vectors):
    how = {"mode": "cascade", "native": 0, "candidates": 60}
    cascade = Cascade(texts.client, index, **texts.pair, **how)
    translated = texts.client.translate(old_vectors, **texts.pair).vectors
    translated /= np.linalg.norm(translated, axis=1, keepdims=True)
    found = 0
    for row in range(20):
        question = texts.client.embed(texts.sentences[row], model="new", role="query")[0]
        cosines = translated @ question / np.linalg.norm(question)
        hits = cascade.search(texts.sentences[row], limit=8)
        rows = [hit.candidate.metadata["row"] for hit in hits]
        assert [hit.candidate.text for hit in hits] == [texts.sentences[each] for each in rows]
        np.testing.assert_allclose([h.score for h in hits], cosines[rows], rtol=0, atol=2e-3)
        assert [hit.score for hit in hits] == sorted((h.score for h in hits), reverse=True)
        found += row in rows
    assert found >= 16


def filter_of(index) -> object:
    """The filter of the rows with the number 3."""
    if isinstance(index, PgvectorIndex):
        return {"id": "d3"}
    return models.Filter(must=[models.HasIdCondition(has_id=[3])])


def test_the_retrievers_of_langchain_and_llamaindex_return_its_hits(texts, index):
    cascade = Cascade(texts.client, index, **texts.pair, options={"deadline_ms": 30_000})
    retriever = langchain.CascadeRetriever(cascade=cascade, k=4)
    found = retriever.invoke(texts.sentences[3])
    assert len(found) == 4
    assert texts.sentences[3] in {each.page_content for each in found}
    assert found[0].metadata["relevance_score"] > found[-1].metadata["relevance_score"]
    assert {"d3", "3"} & {each.id for each in found}
    assert asyncio.run(retriever.ainvoke(texts.sentences[3])) == found
    bare = langchain.CascadeRetriever(cascade=cascade, score_key=None)
    assert bare.invoke("card", k=2)[0].metadata.keys() == {"row"}
    [only] = bare.invoke("card", filter=filter_of(index))
    assert only.metadata["row"] == 3
    with pytest.raises(ValueError, match="`limit` is 0"):
        bare.invoke("card", k=0)
    asking = llamaindex.CascadeRetriever(cascade, k=4)
    for nodes in (
        asking.retrieve(texts.sentences[3]),
        asyncio.run(asking.aretrieve(texts.sentences[3])),
    ):
        assert [each.node.get_content() for each in nodes] == [each.page_content for each in found]
        assert nodes[0].score == found[0].metadata["relevance_score"]


QUESTION = "Where is my card?"


def test_fuse_mixes_in_the_old_score(texts, index):
    names = {**texts.pair, "candidates": 50}
    fused = Cascade(texts.client, index, **names)
    asked: list[str] = []

    def embed(model: str, text: str) -> list[float]:
        asked.append(text)
        return texts.client.embed(text, model=model, role="query")[0].tolist()

    own = {"embed_old": partial(embed, "old"), "embed_new": partial(embed, "new")}
    hits = fused.search(QUESTION, 5)
    again = Cascade(texts.client, index, **names, **own).search(QUESTION, 5)
    assert [hit.candidate.id for hit in again] == [hit.candidate.id for hit in hits]
    assert asked == [QUESTION] * 2
    old_only = Cascade(texts.client, index, **names, options={"weight": 0.0})
    assert [h.score for h in old_only.search(QUESTION, 5)] != [hit.score for hit in hits]


def test_nodes_that_llamaindex_stored_come_back_and_an_empty_index_has_none(
    texts, qdrant, old_vectors
):
    vector = models.VectorParams(size=256, distance=models.Distance.DOT)
    qdrant.create_collection("nodes", vectors_config=vector)
    cascade = Cascade(texts.client, QdrantIndex(qdrant, "nodes"), **texts.pair)
    assert cascade.search("card") == []
    for row, text in enumerate(texts.sentences[:30]):
        node = TextNode(id_=f"node-{row}", text=text, metadata={"row": row})
        point = {"vector": old_vectors[row].tolist(), "payload": node_to_metadata_dict(node)}
        qdrant.upsert("nodes", [models.PointStruct(id=row, **point)])
    found = llamaindex.CascadeRetriever(cascade, k=3).retrieve(texts.sentences[7])
    assert "node-7" in {each.node.node_id for each in found}
    assert found[0].node.metadata.keys() == {"row"}
    assert found[0].node.get_content() in texts.sentences


def test_an_hnsw_index_returns_more_rows_than_its_default(connection, old_vectors):
    connection.execute("SET enable_seqscan = off")
    try:
        index = PgvectorIndex(connection, "cascade_client.documents", text=None)
        assert len(index.search(old_vectors[0], 120)) == 120
        [[kept]] = connection.execute("SHOW hnsw.ef_search").fetchall()
        assert kept == "40"
    finally:
        connection.execute("RESET enable_seqscan")


def test_filters_of_an_index_hold_in_every_search(qdrant, connection, old_vectors):
    odd = models.Filter(must=[models.HasIdCondition(has_id=list(range(1, ROWS, 2)))])
    for index in (
        QdrantIndex(qdrant, "docs", using="text", metadata_key=None, query_filter=odd),
        PgvectorIndex(
            connection, "cascade_client.documents", metadata="cmetadata", equal={"collection_id": 1}
        ),
    ):
        rows = [each.metadata["row"] for each in index.search(old_vectors[2], ROWS)]
        assert sorted(rows) == list(range(1, ROWS, 2))
        assert [each.metadata["row"] for each in index.search(old_vectors[2], 9, filter_of(index))]


def test_threads_share_a_connection_or_a_pool_and_leave_no_transaction(
    connection, pgvector_url, old_vectors
):
    with psycopg_pool.ConnectionPool(pgvector_url, min_size=1, max_size=3) as pool:
        for shared in (connection, pool):
            index = PgvectorIndex(shared, "cascade_client.documents", metadata="cmetadata")
            with ThreadPoolExecutor(8) as threads:
                found = list(threads.map(partial(index.search, limit=5), old_vectors[:40]))
            assert [each[0].metadata["row"] for each in found] == list(range(40))
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_table_may_lack_vectors_and_a_connection_may_return_dictionaries(
    connection, pgvector_url, old_vectors
):
    connection.execute("CREATE TABLE cascade_client.some (LIKE cascade_client.documents)")
    connection.execute("INSERT INTO cascade_client.some SELECT * FROM cascade_client.documents")
    connection.execute("UPDATE cascade_client.some SET embedding = NULL WHERE collection_id = 1")
    with psycopg.connect(pgvector_url, row_factory=dict_row) as mapping:
        index = PgvectorIndex(mapping, "cascade_client.some", metadata="cmetadata")
        assert len(index.search(old_vectors[0], ROWS)) == ROWS // 2
        with pytest.raises(ValueError, match="column 'document' holds str"):
            PgvectorIndex(mapping, "cascade_client.some", metadata="document").search(
                old_vectors[0], 1
            )


def test_wrong_settings_are_refused_before_a_search(texts, qdrant, connection):
    with pytest.raises(ValueError, match="not found"):
        QdrantIndex(qdrant, "docs").search(np.zeros(256, np.float32), 3)
    with pytest.raises(ValueError, match="choose cosine, dot, euclidean"):
        PgvectorIndex(connection, "t", distance="l2")
    with pytest.raises(ValueError, match="has the columns id, "):
        PgvectorIndex(connection, "cascade_client.documents", text="body").search(np.ones(256), 3)
    index = QdrantIndex(qdrant, "docs", using="text", text_key="none")
    for fixed in ({"limit": 3}, {"native": 3}):
        with pytest.raises(ValueError, match="leave it out"):
            Cascade(texts.client, index, **texts.pair, options=fixed)
    for settings in ({"mode": "cascade"}, {"native": 0}):
        with pytest.raises(ValueError, match="Name an `anchor_set`"):
            Cascade(texts.client, index, "old", "new", **settings)
    with pytest.raises(ValueError, match="`text_key` of QdrantIndex"):
        langchain.CascadeRetriever(cascade=Cascade(texts.client, index, **texts.pair)).invoke(
            "card"
        )
    with pytest.raises(ValueError, match="`k` is 0"):
        llamaindex.CascadeRetriever(Cascade(texts.client, index, **texts.pair), k=0)
