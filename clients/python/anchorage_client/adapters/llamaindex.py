"""LlamaIndex: a `BaseEmbedding` of a model of the service. Needs llama-index-core."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import Field, PrivateAttr, SecretStr

from anchorage_client import AsyncClient
from anchorage_client.adapters.text_model import BATCH_SIZE, URL, TextModel, to_lists


class AnchorageEmbedding(BaseEmbedding):
    """An embedding model for LlamaIndex. The parameters are those of `TextModel`.

    `embed_batch_size` is LlamaIndex' name of `batch_size`.
    `to_dict` leaves the API key out: pass it to `from_dict` again.
    Raises TypeError for a keyword that is no field.
    """

    url: str = URL
    timeout: float = 60.0
    api_key: SecretStr | None = Field(None, exclude=True)
    _texts: TextModel = PrivateAttr()

    def __init__(
        self,
        model_name: str,
        *,
        url: str = URL,
        api_key: str | SecretStr | None = None,
        embed_batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
        async_client: AsyncClient | None = None,
        **fields: Any,
    ) -> None:
        unknown = sorted(set(fields) - {*type(self).model_fields, "class_name"})
        if unknown:
            raise TypeError(f"AnchorageEmbedding has no parameter {', '.join(unknown)}.")
        super().__init__(
            model_name=model_name,
            url=url,
            api_key=api_key,
            embed_batch_size=embed_batch_size,
            timeout=timeout,
            **fields,
        )
        self._texts = TextModel(model_name, async_client=async_client)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex stores the model."""
        return "AnchorageEmbedding"

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._texts.close()

    @property
    def _current(self) -> TextModel:
        # The fields may have changed, and `model_copy` shares `_texts`.
        self._texts = self._texts.with_settings(
            model=self.model_name,
            url=self.url,
            api_key=None if self.api_key is None else self.api_key.get_secret_value(),
            batch_size=self.embed_batch_size,
            timeout=self.timeout,
        )
        return self._texts

    def _get_query_embedding(self, query: str) -> list[float]:
        return to_lists(self._current.embed([query], "query"))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return to_lists(await self._current.aembed([query], "query"))[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return to_lists(self._current.embed(texts, "document"))

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return to_lists(await self._current.aembed(texts, "document"))
