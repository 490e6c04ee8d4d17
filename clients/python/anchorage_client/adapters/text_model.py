"""What the adapters share: texts to vectors by one model of a service."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorage_client import AsyncClient, Client
from anchorage_client.errors import rows_from
from anchorage_client.fields import MAX_INPUTS, Role, text_parts
from anchorage_client.vectors import Float32s

URL = "http://127.0.0.1:8080"
BATCH_SIZE = MAX_INPUTS
KEY_VARIABLE = "ANCHORAGE_API_KEY"


class TextModel:
    """A model of a service, which makes vectors from texts.

    model         an encoder, `encoder->target@anchor-set`, or a name of one or of a store
    url           as of `Client`
    api_key       as of `Client`; None: the key of the environment, if there is one
    api_key_env   variable of the environment that holds the key; None: no variable
    batch_size    most texts of one request
    timeout       seconds for one request
    async_client  sends the asynchronous requests; its owner closes it. None: a thread sends them.

    The connection opens at the first request. A pickle or a copy opens its own.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str = URL,
        api_key: str | None = None,
        api_key_env: str | None = KEY_VARIABLE,
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
        async_client: AsyncClient | None = None,
    ) -> None:
        self.model = model
        self.url = url
        self.batch_size = checked_batch_size(batch_size)
        self._settings: dict[str, Any] = {
            "model": model,
            "url": url,
            "api_key": api_key,
            "api_key_env": api_key_env,
            "batch_size": batch_size,
            "timeout": timeout,
        }
        self._async_client = async_client
        self._client: Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_async_client": None}

    @property
    def client(self) -> Client:
        """The client of the service, opened at the first use."""
        if self._client is None:
            key, variable = self._settings["api_key"], self._settings["api_key_env"]
            if key is None and variable is not None:
                key = os.environ.get(variable)
            self._client = Client(self.url, api_key=key or None, timeout=self._settings["timeout"])
            weakref.finalize(self, self._client.close)
        return self._client

    def with_settings(self, **settings: Any) -> TextModel:
        """Return a model with these settings: this one, if it has them already."""
        wanted = {**self._settings, **settings}
        if wanted == self._settings:
            return self
        return TextModel(**wanted, async_client=self._async_client)

    def close(self) -> None:
        """Close the connection. The next request opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def embed(self, texts: Sequence[str], role: Role) -> Float32s:
        """Return the vectors (n, d) of texts; (0, 0) without texts."""
        parts = []
        for start, part in text_parts(texts, self.batch_size) if len(texts) else ():
            with rows_from(start):
                parts.append(self.client.embed(part, model=self.model, role=role))
        return _joined(parts)

    async def aembed(self, texts: Sequence[str], role: Role) -> Float32s:
        """Return what `embed` returns, without blocking the event loop."""
        if self._async_client is None:
            return await asyncio.to_thread(self.embed, texts, role)
        parts = []
        for start, part in text_parts(texts, self.batch_size) if len(texts) else ():
            with rows_from(start):
                parts.append(await self._async_client.embed(part, model=self.model, role=role))
        return _joined(parts)


def checked_batch_size(batch_size: int) -> int:
    """Return the batch size. Raises ValueError if it is below 1."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
    return batch_size


def _joined(parts: Sequence[Float32s]) -> Float32s:
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def to_lists(vectors: Float32s) -> list[list[float]]:
    """Return vectors as the lists of numbers that frameworks pass on."""
    rows: list[list[float]] = vectors.tolist()
    return rows
