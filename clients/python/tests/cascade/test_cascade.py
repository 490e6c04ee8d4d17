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
from psycopg import sql
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
    """The points that langchain-qdrant writes, with the vector under a name too."""
    client = QdrantClient(":memory:")
    vector = models.VectorParams(size=256, distance=models.Distance.DOT)
    client.create_collection("plain", vectors_config=vector)
    client.create_collection("named", vectors_config={"text": vector, "other": vector})
    points = [
        (row, numbers.tolist(), {"page_content": text, "metadata": {"row": row}})
        for row, (text, numbers) in enumerate(zip(texts.sentences, old_vectors, strict=False))
    ]
    client.upsert("plain", [models.PointStruct(id=i, vector=v, payload=p) for i, v, p in points])
    client.upsert(
        "named",
        [
            models.PointStruct(
                id=i,
                vector={"text": v, "other": v[::-1]},
                payload={"text": p["page_content"], "row": i},
            )
            for i, v, p in points
        ],
    )
    yield client
    client.close()


@pytest.fixture(scope="module")
def connection(pgvector_url, texts, old_vectors):
    """The table that langchain-postgres writes, with an HNSW index, and one of halfvec."""
    with psycopg.connect(pgvector_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA cascade_client")
        for name, kind in (("documents", "vector"), ("halves", "halfvec")):
            table = sql.Identifier("cascade_client", name)
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (id text PRIMARY KEY, embedding {}(256), document text, "
                    "cmetadata jsonb, collection_id int)"
                ).format(table, sql.SQL(kind))
            )
            with connection.cursor() as cursor:
                cursor.executemany(
                    sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s)").format(table),
                    [
                        (f"d{row}", str(numbers.tolist()), text, json.dumps({"row": row}), row % 2)
                        for row, (text, numbers) in enumerate(
                            zip(texts.sentences, old_vectors, strict=False)
                        )
                    ],
                )
        connection.execute(
            "CREATE INDEX ON cascade_client.documents USING hnsw (embedding vector_cosine_ops)"
        )
        yield connection
        connection.execute("DROP SCHEMA cascade_client CASCADE")


@pytest.fixture(params=["qdrant", "pgvector"])
def index(request, qdrant, connection):
    return {
        "qdrant": QdrantIndex(qdrant, "named", using="text", text_key="text", metadata_key=None),
        "pgvector": PgvectorIndex(connection, "cascade_client.halves", metadata="cmetadata"),
    }[request.param]


def test_the_order_is_that_of_the_translated_candidates(texts, index, old_vectors):
    cascade = Cascade(texts.client, index, **texts.pair, candidates=60)
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


def test_the_retriever_of_langchain(texts, index):
    cascade = Cascade(texts.client, index, **texts.pair)
    retriever = langchain.CascadeRetriever(cascade=cascade, k=4)
    found = retriever.invoke(texts.sentences[3])
    assert len(found) == 4
    assert texts.sentences[3] in {each.page_content for each in found}
    assert found[0].metadata["relevance_score"] > found[-1].metadata["relevance_score"]
    assert {"d3", "3"} & {each.id for each in found}
    assert asyncio.run(retriever.ainvoke(texts.sentences[3])) == found
    bare = langchain.CascadeRetriever(cascade=cascade, score_key=None).invoke("card")
    assert len(bare) == 10
    assert bare[0].metadata.keys() == {"row"}


def test_the_retriever_of_llamaindex(texts, index):
    retriever = llamaindex.CascadeRetriever(Cascade(texts.client, index, **texts.pair), k=4)
    found = retriever.retrieve(texts.sentences[5])
    assert texts.sentences[5] in {each.node.get_content() for each in found}
    assert found[0].score > found[-1].score
    again = asyncio.run(retriever.aretrieve(texts.sentences[5]))
    assert [each.node.node_id for each in again] == [each.node.node_id for each in found]


