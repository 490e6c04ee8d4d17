"""timm models: from a folder the operator allows or, where he does, from a hub.

Two forms of checkpoint are read, both as safetensors:

folder   config.json and model.safetensors, as timm's `save_for_hf` and `push_to_hf_hub` write them, and as its hub has them
pair     NAME.safetensors and NAME.json, for a model without a classifier and a plain preprocessing:
           {"timm_model": ..., "create_model_kwargs": {...},
            "preprocessing": {"channels": 1 or 3, "source_size": 28, "zero_pad_to": 32, "mean": 0.286, "std": 0.353}}
         an image becomes source_size x source_size pixels of 0 to 1, zeros around up to zero_pad_to, then (x - mean) / std
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from app.encoders import images
from app.encoders.base import Identity, Input, Item, Shelf, Spec
from app.encoders.images import DEFAULT_LIMITS, Limits
from app.encoders.model_files import find
from app.encoders.options import ImageOptions, read
from app.encoders.torchvision_ops import make_importable
from app.errors import (
    AnchorageError,
    EncoderFailed,
    EncoderUnavailable,
    ImageTooLarge,
    InvalidImage,
    InvalidInput,
    InvalidOption,
)
from app.types import InputRole, Modality

if TYPE_CHECKING:
    from PIL.Image import Image

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: an image's cost is that of the tokens a vision transformer of 16 x 16 patches would make of it
PATCH = 16
#: arguments of a model that would make timm load something else, less strictly, or give something else than a classifier
REFUSED_ARGUMENTS = frozenset(
    {
        "checkpoint_path",
        "cache_dir",
        "features_only",
        "pruned",
        "scriptable",
        "exportable",
        "no_jit",
    }
)


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to what the model reads: `transform` gives a tensor (channels, height, width), float32.

    scaled   shorter side after a resize that keeps proportions, or None where every picture becomes equally large
    """

    transform: Callable[[Image], Tensor]
    size: tuple[int, int, int]
    scaled: int | None = None

    @property
    def mode(self) -> images.Mode:
        return "L" if self.size[0] == 1 else "RGB"


class VisionEncoder:
    """A timm model without its classifier: vectors are what the classifier would read."""

    modality = Modality.image
    remote = False
    pads = True

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        identity: Identity,
        *,
        device: str,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.identity = identity
        self.nbytes = sum(
            tensor.numel() * tensor.element_size()
            for tensor in (*model.parameters(), *model.buffers())
        )
        self._model: Callable[[Tensor], Tensor] = model
        self._preprocessing = preprocessing
        self._device = device
        self._limits = limits

    @property
    def dim(self) -> int:
        return self.identity.dim

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Decode and preprocess. Raises InvalidInput for texts, InvalidImage and ImageTooLarge, naming rows."""
        texts = [row for row, given in enumerate(inputs) if not isinstance(given, bytes)]
        if texts:
            raise InvalidInput("this encoder reads images, not texts", field="inputs", rows=texts)
        items, wrong = [], []
        for row, data in enumerate(inputs):
            assert isinstance(data, bytes)
            try:
                items.append(self._item(data))
            except (InvalidImage, ImageTooLarge) as error:
                wrong.append((row, error))
        if wrong:
            raise _of_all(wrong)
        return items

    def _item(self, data: bytes) -> Item:
        plan = self._preprocessing
        picture = images.open_image(data, self._limits, plan.mode)
        if plan.scaled and plan.scaled**2 * max(picture.size) > self._limits.pixels * min(
            picture.size
        ):
            # Its shorter side would be scaled up to the model's, and the longer one with it, beyond any memory.
            raise ImageTooLarge(
                f"the image is too elongated: {picture.size[0]} x {picture.size[1]}",
                limit=self._limits.pixels,
            )
        try:
            features = plan.transform(picture)
        except ValueError as error:  # a side that becomes less than a pixel
            raise InvalidImage(
                f"the image cannot be resized: {picture.size[0]} x {picture.size[1]} pixels"
            ) from error
        _, height, width = plan.size
        return Item(
            features, length=max(height, width), cost=max(1, height * width // PATCH**2), tokens=0
        )

    def run(self, items: Sequence[Item]) -> Tensor:
        """Vectors (n, dim), float32, on the CPU. Raises EncoderFailed."""
        if not items:
            return torch.empty(0, self.dim)
        try:
            with torch.inference_mode():
                batch = torch.stack([item.features for item in items])
                vectors = self._model(
                    batch.to(self._device, DTYPES[self.identity.dtype or "float32"])
                )
                vectors = vectors.float()[:, : self.dim]
                if self.identity.normalise:
                    vectors = nn.functional.normalize(vectors)
                vectors = vectors.cpu()
        except RuntimeError as error:  # memory, or the device
            raise EncoderFailed(
                f"model {self.identity.model!r} failed: {type(error).__name__}; see the server's log"
            ) from error
        if not torch.isfinite(vectors).all():
            raise EncoderFailed(
                f"model {self.identity.model!r} gave numbers that are not finite, in {self.identity.dtype}"
            )
        return vectors.clone()  # an inference tensor could not be used in autograd later


def _of_all(wrong: Sequence[tuple[int, AnchorageError]]) -> AnchorageError:
    """One error of the first one's class, with the rows of all that are wrong in the same way."""
    first = wrong[0][1]
    rows = [row for row, error in wrong if type(error) is type(first)]
    detail = (
        first.detail
        if len(rows) == 1
        else f"{len(rows)} images cannot be read; of the first: {first.detail}"
    )
    return type(first)(detail, field="inputs", rows=rows, limit=first.limit)


