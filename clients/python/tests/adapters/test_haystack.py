from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("haystack")
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from anchorage_client.adapters.haystack import AnchorageDocumentEmbedder, AnchorageTextEmbedder


def test_pipelines_write_with_one_model_and_search_with_another(texts):
    some = texts.sentences[:40]
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    writing = Pipeline()
    writing.add_component("embed", AnchorageDocumentEmbedder("old", url=texts.url, batch_size=16))
    writing.add_component("write", DocumentWriter(store))
    writing.connect("embed.documents", "write.documents")
    writing.run({"embed": {"documents": [Document(content=text) for text in some]}})

    search = Pipeline()
    search.add_component("embed", AnchorageTextEmbedder(texts.translated, url=texts.url))
    search.add_component("search", InMemoryEmbeddingRetriever(store, top_k=3))
    search.connect("embed.embedding", "search.query_embedding")
    again = Pipeline.loads(search.dumps(), allowed_modules=["anchorage_client"])
    assert again.to_dict() == search.to_dict()
    hits = []
    for text in some:
        found = search.run({"embed": {"text": text}})["search"]["documents"]
        hits.append(text in {each.content for each in found})
    assert np.mean(hits) > 0.9


def test_texts_and_documents_have_their_roles(texts):
    few = texts.sentences[:3]
    documents = [Document(content=text, meta={"title": "Card"}) for text in few]
    embedder = AnchorageDocumentEmbedder(
        "new", url=texts.url, batch_size=2, meta_fields_to_embed=["title", "missing"]
    )
    expected = texts.client.embed([f"Card\n{text}" for text in few], model="new")
    query = texts.client.embed(few[:1], model="new", role="query")[0]
    asking = AnchorageTextEmbedder("new", url=texts.url)

    async def run() -> tuple[dict, dict]:
        return await embedder.run_async(documents), await asking.run_async(few[0])

    for embedded, asked in ((embedder.run(documents), asking.run(few[0])), asyncio.run(run())):
        found = [each.embedding for each in embedded["documents"]]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(asked["embedding"], query, rtol=0, atol=1e-5)
        assert embedded["meta"] == asked["meta"] == {"model": "new"}
    assert documents[0].embedding is None
    assert embedder.run([])["documents"] == []
    embedder.close()


@pytest.mark.parametrize("kind", [AnchorageTextEmbedder, AnchorageDocumentEmbedder])
def test_a_dictionary_names_the_variable_of_the_key(kind, monkeypatch):
    monkeypatch.setenv("MY_KEY", "anc_secret")
    embedder = kind("old", url="http://host:1", api_key=Secret.from_env_var("MY_KEY"), timeout=9)
    data = embedder.to_dict()
    assert "anc_secret" not in str(data)
    assert kind.from_dict(data).to_dict() == data
    assert data["init_parameters"]["model"] == "old"
    with pytest.raises(ValueError, match="token-based"):
        kind("old", api_key=Secret.from_token("anc_secret")).to_dict()


def test_other_types_are_refused():
    with pytest.raises(TypeError, match=r"Secret\.from_env_var"):
        AnchorageTextEmbedder("old", api_key="anc_x")
    with pytest.raises(TypeError, match="AnchorageDocumentEmbedder"):
        AnchorageTextEmbedder("old").run([Document(content="a")])
    with pytest.raises(TypeError, match="AnchorageTextEmbedder"):
        AnchorageDocumentEmbedder("old").run("text")
