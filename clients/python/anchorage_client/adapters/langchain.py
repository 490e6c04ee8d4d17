"""LangChain: `Embeddings` of a model of the service. Needs langchain-core."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from anchorage_client import AsyncClient
from anchorage_client.adapters.text_model import BATCH_SIZE, URL, TextModel, to_lists


class AnchorageEmbeddings(Embeddings):
    """Embeddings for LangChain.

    model         an encoder, `encoder->target@anchor-set`, or the name (name) of a store
    url           address of the service
    api_key       of the service; None: ANCHORAGE_API_KEY, if it is set
    batch_size    most texts of one request
    timeout       seconds for one request
    async_client  sends the asynchronous requests; its owner closes it. None: a thread sends them.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str = URL,
        api_key: str | None = None,
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
        async_client: AsyncClient | None = None,
    ) -> None:
        self.model = model
        self._texts = TextModel(
            model,
            url=url,
            api_key=api_key,
            batch_size=batch_size,
            timeout=timeout,
            async_client=async_client,
        )

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._texts.close()

    @property
    def _current(self) -> TextModel:
        self._texts = self._texts.with_settings(model=self.model)
        return self._texts

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents."""
        return to_lists(self._current.embed(texts, "document"))

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return to_lists(self._current.embed([text], "query"))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents, without blocking the event loop."""
        return to_lists(await self._current.aembed(texts, "document"))

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of a query, without blocking the event loop."""
        return to_lists(await self._current.aembed([text], "query"))[0]