def load(
    spec: Spec, shelf: Shelf, device: str, *, limits: Limits = DEFAULT_LIMITS
) -> VisionEncoder:
    """Load by name. Never runs code that comes with a model, never unpickles weights.

    Raises EncoderUnavailable, and UnknownOption and InvalidOption for what `spec.options` holds.
    """
    options = read(ImageOptions, spec.options)
    missing = [name for name in ("timm", "torchvision", "PIL") if find_spec(name) is None]
    if missing:
        raise EncoderUnavailable(
            f"{', '.join(missing)} is not installed on the server: pip install 'anchorage-server[vision]'",
            field="kind",
        )
    path, revision = find(spec, shelf, pairs=True)
    try:
        model, preprocessing = _load_folder(path) if path.is_dir() else _load_pair(path)
        model = model.eval().requires_grad_(False).to(device, DTYPES[options.dtype])
        full = _trial(model, preprocessing, device, DTYPES[options.dtype])
    except AnchorageError:
        raise
    except (
        Exception
    ) as error:  # whatever a broken checkpoint makes timm, safetensors or torch raise
        raise EncoderUnavailable(
            f"model {spec.model!r} cannot be loaded: {type(error).__name__}; the server's log has the reason",
            field="model",
        ) from error
    if options.dim is not None and options.dim > full:
        raise InvalidOption(
            f"the model's vectors have {full} dimensions, not {options.dim}", field="options.dim"
        )
    identity = Identity(
        model=spec.model,
        revision=revision,
        prompts={},
        pooling=_pooling(model),
        normalise=bool(options.normalise),
        dim=options.dim or full,
        dtype=options.dtype,
    )
    return VisionEncoder(model, preprocessing, identity, device=device, limits=limits)


def _timm(module: str = "timm") -> Any:
    """A module of timm, or of the torchvision that it needs."""
    make_importable()
    return importlib.import_module(module)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise EncoderUnavailable(f"the model has no {path.name}", field="model")
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, dict):
        raise EncoderUnavailable(f"the model's {path.name} is no JSON object", field="model")
    return content


def _check(name: Any, arguments: Any) -> None:
    """A name of timm's own list, and arguments of its classifiers: nothing that would load a second checkpoint."""
    if not isinstance(name, str) or not _timm().is_model(name):
        raise EncoderUnavailable(f"timm has no model {name!r}", field="model")
    if not isinstance(arguments, dict):
        raise EncoderUnavailable("a model's arguments are a JSON object", field="model")
    refused = sorted(
        key for key in arguments if key in REFUSED_ARGUMENTS or key.startswith("pretrained")
    )
    if refused:
        raise EncoderUnavailable(
            f"a model's arguments may not hold {', '.join(refused)}", field="model"
        )


