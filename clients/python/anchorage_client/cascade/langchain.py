"""LangChain: a retriever that searches an old index with a new encoder. Needs langchain-core."""

from __future__ import annotations

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from anchorage_client.cascade.search import Cascade


class CascadeRetriever(BaseRetriever):
    """Documents of an old index, ranked by a new encoder.

    Asynchronous calls run in a thread.

    k          documents of an answer
    score_key  where a document's metadata hold its score; None: nowhere
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    cascade: Cascade
    k: int = 10
    score_key: str | None = "score"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(
                hit.candidate.text,
                id=str(hit.candidate.id),
                metadata={
                    **hit.candidate.metadata,
                    **({} if self.score_key is None else {self.score_key: hit.score}),
                },
            )
            for hit in self.cascade.search(query, self.k)
        ]
