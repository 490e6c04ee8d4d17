"""Tokenizers of texts, and the padding of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from app.encoders.base import CHARACTERS_PER_TOKEN, Input, Item
from app.errors import InvalidInput
from app.types import InputRole, is_unicode

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
        self.pads = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}
        self._tokenizer = _copy_unlimited(tokenizer)
        if most is not None:
            self._tokenizer.enable_truncation(most, direction=side)
        self._side = side
        self._names = [name for name in ATTRIBUTES if name in names]

    def with_limit(self, most: int) -> TextTokenizer:
        """Return a copy that truncates to `most` tokens."""
        return TextTokenizer(self._tokenizer, self._names, self.pads["input_ids"], most, self._side)

    def recipe(self) -> dict[str, Any]:
        """Return what `from_recipe` rebuilds the tokenizer from, as JSON."""
        return {
            "tokenizer": self._tokenizer.to_str(),
            "names": self._names,
            "pad": self.pads["input_ids"],
            "most": self.most,
            "side": self._side,
        }

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any]) -> Self:
        """Rebuild a tokenizer in a process without the model."""
        from tokenizers import Tokenizer

        return cls(**{**recipe, "tokenizer": Tokenizer.from_str(recipe["tokenizer"])})

    def __call__(self, texts: list[str]) -> list[Item]:
        return [self._make_item(encoding) for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _make_item(self, encoding: Any) -> Item:
        length = len(encoding)
        features = {name: getattr(encoding, ATTRIBUTES[name]) for name in self._names}
        return Item(features, length, length, length, truncated=bool(encoding.overflowing))


class TextPreparer:
    """Checks texts and turns them into items: tokens, or the texts if the tokenizer is unknown.

    It needs no weights, so that a process without the model can prepare texts.
    """

    def __init__(self, prompts: Mapping[str, str], tokenizer: TextTokenizer | None) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Tokenize texts. Raises InvalidInput for images, invalid Unicode and empty texts."""
        texts = [value for value in inputs if isinstance(value, str)]
        if len(texts) < len(inputs):
            wrong = [row for row, value in enumerate(inputs) if not isinstance(value, str)]
            raise InvalidInput(
                "This encoder reads texts. Send strings, not images.", field="inputs", rows=wrong
            )
        if wrong := [row for row, text in enumerate(texts) if not is_unicode(text)]:
            raise InvalidInput(
                "A text contains half of a surrogate pair. Send valid Unicode.",
                field="inputs",
                rows=wrong,
            )
        items = self.make_items(texts, self._prompts.get(role, ""))
        if wrong := [row for row, item in enumerate(items) if item.length == 0]:
            raise InvalidInput(
                "A text has no tokens for this encoder. Remove it, or send another text.",
                field="inputs",
                rows=wrong,
            )
        return items

    def make_items(self, texts: Sequence[str], prompt: str) -> list[Item]:
        """Return the items of texts, without checks."""
        if self._tokenizer is not None:
            return self._tokenizer([prompt + text for text in texts])
        return [estimate_item(prompt, text) for text in texts]

    def recipe(self) -> dict[str, Any]:
        """Return what `from_recipe` rebuilds the preparer from, as JSON."""
        tokenizer = None if self._tokenizer is None else self._tokenizer.recipe()
        return {"prompts": dict(self._prompts), "tokenizer": tokenizer}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any]) -> Self:
        """Rebuild a preparer in a process without the model."""
        tokenizer = recipe["tokenizer"]
        return cls(
            recipe["prompts"], None if tokenizer is None else TextTokenizer.from_recipe(tokenizer)
        )


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


def estimate_item(prompt: str, text: str) -> Item:
    """Return an untokenized item (prompt, text) with an estimate of its tokens."""
    length = len(prompt + text) // CHARACTERS_PER_TOKEN + 1
    return Item((prompt, text), length, length, length)


def pad_rows(
    rows: Sequence[Mapping[str, list[int]]], pads: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return each input of the model as a table of all rows, padded to the longest row."""
    length = max(len(row["input_ids"]) for row in rows)
    tables = {name: np.full((len(rows), length), pads[name], dtype=np.int64) for name in rows[0]}
    for place, row in enumerate(rows):
        for name, numbers in row.items():
            tables[name][place, : len(numbers)] = numbers
    return tables


def _copy_unlimited(tokenizer: Any) -> Any:
    """Return a copy that neither truncates nor pads."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
