"""Loads and runs timm models from the operator's folder or an allowed hub.

There are two forms of checkpoint, both with safetensors weights:

folder   config.json and model.safetensors, in the layout of timm's `save_for_hf` and
         `push_to_hf_hub`, which timm's hub also uses
pair     NAME.safetensors and NAME.json, for a model without a classifier:
           {"timm_model": ..., "create_model_kwargs": {...},
            "preprocessing": {"channels": 1 or 3, "source_size": 28, "zero_pad_to": 32,
                              "mean": 0.286, "std": 0.353}}
         The image is resized to source_size x source_size pixels from 0 to 1, padded with zeros to
         zero_pad_to, and normalised to (x - mean) / std.
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
from app.encoders.base import ENCODER_DTYPES, EncoderSpec, Input, Item, ModelIdentity, ModelSources
from app.encoders.images import DEFAULT_IMAGE_LIMITS, ImageLimits
from app.encoders.model_files import find_model
from app.encoders.options import ImageOptions, read_options
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

#: pixels of a patch's side: an image costs as much as its number of patches
PATCH_SIDE = 16
#: arguments that would make timm load other files, load less strictly, or build no classifier
FORBIDDEN_ARGUMENTS = frozenset(
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
    """The conversion of an image to the model's input.

    transform  returns a tensor (channels, height, width), float32
    size       (channels, height, width)
    scaled     shorter side after a resize that keeps proportions; None for a fixed size
    """

    transform: Callable[[Image], Tensor]
    size: tuple[int, int, int]
    scaled: int | None = None

    @property
    def mode(self) -> images.Mode:
        return "L" if self.size[0] == 1 else "RGB"


class VisionEncoder:
    """A timm model without its classifier: its vectors are the classifier's inputs."""

    modality = Modality.image
    remote = False
    pads = True

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        identity: ModelIdentity,
        *,
        device: str,
        limits: ImageLimits = DEFAULT_IMAGE_LIMITS,
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
        """Decode and preprocess images. Raises InvalidInput for texts, InvalidImage and
        ImageTooLarge, which name the rows.
        """
        texts = [row for row, value in enumerate(inputs) if not isinstance(value, bytes)]
        if texts:
            raise InvalidInput(
                "This encoder reads images. Send image files, not texts.",
                field="inputs",
                rows=texts,
            )
        items, wrong = [], []
        for row, data in enumerate(inputs):
            assert isinstance(data, bytes)
            try:
                items.append(self._item(data))
            except (InvalidImage, ImageTooLarge) as error:
                wrong.append((row, error))
        if wrong:
            raise _combine_errors(wrong)
        return items

    def _item(self, data: bytes) -> Item:
        preprocessing = self._preprocessing
        image = images.open_image(data, self._limits, preprocessing.mode)
        size = f"{image.size[0]} x {image.size[1]} pixels"
        side, shorter, longer = preprocessing.scaled, min(image.size), max(image.size)
        # The resize scales both sides by side / shorter, which could exceed any memory.
        if side and side**2 * longer > self._limits.pixels * shorter:
            raise ImageTooLarge(
                f"The image is too long for its width ({size}): resized for this model it would "
                f"have more than {self._limits.pixels} pixels. Crop it.",
                limit=self._limits.pixels,
            )
        try:
            features = preprocessing.transform(image)
        except ValueError as error:  # a side shorter than one pixel
            raise InvalidImage(
                f"The image ({size}) cannot be resized for this model. Crop it."
            ) from error
        _, height, width = preprocessing.size
        return Item(
            features,
            length=max(height, width),
            cost=max(1, height * width // PATCH_SIDE**2),
            tokens=0,
        )

    def run(self, items: Sequence[Item]) -> Tensor:
        """Return vectors (n, dim), float32, on the CPU. Raises EncoderFailed."""
        if not items:
            return torch.empty(0, self.dim)
        try:
            with torch.inference_mode():
                batch = torch.stack([item.features for item in items])
                vectors = self._model(
                    batch.to(self._device, ENCODER_DTYPES[self.identity.dtype or "float32"])
                )
                vectors = vectors.float()[:, : self.dim]
                if self.identity.normalise:
                    vectors = nn.functional.normalize(vectors)
                vectors = vectors.cpu()
        except RuntimeError as error:  # such as too little memory
            raise EncoderFailed(
                f"Model {self.identity.model!r} failed with {type(error).__name__}. "
                "The server's log has the reason."
            ) from error
        if not torch.isfinite(vectors).all():
            raise EncoderFailed(
                f"Model {self.identity.model!r} returned NaN or infinity in {self.identity.dtype}. "
                "Register it with another `dtype`."
            )
        return vectors.clone()  # autograd does not accept inference tensors


def _combine_errors(wrong: Sequence[tuple[int, AnchorageError]]) -> AnchorageError:
    """Return one error of the first error's class, with the rows of all errors of that class."""
    first = wrong[0][1]
    rows = [row for row, error in wrong if type(error) is type(first)]
    detail = (
        first.detail
        if len(rows) == 1
        else f"{len(rows)} images cannot be read. The first: {first.detail}"
    )
    return type(first)(detail, field="inputs", rows=rows, limit=first.limit)


def load(
    spec: EncoderSpec,
    sources: ModelSources,
    device: str,
    *,
    limits: ImageLimits = DEFAULT_IMAGE_LIMITS,
) -> VisionEncoder:
    """Load a model by name. Never runs a model's own code, and never unpickles weights.

    Raises EncoderUnavailable, and UnknownOption and InvalidOption for `spec.options`.
    """
    options = read_options(ImageOptions, spec.options)
    missing = [name for name in ("timm", "torchvision", "PIL") if find_spec(name) is None]
    if missing:
        raise EncoderUnavailable(
            f"Not installed on the server: {', '.join(missing)}. "
            "Ask the operator to run: pip install 'anchorage-server[vision]'.",
            field="kind",
        )
    path, revision = find_model(spec, sources, pairs=True)
    try:
        model, preprocessing = _load_folder(path) if path.is_dir() else _load_pair(path)
        model = model.eval().requires_grad_(False).to(device, ENCODER_DTYPES[options.dtype])
        full = _measure_dim(model, preprocessing, device, ENCODER_DTYPES[options.dtype])
    except AnchorageError:
        raise
    except Exception as error:  # timm, safetensors and torch may raise anything
        raise EncoderUnavailable(
            f"Model {spec.model!r} cannot be loaded ({type(error).__name__}). "
            "The server's log has the reason.",
            field="model",
        ) from error
    if options.dim is not None and options.dim > full:
        raise InvalidOption(
            f"`options.dim` must be from 1 to {full}, the model's dimension; got {options.dim}.",
            field="options.dim",
        )
    identity = ModelIdentity(
        model=spec.model,
        revision=revision,
        prompts={},
        pooling=_pooling(model),
        normalise=bool(options.normalise),
        dim=options.dim or full,
        dtype=options.dtype,
    )
    return VisionEncoder(model, preprocessing, identity, device=device, limits=limits)


def _import_timm(module: str = "timm") -> Any:
    """Return a module of timm or torchvision."""
    make_importable()
    return importlib.import_module(module)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise EncoderUnavailable(
            f"The model has no {path.name}. Ask the operator to add it.", field="model"
        )
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, dict):
        raise EncoderUnavailable(f"The model's {path.name} is not a JSON object.", field="model")
    return content


