from __future__ import annotations

import asyncio

import numpy as np
import pytest

from anchorage_client import AsyncClient

pytest.importorskip("llama_index.core")
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import TextNode

from anchorage_client.adapters.llamaindex import AnchorageEmbedding


def test_queries_and_texts_have_their_roles_in_both_worlds(texts):
    few = texts.sentences[:8]
    documents = texts.client.embed(few, model="new")
    query = texts.client.embed(few[:1], model="new", role="query")[0]
    model = AnchorageEmbedding("new", url=texts.url, embed_batch_size=3)

    async def ask() -> list[tuple[object, object, object]]:
        async with AsyncClient(texts.url) as remote:
            given = AnchorageEmbedding("new", url="http://127.0.0.1:9", async_client=remote)
            return [
                (
                    await each.aget_text_embedding_batch(few),
                    await each.aget_text_embedding(few[0]),
                    await each.aget_query_embedding(few[0]),
                )
                for each in (model, given)
            ]

    one, asked = model.get_text_embedding(few[0]), model.get_query_embedding(few[0])
    for answer in ((model.get_text_embedding_batch(few), one, asked), *asyncio.run(ask())):
        for found, expected in zip(answer, (documents, documents[0], query), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_an_index_of_llamaindex_is_searched_by_another_model(texts):
    some = texts.sentences[:40]
    nodes = [TextNode(id_=str(row), text=text) for row, text in enumerate(some)]
    pipeline = IngestionPipeline(transformations=[AnchorageEmbedding("old", url=texts.url)])
    index = VectorStoreIndex(
        pipeline.run(nodes=nodes), embed_model=AnchorageEmbedding(texts.translated, url=texts.url)
    )
    retriever = index.as_retriever(similarity_top_k=3)
    found = [{each.node.node_id for each in retriever.retrieve(text)} for text in some]
    assert np.mean([str(row) in few for row, few in enumerate(found)]) > 0.9


def test_a_dictionary_has_no_key_and_makes_the_same_model(texts):
    model = AnchorageEmbedding("old", url=texts.url, api_key="anc_secret", timeout=9)
    assert "anc_secret" not in model.to_json() + repr(model) + str(model.to_payload())
    again = AnchorageEmbedding.from_dict(model.to_dict(), api_key="anc_other")
    assert (again.model_name, again.url, again.timeout) == ("old", texts.url, 9)
