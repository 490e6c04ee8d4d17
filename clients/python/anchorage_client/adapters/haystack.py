"""Haystack: embedders of texts and of documents by a model of the service. Needs haystack-ai."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret

from anchorage_client.adapters.text_model import BATCH_SIZE, URL, TextModel, to_lists

#: the key of the environment, where there is one
KEY = Secret.from_env_var("ANCHORAGE_API_KEY", strict=False)


class _Embedder:
    """What both embedders share: their settings, as Haystack stores them."""

    def __init__(
        self,
        model: str,
        url: str = URL,
        api_key: Secret | None = KEY,
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
        **settings: Any,
    ) -> None:
        self.model = model
        self._settings = {
            "model": model,
            "url": url,
            "api_key": api_key,
            "batch_size": batch_size,
            "timeout": timeout,
            **settings,
        }
        self._texts = TextModel(
            model,
            url=url,
            api_key=None if api_key is None else api_key.resolve_value(),
            batch_size=batch_size,
            timeout=timeout,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, with the name of the key's variable and not the key."""
        return default_to_dict(self, **self._settings)

    def close(self) -> None:
        """Close the connection. The next run opens another."""
        self._texts.close()


@component
class AnchorageTextEmbedder(_Embedder):
    """Embeds a query. The parameters are those of `TextModel`; the key is a `Secret`."""

    def __init__(
        self,
        model: str,
        url: str = URL,
        api_key: Secret | None = KEY,
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
    ) -> None:
        # `super()` fails here: @component replaces the class.
        _Embedder.__init__(self, model, url, api_key, batch_size, timeout)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnchorageTextEmbedder:
        """Return the embedder that `to_dict` described."""
        embedder: AnchorageTextEmbedder = default_from_dict(cls, data)
        return embedder

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Return the query's `embedding`. Raises TypeError unless `text` is a string."""
        [vector] = to_lists(self._texts.embed([_checked(text)], "query"))
        return {"embedding": vector, "meta": {"model": self.model}}

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """Return what `run` returns, without blocking the event loop."""
        [vector] = to_lists(await self._texts.aembed([_checked(text)], "query"))
        return {"embedding": vector, "meta": {"model": self.model}}


@component
class AnchorageDocumentEmbedder(_Embedder):
    """Embeds documents. The parameters are those of `TextModel`; the key is a `Secret`.

    meta_fields_to_embed  names of metadata that precede the content
    embedding_separator   what stands between them
    """

    def __init__(
        self,
        model: str,
        url: str = URL,
        api_key: Secret | None = KEY,
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        _Embedder.__init__(
            self,
            model,
            url,
            api_key,
            batch_size,
            timeout,
            meta_fields_to_embed=meta_fields_to_embed,
            embedding_separator=embedding_separator,
        )
        self._meta_fields = meta_fields_to_embed or []
        self._separator = embedding_separator

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnchorageDocumentEmbedder:
        """Return the embedder that `to_dict` described."""
        embedder: AnchorageDocumentEmbedder = default_from_dict(cls, data)
        return embedder

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return copies of the `documents` with embeddings.

        Raises TypeError unless they are a list of documents.
        """
        vectors = self._texts.embed([self._text(each) for each in _listed(documents)], "document")
        return self._answer(documents, to_lists(vectors))

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Return what `run` returns, without blocking the event loop."""
        texts = [self._text(each) for each in _listed(documents)]
        return self._answer(documents, to_lists(await self._texts.aembed(texts, "document")))

    def _text(self, document: Document) -> str:
        meta = [document.meta.get(name) for name in self._meta_fields]
        parts = [*(str(value) for value in meta if value is not None), document.content or ""]
        return self._separator.join(parts)

    def _answer(self, documents: list[Document], vectors: list[list[float]]) -> dict[str, Any]:
        embedded = [
            replace(document, embedding=vector)
            for document, vector in zip(documents, vectors, strict=True)
        ]
        return {"documents": embedded, "meta": {"model": self.model}}


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("`text` must be a string. Use AnchorageDocumentEmbedder for documents.")
    return text


def _listed(documents: Any) -> list[Document]:
    if not isinstance(documents, list) or not all(isinstance(each, Document) for each in documents):
        raise TypeError(
            "`documents` must be a list of documents. Use AnchorageTextEmbedder for text."
        )
    return documents
