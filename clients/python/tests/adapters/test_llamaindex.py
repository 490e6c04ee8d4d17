from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest

from anchorage_client import AsyncClient

pytest.importorskip("llama_index.core")
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import TextNode

from anchorage_client.adapters.llamaindex import AnchorageEmbedding


def test_queries_and_texts_have_their_roles(texts):
    model = AnchorageEmbedding("new", url=texts.url, embed_batch_size=3)
    few = texts.sentences[:8]
    documents = texts.client.embed(few, model="new")
    query = texts.client.embed(few[:1], model="new", role="query")[0]
    np.testing.assert_allclose(model.get_text_embedding_batch(few), documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.get_text_embedding(few[0]), documents[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.get_query_embedding(few[0]), query, rtol=0, atol=1e-5)
    assert np.abs(query - documents[0]).max() > 1e-3


def test_asynchronous_calls_answer_the_same_with_and_without_a_client(texts):
    few = texts.sentences[:5]
    expected = texts.client.embed(few, model=texts.translated)

    async def run() -> None:
        async with AsyncClient(texts.url) as remote:
            for url, client in ((texts.url, None), ("http://127.0.0.1:9", remote)):
                model = AnchorageEmbedding(texts.translated, url=url, async_client=client)
                batch = await model.aget_text_embedding_batch(few)
                one = await model.aget_text_embedding(few[0])
                np.testing.assert_allclose([*batch, one], expected[[*range(5), 0]], atol=1e-5)
                query = await model.aget_query_embedding(few[0])
                np.testing.assert_allclose(
                    [query],
                    texts.client.embed(few[:1], model=texts.translated, role="query"),
                    atol=1e-5,
                )

    asyncio.run(run())


def test_an_index_of_llamaindex_is_searched_by_another_model(texts):
    some = texts.sentences[:40]
    nodes = [TextNode(id_=str(row), text=text) for row, text in enumerate(some)]
    pipeline = IngestionPipeline(transformations=[AnchorageEmbedding("old", url=texts.url)])
    index = VectorStoreIndex(
        pipeline.run(nodes=nodes), embed_model=AnchorageEmbedding(texts.translated, url=texts.url)
    )
    retriever = index.as_retriever(similarity_top_k=3)
    hits = [
        str(row) in {found.node.node_id for found in retriever.retrieve(text)}
        for row, text in enumerate(some)
    ]
    assert np.mean(hits) > 0.9


def test_a_dictionary_has_no_key_and_makes_the_same_model(texts):
    model = AnchorageEmbedding("old", url=texts.url, api_key="anc_secret", timeout=9)
    assert "anc_secret" not in model.to_json() + repr(model) + str(model.to_payload())
    again = AnchorageEmbedding.from_dict(model.to_dict(), api_key="anc_other")
    assert (again.model_name, again.url, again.timeout) == ("old", texts.url, 9)
    expected = model.get_text_embedding("I lost my card.")
    for other in (again, pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert other.get_text_embedding("I lost my card.") == pytest.approx(expected, abs=1e-6)
    model.close()
