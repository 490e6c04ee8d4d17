"""LlamaIndex: a retriever that searches an old index with a new encoder. Needs llama-index-core."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from anchorage_client.cascade.indexes import Candidate
from anchorage_client.cascade.search import Cascade

#: where LlamaIndex' vector stores keep a node, within a payload or a column of metadata
NODE_KEY = "_node_content"


class CascadeRetriever(BaseRetriever):
    """Nodes of an old index, ranked by a new encoder.

    k  nodes of an answer
    """

    def __init__(self, cascade: Cascade, *, k: int = 10, **fields: Any) -> None:
        if k < 1:
            raise ValueError(f"`k` is {k}: an answer has at least one node.")
        super().__init__(**fields)
        self._cascade = cascade
        self._k = k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=_node(hit.candidate), score=hit.score)
            for hit in self._cascade.search(query_bundle.query_str, self._k)
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(candidate: Candidate) -> BaseNode:
    """Return the node that LlamaIndex stored, or a new one of the candidate's text."""
    for stored in (candidate.payload, candidate.metadata):
        if NODE_KEY in stored:
            return metadata_dict_to_node(stored, text=candidate.text or None)
    return TextNode(id_=str(candidate.id), text=candidate.text, metadata=candidate.metadata)
