from __future__ import annotations

import asyncio
import copy
import pickle

import numpy as np
import pytest

from anchorage_client import AsyncClient, NotFoundError

pytest.importorskip("langchain_core")
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from anchorage_client.adapters.langchain import AnchorageEmbeddings


def test_queries_and_documents_have_their_roles(texts):
    embeddings = AnchorageEmbeddings("new", url=texts.url, batch_size=3)
    few = texts.sentences[:8]
    documents = texts.client.embed(few, model="new")
    query = texts.client.embed(few[:1], model="new", role="query")
    assert np.abs(documents[:1] - query).max() > 1e-3
    np.testing.assert_allclose(embeddings.embed_documents(few), documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose([embeddings.embed_query(few[0])], query, rtol=0, atol=1e-5)
    assert embeddings.embed_documents([]) == []
    assert isinstance(embeddings.embed_query("I lost my card.")[0], float)


def test_asynchronous_calls_answer_the_same_with_and_without_a_client(texts):
    few = texts.sentences[:5]
    expected = texts.client.embed(few, model=texts.translated)
    query = texts.client.embed(few[:1], model=texts.translated, role="query")

    async def answers(embeddings: AnchorageEmbeddings) -> None:
        found, asked = await asyncio.gather(
            embeddings.aembed_documents(few), embeddings.aembed_query(few[0])
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose([asked], query, rtol=0, atol=1e-5)

    async def run() -> None:
        await answers(AnchorageEmbeddings(texts.translated, url=texts.url))
        async with AsyncClient(texts.url) as remote:
            await answers(
                AnchorageEmbeddings(
                    texts.translated, url="http://127.0.0.1:9", batch_size=2, async_client=remote
                )
            )

    asyncio.run(run())


def test_a_vector_store_of_langchain_finds_each_text(texts):
    some = texts.sentences[:40]
    store = InMemoryVectorStore(AnchorageEmbeddings("old", url=texts.url))
    store.add_documents([Document(text) for text in some])
    store.embedding = AnchorageEmbeddings(texts.translated, url=texts.url)  # the new model
    found = [store.similarity_search(text, k=3) for text in some]
    hits = [
        text in {each.page_content for each in few} for text, few in zip(some, found, strict=True)
    ]
    assert np.mean(hits) > 0.9


def test_a_copy_and_a_pickle_open_their_own_connections(texts):
    embeddings = AnchorageEmbeddings("old", url=texts.url)
    expected = embeddings.embed_query("I lost my card.")
    for other in (copy.deepcopy(embeddings), pickle.loads(pickle.dumps(embeddings))):  # noqa: S301
        assert other.embed_query("I lost my card.") == pytest.approx(expected, abs=1e-6)
        other.close()
        assert other.embed_query("I lost my card.") == pytest.approx(expected, abs=1e-6)


def test_mistakes_are_errors(texts):
    with pytest.raises(NotFoundError):
        AnchorageEmbeddings("missing", url=texts.url).embed_query("text")
    with pytest.raises(ValueError, match="batch_size"):
        AnchorageEmbeddings("old", batch_size=0)
