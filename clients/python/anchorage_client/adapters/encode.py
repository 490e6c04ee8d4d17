"""`encode` as sentence-transformers has it, for code that is written for such a model.

Needs torch only for tensors and `similarity`, and rich only for `show_progress_bar`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np

from anchorage_client.adapters.text_model import (
    BATCH_SIZE,
    URL,
    TextModel,
    checked_batch_size,
)
from anchorage_client.errors import rows_from
from anchorage_client.fields import MAX_ROWS, Role, text_parts
from anchorage_client.progress import ProgressBar
from anchorage_client.vectors import Float32s

if TYPE_CHECKING:
    import torch

#: what sentence-transformers' `encode` takes and the service has one way of, with that way
ONE_WAY: Mapping[str, tuple[Any, ...]] = {
    "output_value": ("sentence_embedding",),
    "precision": ("float32", None),
    "truncate_dim": (None,),
    "prompt": (None,),
    "pool": (None,),
    "chunk_size": (None,),
}


class Encoder:
    """A model of the service in the place of a `SentenceTransformer`.

    The parameters are those of `TextModel`, and `role`, which `encode` uses: query or document.
    """

    #: how `similarity` compares vectors
    similarity_fn_name: Literal["cosine"] = "cosine"

    def __init__(
        self,
        model: str,
        *,
        url: str = URL,
        api_key: str | None = None,
        role: Role = "document",
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
    ) -> None:
        self._texts = TextModel(
            model, url=url, api_key=api_key, batch_size=MAX_ROWS, timeout=timeout
        )
        self._role: Role = role
        self._batch_size = checked_batch_size(batch_size)
        self._dim: int | None = None

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._texts.close()

    @property
    def model_card_data(self) -> ModelCard:
        """What the evaluators of sentence-transformers write their results to; it keeps none."""
        return ModelCard()

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
        convert_to_tensor: Literal[False] = ...,
        convert_to_numpy: Literal[True] = ...,
        **options: Any,
    ) -> Float32s: ...

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_tensor: Literal[True],
        convert_to_numpy: bool = ...,
        **options: Any,
    ) -> torch.Tensor: ...

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_tensor: Literal[False] = ...,
        convert_to_numpy: Literal[False],
        **options: Any,
    ) -> torch.Tensor | list[torch.Tensor]: ...

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        role: Role | None = None,
        **options: Any,
    ) -> Any:
        """Return vectors (n, d) of sentences, or (d,) of one string; float32.

        prompt_name           `query` or `document`, which goes before `role`
        batch_size            most texts of one request; None: the encoder's
        convert_to_numpy      False: a list of tensors
        convert_to_tensor     one tensor
        device                where tensors are; None: the CPU
        normalize_embeddings  scale each vector to length 1; a zero vector stays zero
        role                  `query` or `document`; None: the encoder's
        options               other parameters of sentence-transformers, with their defaults only

        Raises ValueError for other values, and TypeError for other options.
        """
        _check(options)
        size = self._batch_size if batch_size is None else checked_batch_size(batch_size)
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        role = _role_of(prompt_name) or role or self._role
        vectors = self._vectors(texts, role, size, bool(show_progress_bar))
        if normalize_embeddings:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            norms[norms == 0] = 1
            vectors = vectors / norms
        vectors = vectors[0] if single else vectors
        if convert_to_numpy and not convert_to_tensor:
            return vectors
        import torch

        tensor = torch.from_numpy(vectors.copy()).to(device or "cpu")
        return tensor if convert_to_tensor or single else list(tensor)

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return what `encode` returns for queries."""
        return self.encode(sentences, **{**options, "role": "query"})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return what `encode` returns for documents."""
        return self.encode(sentences, **{**options, "role": "document"})

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the cosines (n, m) of two sets of vectors, arrays or tensors."""
        import torch

        first, second = (
            torch.nn.functional.normalize(_matrix(each), dim=-1)
            for each in (embeddings1, embeddings2)
        )
        return first @ second.T

    def _vectors(self, texts: list[str], role: Role, size: int, show: bool) -> Float32s:
        if not texts:
            return np.empty((0, self.get_embedding_dimension()), np.float32)
        parts = []
        with ProgressBar("encode", enabled=show) as bar:
            for start, part in text_parts(texts, size):
                with rows_from(start):
                    parts.append(self._texts.embed(part, role))
                bar.update(start + len(part), len(texts))
        return np.concatenate(parts)


class ModelCard:
    """The place of a model card in code that reports to one."""

    def set_evaluation_metrics(self, *details: Any, **more: Any) -> None:
        """Keep nothing: the evaluator returns the metrics, too."""


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in ONE_WAY:
            raise TypeError(f"Encoder.encode has no parameter {name!r}.")
        if value not in ONE_WAY[name]:
            raise ValueError(
                f"`{name}` must be {ONE_WAY[name][0]!r}, got {value!r}: the service makes vectors "
                "one way. Remove the parameter."
            )


def _role_of(prompt_name: str | None) -> Role | None:
    if prompt_name is None:
        return None
    for role in get_args(Role):
        if prompt_name == role:
            known: Role = role
            return known
    raise ValueError(
        f"`prompt_name` must be 'query' or 'document', got {prompt_name!r}. "
        "Other prompts belong to the encoder in the service."
    )


def _matrix(vectors: Any) -> torch.Tensor:
    import torch

    if isinstance(vectors, list) and any(isinstance(each, torch.Tensor) for each in vectors):
        vectors = torch.stack(vectors)
    elif not isinstance(vectors, torch.Tensor):
        vectors = torch.as_tensor(np.asarray(vectors))
    rows: torch.Tensor = vectors[None] if vectors.ndim == 1 else vectors
    return rows