def _load_folder(folder: Path) -> tuple[Any, Preprocessing]:
    """By timm itself, so that it converts older layouts. Weights must fit exactly: timm would fill gaps at random."""
    config = _read(folder / "config.json")
    if not (folder / "model.safetensors").is_file():
        raise EncoderUnavailable(
            "the model has no model.safetensors, and pickled weights (.bin, .pth) are not read",
            field="model",
        )
    arguments = config.get("model_args", {})
    _check(config.get("architecture"), arguments)
    model = _timm().create_model(f"local-dir:{folder}", pretrained=True)
    if (
        model.num_classes != model.pretrained_cfg["num_classes"]
    ):  # then timm asked no weight to be there
        raise EncoderUnavailable(
            "the model's config.json says two numbers of classes", field="model"
        )
    model.reset_classifier(0)
    return model, _own_preprocessing(model)


def _own_preprocessing(model: nn.Module) -> Preprocessing:
    """As timm's model cards do it: resize, crop the centre, normalise."""
    data = _timm("timm.data")
    config = data.resolve_model_data_config(model)
    channels, height, width = config["input_size"]
    _of_known_channels(channels)
    for key in ("mean", "std"):
        # Of a model of one channel whose statistics are those of three, timm's loaders take the mean.
        values = tuple(config[key])
        config[key] = values if len(values) == channels else (sum(values) / len(values),) * channels
    transform = data.create_transform(**config, is_training=False)
    return Preprocessing(
        transform, (channels, height, width), scaled=int(max(height, width) / config["crop_pct"])
    )


def _of_known_channels(channels: Any) -> None:
    if channels not in (1, 3):
        raise EncoderUnavailable(
            f"the model reads {channels} channels; images have 1 or 3", field="model"
        )


def _load_pair(weights: Path) -> tuple[Any, Preprocessing]:
    """A model without a classifier; every weight must be there, and no other."""
    from safetensors.torch import load_file

    config = _read(weights.with_suffix(".json"))
    name, arguments = config.get("timm_model"), config.get("create_model_kwargs", {})
    _check(name, arguments)
    model = _timm().create_model(name, pretrained=False, **{**arguments, "num_classes": 0})
    model.load_state_dict(load_file(weights), strict=True)
    return model, _plain_preprocessing(config["preprocessing"])


def _plain_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """(pad(resize(x)) - mean) / std, of pixels x in 0..1."""
    of = _timm("torchvision.transforms")
    channels, side, padded = config["channels"], config["source_size"], config["zero_pad_to"]
    _of_known_channels(channels)
    if (
        config.get("pixels", "uint8 / 255") != "uint8 / 255"
        or (padded - side) % 2
        or not 0 < side <= padded
    ):
        raise EncoderUnavailable(
            "the model's preprocessing is none that the service knows", field="model"
        )
    steps = [
        of.Resize((side, side), of.InterpolationMode.BICUBIC),
        of.Pad((padded - side) // 2),
        of.ToTensor(),
        of.Normalize([config["mean"]] * channels, [config["std"]] * channels),
    ]
    return Preprocessing(of.Compose(steps), (channels, padded, padded))


def _trial(
    model: Callable[[Tensor], Any], preprocessing: Preprocessing, device: str, dtype: torch.dtype
) -> int:
    """The dimension, seen by encoding a blank picture: a model that fails at all fails here, when it is loaded."""
    from PIL import Image

    blank = preprocessing.transform(Image.new(preprocessing.mode, preprocessing.size[:0:-1]))
    with torch.inference_mode():
        vectors = model(blank[None].to(device, dtype))
    if not isinstance(vectors, Tensor) or vectors.ndim != 2:
        raise EncoderUnavailable("the model gives no single vector of an image", field="model")
    return int(vectors.shape[1])


def _pooling(model: nn.Module) -> str | None:
    """Where timm's models say it: by a word, or by the type of a layer, in the model or in its head."""
    for owner in (model, getattr(model, "head", None)):
        pool = getattr(owner, "global_pool", None)
        word = getattr(pool, "pool_type", pool)
        if isinstance(word, str) and word:
            return word
    return None