def _check_arguments(name: Any, arguments: Any) -> None:
    """Raises EncoderUnavailable for a name that timm does not know, and for arguments that would
    load another checkpoint.
    """
    if not isinstance(name, str) or not _import_timm().is_model(name):
        raise EncoderUnavailable(f"timm has no model named {name!r}.", field="model")
    if not isinstance(arguments, dict):
        raise EncoderUnavailable(
            "The arguments in the model's JSON file must be a JSON object.", field="model"
        )
    forbidden = sorted(
        key for key in arguments if key in FORBIDDEN_ARGUMENTS or key.startswith("pretrained")
    )
    if forbidden:
        raise EncoderUnavailable(
            "The arguments in the model's JSON file may not contain "
            f"{', '.join(forbidden)}. Ask the operator to remove them.",
            field="model",
        )


def _load_folder(folder: Path) -> tuple[Any, Preprocessing]:
    """Let timm load the folder, because it converts older layouts.

    Raises EncoderUnavailable for weights that do not fit: timm would fill gaps with random numbers.
    """
    config = _read(folder / "config.json")
    if not (folder / "model.safetensors").is_file():
        raise EncoderUnavailable(
            "The model has no model.safetensors. The service does not read pickled weights (.bin, "
            ".pth). Ask the operator to convert them.",
            field="model",
        )
    arguments = config.get("model_args", {})
    _check_arguments(config.get("architecture"), arguments)
    model = _import_timm().create_model(f"local-dir:{folder}", pretrained=True)
    # With different numbers timm does not check the weights.
    if model.num_classes != model.pretrained_cfg["num_classes"]:
        raise EncoderUnavailable(
            "The model's config.json contains two different numbers of classes.", field="model"
        )
    model.reset_classifier(0)
    return model, _timm_preprocessing(model)


