"""`encode` as sentence-transformers has it, for code that is written for such a model.

Needs torch only for `convert_to_tensor`, and rich only for `show_progress_bar`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from anchorage_client.adapters.text_model import BATCH_SIZE, URL, TextModel
from anchorage_client.fields import MOST_ROWS, Role
from anchorage_client.progress import ProgressBar
from anchorage_client.vectors import Float32s

if TYPE_CHECKING:
    import torch


class Encoder:
    """A model of the service in the place of a `SentenceTransformer`.

    The parameters are those of `TextModel`, and `role`, which `encode` uses: query or document.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str = URL,
        api_key: str | None = None,
        role: Role = "document",
        timeout: float = 60.0,
    ) -> None:
        self._texts = TextModel(
            model, url=url, api_key=api_key, batch_size=MOST_ROWS, timeout=timeout
        )
        self._role: Role = role
        self._dim: int | None = None

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._texts.close()

    def get_embedding_dimension(self) -> int:
        """Return the dimension of the vectors. The first call embeds one text."""
        if self._dim is None:
            self._dim = int(self._texts.embed(["dimension"], self._role).shape[1])
        return self._dim

    #: the name before version 5 of sentence-transformers
    get_sentence_embedding_dimension = get_embedding_dimension

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        batch_size: int = ...,
        show_progress_bar: bool | None = ...,
        convert_to_tensor: Literal[False] = ...,
        normalize_embeddings: bool = ...,
        role: Role | None = ...,
    ) -> Float32s: ...

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        batch_size: int = ...,
        show_progress_bar: bool | None = ...,
        convert_to_tensor: Literal[True],
        normalize_embeddings: bool = ...,
        role: Role | None = ...,
    ) -> torch.Tensor: ...

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        role: Role | None = None,
    ) -> Any:
        """Return vectors (n, d) of sentences, or (d,) of one string; float32 on the CPU.

        batch_size            most texts of one request
        normalize_embeddings  scale each vector to length 1; a zero vector stays zero
        role                  `query` or `document`; None: the encoder's
        """
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        parts = []
        with ProgressBar("encode", enabled=bool(show_progress_bar)) as bar:
            for start in range(0, len(texts), batch_size):
                part = texts[start : start + batch_size]
                parts.append(self._texts.embed(part, role or self._role))
                bar.update(start + len(part), len(texts))
        vectors = np.concatenate(parts) if parts else self._none()
        if normalize_embeddings:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            norms[norms == 0] = 1
            vectors = vectors / norms
        vectors = vectors[0] if single else vectors
        if not convert_to_tensor:
            return vectors
        import torch

        return torch.from_numpy(vectors.copy())

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return what `encode` returns for queries."""
        return self.encode(sentences, **{**options, "role": "query"})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return what `encode` returns for documents."""
        return self.encode(sentences, **{**options, "role": "document"})

    def _none(self) -> Float32s:
        return np.empty((0, self.get_embedding_dimension()), np.float32)