def test_fuse_mixes_in_the_old_score(texts, index):
    names = {**texts.pair, "mode": "fuse", "candidates": 50}
    fused = Cascade(texts.client, index, **names)
    found = sum(
        row in {hit.candidate.metadata["row"] for hit in fused.search(texts.sentences[row], 3)}
        for row in range(20)
    )
    assert found >= 18
    asked: list[str] = []

    def embed_old(text: str) -> list[float]:
        asked.append(text)
        return texts.client.embed(text, model="old", role="query")[0].tolist()

    def embed_new(text: str) -> list[float]:
        asked.append(text)
        return texts.client.embed(text, model="new", role="query")[0].tolist()

    given = Cascade(texts.client, index, **names, embed_old=embed_old, embed_new=embed_new)
    one, other = (each.search("Where is my card?", 5) for each in (given, fused))
    assert [hit.candidate.id for hit in one] == [hit.candidate.id for hit in other]
    assert asked == ["Where is my card?"] * 2
    old_only = Cascade(texts.client, index, **names, options={"weight": 0.0})
    scores = [hit.score for hit in old_only.search("Where is my card?", 5)]
    assert scores != [hit.score for hit in other]


QUESTION = "Where is my card?"
#: native scores without a deadline that a busy machine misses
NATIVE = {"native": 20, "options": {"native_deadline_ms": 30_000}}


def native_cosines(texts):
    """The cosines of the question and all rows by the new encoder itself."""
    question = texts.client.embed(QUESTION, model="new", role="query")[0]
    return texts.client.embed(texts.sentences[:ROWS], model="new", role="document") @ question


def fused_rows(texts, old_vectors):
    """The first 20 rows by the old encoder, ordered by old and native scores."""
    old = old_vectors @ texts.client.embed(QUESTION, model="old", role="query")[0]
    old /= np.linalg.norm(old_vectors, axis=1)
    block = np.argsort(-old, kind="stable")[:20]
    scores = [each[block] for each in (old, native_cosines(texts))]
    fused = sum((each - each.mean()) / each.std() for each in scores)
    return block[np.argsort(-fused, kind="stable")].tolist()


def test_old_and_native_scores_need_no_anchors(texts, index, old_vectors):
    cascade = Cascade(texts.client, index, "old", "new", mode="fuse", **NATIVE)
    expected = fused_rows(texts, old_vectors)
    retriever = langchain.CascadeRetriever(cascade=cascade, k=25)
    found = retriever.invoke(QUESTION)
    assert [each.metadata["row"] for each in found[:20]] == expected
    assert len({each.metadata["row"] for each in found}) == 25
    assert asyncio.run(retriever.ainvoke(QUESTION)) == found
    nodes = llamaindex.CascadeRetriever(cascade, k=4).retrieve(QUESTION)
    assert [each.node.get_content() for each in nodes] == [
        texts.sentences[row] for row in expected[:4]
    ]
    [only] = retriever.invoke(QUESTION, filter=filter_of(index))
    assert only.metadata["row"] == 3


def test_an_old_encoder_outside_the_service_embeds_its_queries_itself(texts, qdrant, old_vectors):
    texts.client.encoders.create("elsewhere", dim=256)

    def embed_old(text: str) -> list[float]:
        return texts.client.embed(text, model="old", role="query")[0].tolist()

    index = QdrantIndex(qdrant, "plain")
    names = {"source": "elsewhere", "target": "new", "mode": "fuse", **NATIVE}
    found = Cascade(texts.client, index, **names, embed_old=embed_old).search(QUESTION, 20)
    rows = [hit.candidate.metadata["row"] for hit in found]
    assert rows == fused_rows(texts, old_vectors)


def test_nodes_that_llamaindex_stored_come_back(texts, qdrant, old_vectors):
    vector = models.VectorParams(size=256, distance=models.Distance.DOT)
    qdrant.create_collection("nodes", vectors_config=vector)
    nodes = [
        TextNode(id_=f"node-{row}", text=text, metadata={"row": row})
        for row, text in enumerate(texts.sentences[:30])
    ]
    points = [
        models.PointStruct(
            id=row, vector=old_vectors[row].tolist(), payload=node_to_metadata_dict(node)
        )
        for row, node in enumerate(nodes)
    ]
    qdrant.upsert("nodes", points)
    cascade = Cascade(texts.client, QdrantIndex(qdrant, "nodes"), **texts.pair)
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


