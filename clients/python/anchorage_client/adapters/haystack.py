"""Haystack: embedders of texts and of documents by a model of the service. Needs haystack-ai."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret

from anchorage_client.adapters.text_model import (
    BATCH_SIZE,
    KEY_VARIABLE,
    URL,
    TextModel,
    to_lists,
)

#: the key of the environment, where there is one
KEY = Secret.from_env_var(KEY_VARIABLE, strict=False)


class _Embedder:
    """What both embedders share: their settings, as Haystack stores them."""

    def __init__(
        self,
        model: str,
        url: str = URL,
        api_key: Secret | None = KEY,
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
    ) -> None:
        self.model = model
        self.url = url
        self.api_key = api_key
        self.batch_size = batch_size
        self.timeout = timeout
        self._texts = TextModel(model, **self._connection())

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, with the name of the key's variable and not the key."""
        return default_to_dict(
            self,
            model=self.model,
            url=self.url,
            api_key=self.api_key,
            batch_size=self.batch_size,
            timeout=self.timeout,
            **self._own_settings(),
        )

    def close(self) -> None:
        """Close the connection. The next run opens another."""
        self._texts.close()

    @property
    def _current(self) -> TextModel:
        # The attributes may have changed.
        self._texts = self._texts.with_settings(model=self.model, **self._connection())
        return self._texts

    def _connection(self) -> dict[str, Any]:
        key = self.api_key
        if key is not None and not isinstance(key, Secret):
            raise TypeError(
                "`api_key` must be a Secret of haystack.utils, such as "
                f"`Secret.from_env_var({KEY_VARIABLE!r})`, and this is a {type(key).__name__}."
            )
        return {
            "url": self.url,
            "api_key": None if key is None else key.resolve_value(),
            "api_key_env": None,
            "batch_size": self.batch_size,
            "timeout": self.timeout,
        }

    def _own_settings(self) -> dict[str, Any]:
        return {}


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
        [vector] = to_lists(self._current.embed([_checked(text)], "query"))
        return {"embedding": vector, "meta": {"model": self.model}}

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """Return what `run` returns, without blocking the event loop."""
        [vector] = to_lists(await self._current.aembed([_checked(text)], "query"))
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
        _Embedder.__init__(self, model, url, api_key, batch_size, timeout)
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator

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
        vectors = self._current.embed([self._text(each) for each in _listed(documents)], "document")
        return self._answer(documents, to_lists(vectors))

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Return what `run` returns, without blocking the event loop."""
        texts = [self._text(each) for each in _listed(documents)]
        return self._answer(documents, to_lists(await self._current.aembed(texts, "document")))

    def _own_settings(self) -> dict[str, Any]:
        return {
            "meta_fields_to_embed": self.meta_fields_to_embed,
            "embedding_separator": self.embedding_separator,
        }

    def _text(self, document: Document) -> str:
        meta = [document.meta.get(name) for name in self.meta_fields_to_embed]
        parts = [*(str(value) for value in meta if value is not None), document.content or ""]
        return self.embedding_separator.join(parts)

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
