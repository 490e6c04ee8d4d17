"""Prepares images for a timm model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from app.encoders.models import images
from app.encoders.models.base import Input, Item
from app.encoders.models.images import DEFAULT_IMAGE_LIMITS, ImageLimits
from app.encoders.models.torchvision_ops import import_timm
from app.errors import (
    AnchorageError,
    EncoderUnavailable,
    ImageTooLarge,
    InvalidImage,
    InvalidInput,
)
from app.types import InputRole

if TYPE_CHECKING:
    from PIL.Image import Image

#: pixels of a patch's side: an image is as long as its number of patches
PATCH_SIDE = 16


@dataclass(frozen=True)
class Preprocessing:
    """The conversion of an image to an item's features, and of features to the model's input.

    transform  returns pixels (channels, height, width), uint8; or the model's input, float32
    mean, std  (channels, 1, 1), float32, of pixels from 0 to 1; None if `transform` normalises
    size       (channels, height, width)
    scaled     shorter side after a resize that keeps proportions
    draft      whether JPEG files are decoded at a reduced size that is large enough
    """

    transform: Callable[[Image], Tensor]
    mean: Tensor | None
    std: Tensor | None
    size: tuple[int, int, int]
    scaled: int
    draft: bool = False

    @property
    def mode(self) -> images.Mode:
        return "L" if self.size[0] == 1 else "RGB"

    @property
    def draft_side(self) -> int | None:
        """The least pixels of a JPEG's shorter side after a draft; None without drafts."""
        return max(self.size[1], self.size[2], self.scaled) if self.draft else None

    def normalise(self, features: Tensor) -> Tensor:
        """Return the model's input (n, channels, height, width), float32, on the features' device.

        The same operations in the same order as torchvision's ToTensor and Normalize, so that the
        vectors of registered encoders stay as they are.
        """
        if self.mean is None or self.std is None or features.dtype is not torch.uint8:
            return features
        # A tensor, because CUDA would multiply by the reciprocal of a number.
        full = torch.tensor(255.0, device=features.device)
        pixels = features.to(torch.float32).div_(full)
        return pixels.sub_(self.mean.to(features.device)).div_(self.std.to(features.device))


def timm_preprocessing(config: Mapping[str, Any], *, draft: bool) -> Preprocessing:
    """Return timm's own preprocessing: resize, crop the centre, normalise.

    config  from timm's `resolve_model_data_config`

    Raises EncoderUnavailable for other numbers of channels than 1 and 3, and any error of timm,
    torchvision and torch for a configuration that is not valid.
    """
    config = dict(config)
    size = channels, height, width = config["input_size"]
    if channels not in (1, 3):
        raise EncoderUnavailable(
            f"The model reads images of {channels} channels. The service supports 1 and 3.",
            field="model",
        )
    for key in ("mean", "std"):
        # Statistics of three channels become their mean for a model of one, as in timm's loaders.
        values = tuple(config[key])
        config[key] = values if len(values) == channels else (sum(values) / len(values),) * channels
    composed = import_timm("timm.data").create_transform(**config, is_training=False)
    scaled = int(max(height, width) / config["crop_pct"])
    return Preprocessing(*_split_off_normalisation(composed), size, scaled, draft)


def _split_off_normalisation(
    composed: Any,
) -> tuple[Callable[[Image], Tensor], Tensor | None, Tensor | None]:
    """Return the transform without its last steps ToTensor and Normalize, the mean and the std.

    A transform with other last steps is returned whole, with None. Raises ValueError for a std
    of zero.
    """
    transforms = import_timm("torchvision.transforms")
    *steps, to_tensor, normalize = composed.transforms
    if not (
        isinstance(to_tensor, transforms.ToTensor) and isinstance(normalize, transforms.Normalize)
    ):
        return composed, None, None
    to_pixels = transforms.Compose([*steps, transforms.PILToTensor(), torch.Tensor.contiguous])
    mean, std = (
        torch.as_tensor(values, dtype=torch.float32).view(-1, 1, 1)
        for values in (normalize.mean, normalize.std)
    )
    if (std == 0).any():
        raise ValueError("a std of the preprocessing is zero")
    return to_pixels, mean, std


class ImagePreparer:
    """Checks, decodes and preprocesses images. Several threads may call its methods at once."""

    def __init__(
        self, preprocessing: Preprocessing, limits: ImageLimits = DEFAULT_IMAGE_LIMITS
    ) -> None:
        self.preprocessing = preprocessing
        self._limits = limits

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Decode and preprocess images. Raises InvalidInput for texts, InvalidImage and
        ImageTooLarge, which name the rows.
        """
        items, wrong = [], []
        for row, data in enumerate(require_images(inputs)):
            try:
                items.append(self.prepare_one(data))
            except (InvalidImage, ImageTooLarge) as error:
                wrong.append((row, error))
        if wrong:
            raise combine_errors(wrong)
        return items

    def prepare_one(self, data: bytes, *, max_pixels: int | None = None) -> Item:
        """Decode and preprocess one image.

        Raises InvalidImage, ImageTooLarge, and LargeImage before it decodes, or resizes to, more
        than `max_pixels` pixels.
        """
        preprocessing = self.preprocessing
        image = images.open_image(
            data,
            self._limits,
            preprocessing.mode,
            draft_side=preprocessing.draft_side,
            max_pixels=max_pixels,
        )
        size = f"{image.size[0]} x {image.size[1]} pixels"
        side, shorter, longer = preprocessing.scaled, min(image.size), max(image.size)
        # The resize scales both sides by side / shorter, which could exceed any memory.
        resized = side**2 * longer // shorter
        if resized > self._limits.pixels:
            raise ImageTooLarge(
                f"The image is too long for its width ({size}): resized for this model it would "
                f"have more than {self._limits.pixels} pixels. Crop it.",
                limit=self._limits.pixels,
            )
        if max_pixels is not None and resized > max_pixels:
            raise images.LargeImage(resized)
        try:
            features = preprocessing.transform(image)
        except ValueError as error:  # a side shorter than one pixel
            raise InvalidImage(
                f"The image ({size}) cannot be resized for this model. Crop it."
            ) from error
        _, height, width = preprocessing.size
        return Item(
            features,
            length=max(1, height * width // PATCH_SIDE**2),
            tokens=0,
        )


def require_images(inputs: Sequence[Input]) -> list[bytes]:
    """Return the inputs. Raises InvalidInput for texts, and names their rows."""
    files = [value for value in inputs if isinstance(value, bytes)]
    if len(files) < len(inputs):
        raise InvalidInput(
            "This encoder reads images. Send image files, not texts.",
            field="inputs",
            rows=[row for row, value in enumerate(inputs) if not isinstance(value, bytes)],
        )
    return files


def combine_errors(wrong: Sequence[tuple[int, AnchorageError]]) -> AnchorageError:
    """Return one error of the first error's class, with the rows of all errors of that class."""
    first = wrong[0][1]
    rows = [row for row, error in wrong if type(error) is type(first)]
    detail = (
        first.detail
        if len(rows) == 1
        else f"{len(rows)} images cannot be read. The first: {first.detail}"
    )
    return type(first)(detail, field="inputs", rows=rows, limit=first.limit)
