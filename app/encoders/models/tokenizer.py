"""The tokenizer of a text model, and the padding of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from app.encoders.models.base import Item

#: a tokenizer without its own limit reports a larger number than this
UNLIMITED_TOKENS = 10**9

#: input of a model -> attribute of an encoding
ATTRIBUTES = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
}


class TextTokenizer:
    """The native part of a model's tokenizer. Threads may share it, because it keeps no state."""

    def __init__(
        self, tokenizer: Any, names: Sequence[str], pad: int, most: int | None, side: str
    ) -> None:
        self.most = most
        self._tokenizer = _copy_unlimited(tokenizer)
        if most is not None:
            self._tokenizer.enable_truncation(most, direction=side)
        self._pad = pad
        self._side = side
        self._names = [name for name in ATTRIBUTES if name in names]

    def with_limit(self, most: int) -> TextTokenizer:
        """Return a copy that truncates to `most` tokens."""
        return TextTokenizer(self._tokenizer, self._names, self._pad, most, self._side)

    def __call__(self, texts: list[str]) -> list[Item]:
        return [self._make_item(encoding) for encoding in self._tokenizer.encode_batch_fast(texts)]

    def pad(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        """Return each input of the model as a table of all rows, padded to the longest row."""
        length = max(len(row["input_ids"]) for row in rows)
        tables = {}
        for name in rows[0]:
            tables[name] = torch.full(
                (len(rows), length), self._pad if name == "input_ids" else 0, dtype=torch.int64
            )
            for place, row in enumerate(rows):
                tables[name][place, : len(row[name])] = torch.tensor(row[name])
        return tables

    def _make_item(self, encoding: Any) -> Item:
        length = len(encoding)
        features = {name: getattr(encoding, ATTRIBUTES[name]) for name in self._names}
        return Item(features, length, length, length, truncated=bool(encoding.overflowing))


def find_tokenizer(model: Any) -> TextTokenizer | None:
    """Return the tokenizer of a model that starts with a plain transformer of texts.

    Returns None for any other model; the library's own `encode` serves it.
    """
    from sentence_transformers.base.modules.transformer import Transformer

    first = model[0]
    wrapper: Any = getattr(first, "tokenizer", None)
    backend = getattr(wrapper, "backend_tokenizer", None)
    plain = type(first) is Transformer and not first.processing_kwargs
    includes_prompt = all(getattr(module, "include_prompt", True) for module in model)
    if not plain or not includes_prompt or backend is None or wrapper.pad_token_id is None:
        return None
    most = int(model.max_seq_length)
    return TextTokenizer(
        backend,
        wrapper.model_input_names,
        wrapper.pad_token_id,
        most if most < UNLIMITED_TOKENS else None,
        wrapper.truncation_side,
    )


def _copy_unlimited(tokenizer: Any) -> Any:
    """Return a copy that neither truncates nor pads."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
