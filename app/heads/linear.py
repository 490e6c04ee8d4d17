"""Linear heads, in the naming of torch.nn.Linear: logits = x weight^T + bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from app.errors import InvalidHead

#: tensors of a linear head's safetensors file
NAMES = {"weight", "bias"}


@dataclass(frozen=True, eq=False)
class LinearHead:
    """weight (c, d) and bias (c,): in the units of the space it was trained in, one row a class."""

    weight: Float32[Tensor, "c d"]
    bias: Float32[Tensor, " c"]

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias}

    def scores(self, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n c"]:
        """Probabilities (n, c): the softmax of the logits, in float64, where no product of float32 numbers overflows."""
        logits = torch.nn.functional.linear(vectors.double(), self.weight.double(), self.bias.double())
        return torch.softmax(logits, dim=1).float()


def linear_head(weight: Tensor, bias: Tensor | None, *, dim: int, classes: int) -> LinearHead:
    """Check shapes and values. Raises InvalidHead, naming what is wrong."""
    if weight.ndim != 2 or list(weight.shape) != [classes, dim]:
        raise InvalidHead(
            f"weight must have shape [{classes}, {dim}] (classes, dimension), got {list(weight.shape)}", field="weight"
        )
    bias = torch.zeros(classes) if bias is None else bias
    if list(bias.shape) != [classes]:
        raise InvalidHead(f"bias must have shape [{classes}], got {list(bias.shape)}", field="bias")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if not tensor.is_floating_point():
            raise InvalidHead(f"{name} must hold floats, got {tensor.dtype}", field=name)
        if not bool(tensor.float().isfinite().all()):
            raise InvalidHead(f"{name} holds NaN, infinity or a value beyond float32", field=name)
    return LinearHead(weight.float(), bias.float())


def read_safetensors(data: bytes) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a safetensors file. Raises InvalidHead for anything else."""
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidHead("not a safetensors file", field="safetensors") from error
    if "weight" not in tensors or not set(tensors) <= NAMES:
        raise InvalidHead(f"expected tensors 'weight' and optionally 'bias', got {sorted(tensors)}", field="safetensors")
    return tensors["weight"], tensors.get("bias")