def test_an_empty_index_and_a_missing_name(texts, qdrant):
    vector = models.VectorParams(size=256, distance=models.Distance.DOT)
    qdrant.create_collection("empty", vectors_config=vector)
    assert Cascade(texts.client, QdrantIndex(qdrant, "empty"), **texts.pair).search("card") == []
    with pytest.raises(ValueError, match="not found"):
        QdrantIndex(qdrant, "named").search(np.zeros(256, np.float32), 3)


def filter_of(index) -> object:
    """The filter of the rows with the number 3."""
    if isinstance(index, PgvectorIndex):
        return {"id": "d3"}
    return models.Filter(must=[models.HasIdCondition(has_id=[3])])


def test_a_call_may_bring_a_filter_and_a_number(texts, index):
    retriever = langchain.CascadeRetriever(cascade=Cascade(texts.client, index, **texts.pair))
    [only] = retriever.invoke("card", filter=filter_of(index))
    assert only.metadata["row"] == 3
    assert len(retriever.invoke("card", k=2)) == 2
    with pytest.raises(ValueError, match="`limit` is 0"):
        retriever.invoke("card", k=0)


def test_filters_of_an_index_hold_in_every_search(qdrant, connection, old_vectors):
    odd = models.Filter(must=[models.HasIdCondition(has_id=list(range(1, ROWS, 2)))])
    for index in (
        QdrantIndex(qdrant, "plain", query_filter=odd),
        PgvectorIndex(
            connection, "cascade_client.documents", metadata="cmetadata", equal={"collection_id": 1}
        ),
    ):
        rows = [each.metadata["row"] for each in index.search(old_vectors[2], ROWS)]
        assert sorted(rows) == list(range(1, ROWS, 2))
        assert [each.metadata["row"] for each in index.search(old_vectors[2], 9, filter_of(index))]


def test_threads_share_a_connection_or_a_pool_and_leave_no_transaction(
    texts, connection, pgvector_url, old_vectors
):
    with psycopg_pool.ConnectionPool(pgvector_url, min_size=1, max_size=3) as pool:
        for shared in (connection, pool):
            index = PgvectorIndex(shared, "cascade_client.documents", metadata="cmetadata")
            with ThreadPoolExecutor(8) as threads:
                found = list(threads.map(partial(index.search, limit=5), old_vectors[:100]))
            assert [each[0].metadata["row"] for each in found[:20]] == list(range(20))
            cascade = Cascade(texts.client, index, **texts.pair)
            batch = langchain.CascadeRetriever(cascade=cascade).batch(texts.sentences[:12])
            assert all(len(each) == 10 for each in batch)
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
    with pytest.raises(ValueError, match="choose cosine, dot, euclidean"):
        PgvectorIndex(connection, "t", distance="l2")
    index = QdrantIndex(qdrant, "named", using="text", metadata_key=None)
    for fixed in ({"limit": 3}, {"native": 3}):
        with pytest.raises(ValueError, match="leave it out"):
            Cascade(texts.client, index, **texts.pair, options=fixed)
    for settings in ({}, {"mode": "fuse"}, {"native": 20}):
        with pytest.raises(ValueError, match="Name an `anchor_set`"):
            Cascade(texts.client, index, "old", "new", **settings)
    with pytest.raises(ValueError, match="`text_key` of QdrantIndex"):
        langchain.CascadeRetriever(cascade=Cascade(texts.client, index, **texts.pair)).invoke(
            "card"
        )
    with pytest.raises(ValueError, match="`k` is 0"):
        llamaindex.CascadeRetriever(Cascade(texts.client, index, **texts.pair), k=0)
