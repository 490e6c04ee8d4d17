"""DSPy: a `dspy.Embedder` of a model of the service. Needs dspy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import dspy

from anchorage_client.adapters.text_model import URL, TextModel
from anchorage_client.fields import Role
from anchorage_client.vectors import Float32s


class AnchorageEmbedder(dspy.Embedder):  # type: ignore[misc]
    """An embedder for DSPy. The parameters are those of `TextModel`, and two more.

    role     `query` or `document`
    caching  keeps vectors in DSPy's cache, on disk; not for an alias that may change its model
    """

    def __init__(
        self,
        model: str,
        *,
        url: str = URL,
        api_key: str | None = None,
        role: Role = "document",
        batch_size: int = 200,
        timeout: float = 60.0,
        caching: bool = False,
    ) -> None:
        self._texts = TextModel(
            model, url=url, api_key=api_key, batch_size=batch_size, timeout=timeout
        )
        super().__init__(_Callable(self._texts, role), batch_size=batch_size, caching=caching)

    async def acall(self, inputs: str | list[str], *options: Any, **fields: Any) -> Float32s:
        """Return what a call returns, without blocking the event loop."""
        vectors: Float32s = await asyncio.to_thread(self, inputs, *options, **fields)
        return vectors

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._texts.close()


class _Callable:
    """What DSPy calls with a batch of texts."""

    def __init__(self, texts: TextModel, role: Role) -> None:
        self._texts = texts
        self._role: Role = role
        # DSPy's cache knows a callable by its name: without one, all models would share vectors.
        self.__name__ = f"anchorage {texts.url} {texts.model} {role}"

    def __call__(self, texts: Sequence[str]) -> Float32s:
        return self._texts.embed(texts, self._role)
