from __future__ import annotations

import asyncio

import numpy as np
import pytest

dspy = pytest.importorskip("dspy")

from anchorage_client.adapters.dspy import AnchorageEmbedder  # noqa: E402


def test_one_text_is_a_vector_and_many_are_a_matrix(texts):
    few = texts.sentences[:7]
    documents = texts.client.embed(few, model="new")
    query = texts.client.embed(few[0], model="new", role="query")[0]
    embedder = AnchorageEmbedder("new", url=texts.url, batch_size=3)
    np.testing.assert_allclose(embedder(few), documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(asyncio.run(embedder.acall(few)), documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(embedder(few[0]), documents[0], rtol=0, atol=1e-5)
    asking = AnchorageEmbedder("new", url=texts.url, role="query")
    np.testing.assert_allclose(asking(few[0]), query, rtol=0, atol=1e-5)
    embedder.close()


def test_the_cache_keeps_models_and_roles_apart(texts, tmp_path, monkeypatch):
    cache = dspy.clients.Cache(True, True, str(tmp_path))
    monkeypatch.setattr(dspy, "cache", cache)
    made = {
        (model, role): AnchorageEmbedder(model, url=texts.url, role=role, caching=True)
        for model in ("old", "new")
        for role in ("document", "query")
    }
    first = {names: embedder("I lost my card.") for names, embedder in made.items()}
    assert len(cache.memory_cache) == 4
    assert {len(vector) for vector in first.values()} == {256, 384}
    for names, embedder in made.items():
        monkeypatch.setattr(embedder.model._texts, "embed", None)  # a request would fail
        np.testing.assert_array_equal(embedder("I lost my card."), first[names])
    for shard in cache.disk_cache._shards:
        shard.close()


def test_a_retriever_of_dspy_finds_texts(texts):
    some = texts.sentences[:40]
    search = dspy.retrievers.Embeddings(
        some, AnchorageEmbedder("new", url=texts.url), k=1, brute_force_threshold=1_000, cache=False
    )
    assert np.mean([search(text).passages == [text] for text in some]) > 0.9


def test_a_retriever_of_dspy_asks_with_its_second_embedder(texts, monkeypatch):
    some = texts.sentences[:40]
    search = dspy.retrievers.Embeddings(some, AnchorageEmbedder("new", url=texts.url), k=1)
    search.embedder = AnchorageEmbedder("new", url=texts.url, role="query")
    query = texts.client.embed(some[0], model="new", role="query")[0]
    np.testing.assert_allclose(search.embedder([some[0]])[0], query, rtol=0, atol=1e-5)
    assert np.mean([search(text).passages == [text] for text in some]) > 0.9
