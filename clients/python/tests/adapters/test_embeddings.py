"""The embeddings of LangChain and LlamaIndex."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from anchorage_client import AsyncClient


def of_langchain(**options: Any) -> tuple[Any, ...]:
    pytest.importorskip("langchain_core")
    from anchorage_client.adapters.langchain import AnchorageEmbeddings

    made = AnchorageEmbeddings("new", batch_size=3, **options)
    return made.embed_documents, made.embed_query, made.aembed_documents, made.aembed_query


def of_llamaindex(**options: Any) -> tuple[Any, ...]:
    pytest.importorskip("llama_index.core")
    from anchorage_client.adapters.llamaindex import AnchorageEmbedding

    made = AnchorageEmbedding("new", embed_batch_size=3, **options)
    later = made.aget_text_embedding_batch, made.aget_query_embedding
    return made.get_text_embedding_batch, made.get_query_embedding, *later


@pytest.mark.parametrize("make", [of_langchain, of_llamaindex])
def test_queries_and_documents_have_their_roles_in_both_worlds(texts, make):
    few = texts.sentences[:8]
    documents = texts.client.embed(few, model="new")
    query = texts.client.embed(few[:1], model="new", role="query")
    assert np.abs(documents[:1] - query).max() > 1e-3
    embed, ask, *later = make(url=texts.url)
    assert embed([]) == []

    async def both() -> list[tuple[Any, Any]]:
        async with AsyncClient(texts.url) as remote:
            *_, embed, ask = make(url="http://127.0.0.1:9", async_client=remote)
            ways = (later, (embed, ask))
            return [(await aembed(few), await aask(few[0])) for aembed, aask in ways]

    for found, asked in ((embed(few), ask(few[0])), *asyncio.run(both())):
        np.testing.assert_allclose(found, documents, rtol=0, atol=1e-5)
        np.testing.assert_allclose([asked], query, rtol=0, atol=1e-5)


def test_one_text_of_llamaindex_and_a_dictionary_without_the_key(texts):
    pytest.importorskip("llama_index.core")
    from anchorage_client.adapters.llamaindex import AnchorageEmbedding

    model = AnchorageEmbedding("old", url=texts.url, api_key="anc_secret", timeout=9)
    assert "anc_secret" not in model.to_json() + repr(model) + str(model.to_payload())
    again = AnchorageEmbedding.from_dict(model.to_dict(), api_key="anc_other")
    assert (again.model_name, again.url, again.timeout) == ("old", texts.url, 9)
    [expected] = texts.client.embed(texts.sentences[:1], model="old")
    for one in (
        model.get_text_embedding(texts.sentences[0]),
        asyncio.run(model.aget_text_embedding(texts.sentences[0])),
    ):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-5)
