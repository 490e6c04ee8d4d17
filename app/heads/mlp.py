"""Multilayer perceptrons: the names of the modules of a torch.nn.Sequential, and the tensors of its
state_dict().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from app.errors import HeadTooLarge, InvalidHead
from app.heads import files
from app.heads.base import MAX_HEAD_BYTES, clamp_to_float32

MAX_MODULES = 64
MAX_LAYER_WIDTH = 16_384
#: numbers of the widest layer that one step computes: 32 MiB in float64
MLP_PIECE_NUMBERS = 2**22

#: with PyTorch's defaults: gelu by erf, elu with alpha 1, leaky_relu with slope 0.01, softplus with
#: beta 1
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "softplus": functional.softplus,
}
#: modules without effect in evaluation mode
INERT_MODULES = ("dropout", "identity")
#: module -> its tensors -> whether the tensor is required
MODULE_TENSORS: dict[str, dict[str, bool]] = {
    "linear": {"weight": True, "bias": False},
    "layer_norm": {"weight": False, "bias": False},
    "batch_norm": {"weight": False, "bias": False, "running_mean": True, "running_var": True},
}
KNOWN_MODULES = (*MODULE_TENSORS, *ACTIVATIONS, *INERT_MODULES)
NORM_EPS = 1e-5

Parameters = Mapping[str, Tensor]


@dataclass(eq=False)
class MlpHead:
    """The modules in order, and the float32 tensors of each. `make_mlp` checks and builds it."""

    modules: Sequence[str]
    parameters: Sequence[Parameters]
    dim: int
    outputs: int
    widest: int
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(
            tensor.nbytes for tensors in self.parameters for tensor in tensors.values()
        )

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{i}.{name}": tensor
            for i, tensors in enumerate(self.parameters)
            for name, tensor in tensors.items()
        }

    def run(self, vectors: Tensor) -> Tensor:
        """Return outputs (n, m) for vectors (n, d), computed in float64, in pieces of rows."""
        wide = [
            {name: tensor.double() for name, tensor in tensors.items()}
            for tensors in self.parameters
        ]
        answers = []
        for piece in torch.split(vectors, max(1, MLP_PIECE_NUMBERS // self.widest)):
            values = piece.double()
            for module, tensors in zip(self.modules, wide, strict=True):
                values = _apply(module, tensors, values)
            answers.append(values)
        return clamp_to_float32(torch.cat(answers))


def _apply(module: str, tensors: Parameters, x: Tensor) -> Tensor:
    """Apply one module in evaluation mode, in float64."""
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if module == "linear":
        assert weight is not None
        return functional.linear(x, weight, bias)
    if module == "layer_norm":
        return functional.layer_norm(x, x.shape[1:], weight, bias, NORM_EPS)
    if module == "batch_norm":
        return functional.batch_norm(
            x, tensors["running_mean"], tensors["running_var"], weight, bias, eps=NORM_EPS
        )
    return ACTIVATIONS[module](x) if module in ACTIVATIONS else x


def make_mlp(tensors: Mapping[str, Tensor], architecture: Sequence[str], *, dim: int) -> MlpHead:
    """Check names, shapes and values, and return the head. Raises InvalidHead and HeadTooLarge."""
    _check_architecture(architecture)
    _check_names(tensors, architecture)
    size = sum(tensor.numel() for tensor in tensors.values()) * 4
    if size > MAX_HEAD_BYTES:
        raise HeadTooLarge(
            f"The head takes {size} bytes in float32; the limit is {MAX_HEAD_BYTES}. "
            "Send a smaller head.",
            field="safetensors",
            limit=MAX_HEAD_BYTES,
        )
    width = widest = dim
    parameters: list[Parameters] = []
    for i, module in enumerate(architecture):
        mine = {
            name: tensors[f"{i}.{name}"]
            for name in MODULE_TENSORS.get(module, {})
            if f"{i}.{name}" in tensors
        }
        after = _width_after(i, module, mine, width)
        for name, tensor in mine.items():
            shape = [after, width] if (module, name) == ("linear", "weight") else [after]
            if list(tensor.shape) != shape:
                raise InvalidHead(
                    f"Tensor `{i}.{name}` must have shape {shape}; got {list(tensor.shape)}.",
                    field="safetensors",
                )
            mine[name] = files.to_float32(tensor, f"{i}.{name}", "safetensors")
        if module == "batch_norm" and not bool((mine["running_var"] > 0).all()):
            raise InvalidHead(
                f"Tensor `{i}.running_var` must hold positive numbers only.", field="safetensors"
            )
        parameters.append(mine)
        width, widest = after, max(widest, after)
    return MlpHead(list(architecture), parameters, dim, width, widest)


def _width_after(i: int, module: str, tensors: Parameters, width: int) -> int:
    """Return the width after a module that reads `width` numbers."""
    if module != "linear":
        return width
    weight = tensors["weight"]
    if weight.ndim != 2 or weight.shape[0] == 0:
        raise InvalidHead(
            f"Tensor `{i}.weight` must have shape [outputs, {width}]; got {list(weight.shape)}.",
            field="safetensors",
        )
    if weight.shape[0] > MAX_LAYER_WIDTH:
        raise HeadTooLarge(
            f"Tensor `{i}.weight` makes a layer of {weight.shape[0]} numbers; the limit is "
            f"{MAX_LAYER_WIDTH}. Send a narrower head.",
            field="safetensors",
            limit=MAX_LAYER_WIDTH,
        )
    return weight.shape[0]


def _check_architecture(architecture: Sequence[str]) -> None:
    if len(architecture) > MAX_MODULES:
        raise HeadTooLarge(
            f"`architecture` has {len(architecture)} modules; the limit is {MAX_MODULES}. "
            "Send a head with fewer modules.",
            field="architecture",
            limit=MAX_MODULES,
        )
    if unknown := [i for i, module in enumerate(architecture) if module not in KNOWN_MODULES]:
        raise InvalidHead(
            f"`architecture` has an unknown module {architecture[unknown[0]][:64]!r}. "
            f"Use {', '.join(KNOWN_MODULES)}.",
            field="architecture",
            rows=unknown,
        )
    if "linear" not in architecture:
        raise InvalidHead(
            "`architecture` must have at least one 'linear' module.", field="architecture"
        )


def _check_names(tensors: Mapping[str, Tensor], architecture: Sequence[str]) -> None:
    """Raises InvalidHead unless each tensor has a module, and each module its required tensors."""
    known = {
        f"{i}.{name}": needed
        for i, module in enumerate(architecture)
        for name, needed in MODULE_TENSORS.get(module, {}).items()
    }
    ignored = {
        f"{i}.num_batches_tracked"
        for i, module in enumerate(architecture)
        if module == "batch_norm"
    }
    if missing := [name for name, needed in known.items() if needed and name not in tensors]:
        has = sorted(name[:64] for name in tensors)[:8]
        module = missing[0].split(".")[0]
        raise InvalidHead(
            f"The file has no tensor {missing[0]!r}, which module {module} of the architecture "
            f"needs. It has {has}.",
            field="safetensors",
        )
    if surplus := sorted(set(tensors) - set(known) - ignored):
        raise InvalidHead(
            f"Tensor {surplus[0][:64]!r} belongs to no module of the architecture. Remove it, or "
            "correct the architecture.",
            field="safetensors",
        )
    for i, module in enumerate(architecture):
        if module == "linear":
            continue
        if f"{i}.bias" in tensors and f"{i}.weight" not in tensors:
            raise InvalidHead(
                f"The file has `{i}.bias` without `{i}.weight`. Send both.", field="safetensors"
            )


def read_mlp(data: bytes, architecture: Sequence[str], *, dim: int) -> MlpHead:
    """Return the head of a safetensors file. Raises InvalidHead and HeadTooLarge."""
    return make_mlp(files.read_tensors(data), architecture, dim=dim)
