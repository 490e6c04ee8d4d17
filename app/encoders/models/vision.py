"""Loads and runs timm models from the operator's folder or an allowed hub.

A checkpoint is a folder with config.json and model.safetensors, in the layout of timm's
`save_for_hf` and `push_to_hf_hub`, which timm's hub also uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from app.encoders.models.base import (
    ENCODER_DTYPES,
    EncoderModel,
    EncoderSpec,
    Input,
    Item,
    ModelIdentity,
    ModelSources,
)
from app.encoders.models.images import ImagePreparer
from app.encoders.models.model_files import find_model
from app.encoders.models.options import ImageOptions, choose_dim
from app.encoders.models.torchvision_ops import import_timm
from app.errors import EncoderUnavailable
from app.types import InputRole, Modality

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


class _Config(BaseModel):
    """The parts of a folder's config.json that are checked; timm reads the others."""

    architecture: str
    model_args: dict[str, Any] = {}


class VisionEncoder(EncoderModel):
    """A timm model without its classifier: its vectors are the classifier's inputs."""

    modality = Modality.image
    batch = 256

    def __init__(
        self, model: nn.Module, preparer: ImagePreparer, identity: ModelIdentity, *, device: str
    ) -> None:
        self.identity = identity
        self.preparer = preparer
        self.nbytes = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
        self._model: Callable[[Tensor], Tensor] = model
        self._device, self._dtype = device, ENCODER_DTYPES[identity.dtype or "float32"]

    def prepare(self, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Decode and preprocess images. Raises InvalidInput for texts, InvalidImage and
        ImageTooLarge, which name the rows.
        """
        return self.preparer.prepare(inputs)

    def run(self, items: Sequence[Item], is_abandoned: Callable[[], bool]) -> Tensor:
        """Return vectors (n, dim), float32, on the CPU."""
        with torch.inference_mode():
            batch = torch.stack([item.features for item in items])
            vectors = self._model(batch.to(self._device, self._dtype)).float()[:, : self.dim]
            return (nn.functional.normalize(vectors) if self.identity.normalise else vectors).cpu()


def load(spec: EncoderSpec, sources: ModelSources, device: str) -> VisionEncoder:
    """Load a model by name. Never runs a model's own code, and never unpickles weights.

    Raises EncoderUnavailable, InvalidOption, and anything else for a broken model.
    """
    options = ImageOptions.model_validate(dict(spec.options))
    data = import_timm("timm.data")  # first of all: without the extra, it is what is missing
    folder, revision = find_model(spec, sources)
    model = _load_folder(folder)
    config = data.resolve_model_data_config(model)
    preparer = ImagePreparer(config)
    dtype = ENCODER_DTYPES[options.dtype]
    model = model.eval().requires_grad_(False).to(device, dtype)
    full = _measure_dim(model, preparer, device, dtype)
    identity = ModelIdentity(
        model=spec.model,
        revision=revision,
        pooling=_pooling(model),
        normalise=bool(options.normalise),
        dim=choose_dim(options, full),
        dtype=options.dtype,
    )
    return VisionEncoder(model, preparer, identity, device=device)


def _load_folder(folder: Path) -> Any:
    """Let timm load the folder, because it converts older layouts.

    Raises EncoderUnavailable for a name that timm does not know, for arguments that would load
    another checkpoint, and for weights that do not fit: timm would fill gaps with random numbers.
    """
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise _unavailable(
                f"The model has no {name}, and the service reads no pickled weights (.bin, .pth). "
                "Ask the operator to add or convert it."
            )
    config = _Config.model_validate_json((folder / "config.json").read_bytes())
    if not import_timm().is_model(config.architecture):
        raise _unavailable(f"timm has no model named {config.architecture!r}.")
    if forbidden := sorted(
        key
        for key in config.model_args
        if key in FORBIDDEN_ARGUMENTS or key.startswith("pretrained")
    ):
        raise _unavailable(
            f"`model_args` of the model's config.json may not contain {', '.join(forbidden)}. Ask "
            "the operator to remove them."
        )
    model = import_timm().create_model(f"local-dir:{folder}", pretrained=True)
    # With different numbers timm does not check the weights.
    if model.num_classes != model.pretrained_cfg["num_classes"]:
        raise _unavailable("The model's config.json contains two different numbers of classes.")
    model.reset_classifier(0)
    return model


def _unavailable(detail: str) -> EncoderUnavailable:
    return EncoderUnavailable(detail, field="model")


def _measure_dim(
    model: Callable[[Tensor], Any], preparer: ImagePreparer, device: str, dtype: torch.dtype
) -> int:
    """Encode a blank image and return the dimension, so that a broken model fails when it loads."""
    from PIL import Image

    blank = preparer.transform(Image.new("RGB", preparer.size))
    with torch.inference_mode():
        vectors = model(blank[None].to(device, dtype))
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or not vectors.isfinite().all():
        raise _unavailable("The model does not return one vector of numbers for each image.")
    return int(vectors.shape[1])


def _pooling(model: nn.Module) -> str | None:
    """Return the pooling that the model or its head names, as a string or in a layer; else None."""
    for owner in (model, getattr(model, "head", None)):
        pool = getattr(owner, "global_pool", None)
        name = getattr(pool, "pool_type", pool)
        if isinstance(name, str) and name:
            return name
    return None