def _timm_preprocessing(model: nn.Module) -> Preprocessing:
    """Return timm's own preprocessing: resize, crop the centre, normalise."""
    data = _import_timm("timm.data")
    config = data.resolve_model_data_config(model)
    channels, height, width = config["input_size"]
    _check_channels(channels)
    for key in ("mean", "std"):
        # Statistics of three channels become their mean for a model of one, as in timm's loaders.
        values = tuple(config[key])
        config[key] = values if len(values) == channels else (sum(values) / len(values),) * channels
    transform = data.create_transform(**config, is_training=False)
    return Preprocessing(
        transform, (channels, height, width), scaled=int(max(height, width) / config["crop_pct"])
    )


def _check_channels(channels: Any) -> None:
    if channels not in (1, 3):
        raise EncoderUnavailable(
            f"The model reads images of {channels} channels. The service supports 1 and 3.",
            field="model",
        )


def _load_pair(weights: Path) -> tuple[Any, Preprocessing]:
    """Load a model without a classifier. Its weights must match the model exactly."""
    from safetensors.torch import load_file

    config = _read(weights.with_suffix(".json"))
    name, arguments = config.get("timm_model"), config.get("create_model_kwargs", {})
    _check_arguments(name, arguments)
    model = _import_timm().create_model(name, pretrained=False, **{**arguments, "num_classes": 0})
    model.load_state_dict(load_file(weights), strict=True)
    return model, _pair_preprocessing(config["preprocessing"])


def _pair_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """Return (pad(resize(x)) - mean) / std for pixels x from 0 to 1."""
    transforms = _import_timm("torchvision.transforms")
    channels, side, padded = config["channels"], config["source_size"], config["zero_pad_to"]
    _check_channels(channels)
    if (
        config.get("pixels", "uint8 / 255") != "uint8 / 255"
        or (padded - side) % 2
        or not 0 < side <= padded
    ):
        raise EncoderUnavailable(
            "The service does not support the `preprocessing` in the model's JSON file. It needs "
            "pixels as uint8 / 255, and a `zero_pad_to` that exceeds `source_size` by an even "
            "number or equals it.",
            field="model",
        )
    steps = [
        transforms.Resize((side, side), transforms.InterpolationMode.BICUBIC),
        transforms.Pad((padded - side) // 2),
        transforms.ToTensor(),
        transforms.Normalize([config["mean"]] * channels, [config["std"]] * channels),
    ]
    return Preprocessing(transforms.Compose(steps), (channels, padded, padded))


def _measure_dim(
    model: Callable[[Tensor], Any], preprocessing: Preprocessing, device: str, dtype: torch.dtype
) -> int:
    """Encode a blank image and return the dimension, so that a broken model fails when it loads."""
    from PIL import Image

    blank = preprocessing.transform(Image.new(preprocessing.mode, preprocessing.size[:0:-1]))
    with torch.inference_mode():
        vectors = model(blank[None].to(device, dtype))
    if not isinstance(vectors, Tensor) or vectors.ndim != 2:
        raise EncoderUnavailable(
            "The model does not return one vector for each image.", field="model"
        )
    return int(vectors.shape[1])


def _pooling(model: nn.Module) -> str | None:
    """Return the pooling that the model or its head names, as a string or in a layer; else None."""
    for owner in (model, getattr(model, "head", None)):
        pool = getattr(owner, "global_pool", None)
        name = getattr(pool, "pool_type", pool)
        if isinstance(name, str) and name:
            return name
    return None
