from __future__ import annotations

import asyncio

import numpy as np
import pytest

from anchorage_client import AsyncClient

pytest.importorskip("langchain_core")
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from anchorage_client.adapters.langchain import AnchorageEmbeddings


def test_queries_and_documents_have_their_roles_in_both_worlds(texts):
    few = texts.sentences[:8]
    documents = texts.client.embed(few, model="new")
    query = texts.client.embed(few[:1], model="new", role="query")
    assert np.abs(documents[:1] - query).max() > 1e-3
    embeddings = AnchorageEmbeddings("new", url=texts.url, batch_size=3)
    assert embeddings.embed_documents([]) == []

    async def ask() -> list[tuple[object, object]]:
        async with AsyncClient(texts.url) as remote:
            given = AnchorageEmbeddings("new", url="http://127.0.0.1:9", async_client=remote)
            return [
                (await each.aembed_documents(few), await each.aembed_query(few[0]))
                for each in (embeddings, given)
            ]

    answers = [(embeddings.embed_documents(few), embeddings.embed_query(few[0]))]
    for found, asked in (*answers, *asyncio.run(ask())):
        np.testing.assert_allclose(found, documents, rtol=0, atol=1e-5)
        np.testing.assert_allclose([asked], query, rtol=0, atol=1e-5)


def test_a_vector_store_of_langchain_finds_each_text(texts):
    some = texts.sentences[:40]
    store = InMemoryVectorStore(AnchorageEmbeddings("old", url=texts.url))
    store.add_documents([Document(text) for text in some])
    store.embedding = AnchorageEmbeddings(texts.translated, url=texts.url)  # the new model
    found = [{each.page_content for each in store.similarity_search(text, k=3)} for text in some]
    assert np.mean([text in few for text, few in zip(some, found, strict=True)]) > 0.9
