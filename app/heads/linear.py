"""Linear heads, with the names of torch.nn.Linear: logits = x weight^T + bias."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float32
from torch import Tensor

from app.errors import InvalidHead
from app.heads import files
from app.heads.base import clamp_to_float32

#: tensors of a linear head's safetensors file
LINEAR_TENSORS = {"weight", "bias"}


@dataclass(eq=False)
class LinearHead:
    """weight (c, d) and bias (c,): one row for each class or value, in the units of the head's
    space.
    """

    weight: Float32[Tensor, "c d"]
    bias: Float32[Tensor, " c"]
    dim: int = field(init=False)
    outputs: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.outputs, self.dim = self.weight.shape
        self.nbytes = self.weight.nbytes + self.bias.nbytes

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias}

    def run(self, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n c"]:
        """Return logits (n, c), computed in float64, so that no product of float32 overflows."""
        return clamp_to_float32(
            torch.nn.functional.linear(vectors.double(), self.weight.double(), self.bias.double())
        )


def make_linear_head(
    weight: Tensor, bias: Tensor | None, *, dim: int, classes: int | None = None
) -> LinearHead:
    """Check shapes and values, and return the head. Without `classes`, weight may have any number
    of rows. Raises InvalidHead.
    """
    if classes is None:
        classes = weight.shape[0] if weight.ndim == 2 and weight.shape[0] else 1
    if weight.ndim != 2 or list(weight.shape) != [classes, dim]:
        raise InvalidHead(
            f"`weight` must have shape [{classes}, {dim}], which is [classes, dimension]; "
            f"got {list(weight.shape)}.",
            field="weight",
        )
    bias = torch.zeros(classes) if bias is None else bias
    if list(bias.shape) != [classes]:
        raise InvalidHead(
            f"`bias` must have shape [{classes}]; got {list(bias.shape)}.", field="bias"
        )
    return LinearHead(
        files.to_float32(weight, "weight", "weight"), files.to_float32(bias, "bias", "bias")
    )


def read_safetensors(data: bytes) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a safetensors file. Raises HeadTooLarge and InvalidHead."""
    tensors = files.read_tensors(data)
    if "weight" not in tensors or not set(tensors) <= LINEAR_TENSORS:
        raise InvalidHead(
            "The file must contain the tensor `weight`, optionally `bias`, and no other; "
            f"it has {_list_names(tensors)}.",
            field="safetensors",
        )
    return tensors["weight"], tensors.get("bias")


def _list_names(tensors: dict[str, Tensor], most: int = 8) -> str:
    """Return the first names, because a file may have thousands."""
    names = sorted(tensors)
    return str([name[:64] for name in names[:most]]) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )
