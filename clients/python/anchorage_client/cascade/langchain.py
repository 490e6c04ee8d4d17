"""LangChain: a retriever that searches an old index with a new encoder. Needs langchain-core."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from anchorage_client.cascade.search import Cascade


class CascadeRetriever(BaseRetriever):
    """Documents of an old index, ranked by a new encoder.

    Asynchronous calls run in a thread. `invoke` takes `k` and `filter` for one call, as the
    retrievers of vector stores do.

    k          documents of an answer
    score_key  where a document's metadata hold its score; None: nowhere
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    cascade: Cascade
    k: int = Field(10, ge=1)
    score_key: str | None = "relevance_score"

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        hits = self.cascade.search(query, self.k if k is None else k, filter)
        if hits and not any(hit.candidate.text for hit in hits):
            raise ValueError(
                "No item found has a text. Name the key or the column that holds it: `text_key` "
                "of QdrantIndex, `text` of PgvectorIndex."
            )
        return [
            Document(
                hit.candidate.text,
                id=str(hit.candidate.id),
                metadata={
                    **hit.candidate.metadata,
                    **({} if self.score_key is None else {self.score_key: hit.score}),
                },
            )
            for hit in hits
        ]
