"""Multilayer perceptrons: the modules of a torch.nn.Sequential by name, and the tensors of its state_dict()."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from app.errors import HeadTooLarge, InvalidHead
from app.heads import files
from app.heads.base import MAX_HEAD_BYTES, clamp_to_float32

MOST_MODULES = 64
MAX_LAYER_WIDTH = 16_384
#: numbers of the widest layer that are computed at a time: 32 MiB in float64
MLP_PIECE_NUMBERS = 2**22

#: PyTorch's own defaults throughout: gelu by erf, elu with alpha 1, leaky_relu with slope 0.01, softplus with beta 1
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
#: do nothing to a trained model
INERT_MODULES = ("dropout", "identity")
#: module -> its tensors -> whether it cannot do without
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
    """`modules` in order, and for each the tensors it has, all float32: made by `mlp`, which checks them."""

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
        """Answers (n, m) to vectors (n, d), computed in float64, some rows at a time."""
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
    """One module in evaluation mode, in float64."""
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
    """Check names, shapes and values. Raises InvalidHead, naming what is wrong, and HeadTooLarge."""
    _check_architecture(architecture)
    _check_names(tensors, architecture)
    size = sum(tensor.numel() for tensor in tensors.values()) * 4
    if size > MAX_HEAD_BYTES:
        raise HeadTooLarge(
            f"a head may take {MAX_HEAD_BYTES} bytes in float32, this takes {size}",
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
                    f"{i}.{name} must have shape {shape}, got {list(tensor.shape)}",
                    field="safetensors",
                )
            mine[name] = files.to_float32(tensor, f"{i}.{name}", "safetensors")
        if module == "batch_norm" and not bool((mine["running_var"] > 0).all()):
            raise InvalidHead(f"{i}.running_var must be positive", field="safetensors")
        parameters.append(mine)
        width, widest = after, max(widest, after)
    return MlpHead(list(architecture), parameters, dim, width, widest)


def _width_after(i: int, module: str, tensors: Parameters, width: int) -> int:
    """Numbers that come out of a module that reads `width`."""
    if module != "linear":
        return width
    weight = tensors["weight"]
    if weight.ndim != 2 or weight.shape[0] == 0:
        raise InvalidHead(
            f"{i}.weight must have shape [outputs, {width}], got {list(weight.shape)}",
            field="safetensors",
        )
    if weight.shape[0] > MAX_LAYER_WIDTH:
        raise HeadTooLarge(
            f"{i}.weight: a layer may be {MAX_LAYER_WIDTH} wide, got {weight.shape[0]}",
            field="safetensors",
            limit=MAX_LAYER_WIDTH,
        )
    return weight.shape[0]


def _check_architecture(architecture: Sequence[str]) -> None:
    if len(architecture) > MOST_MODULES:
        raise HeadTooLarge(
            f"an architecture may have {MOST_MODULES} modules, got {len(architecture)}",
            field="architecture",
            limit=MOST_MODULES,
        )
    if unknown := [i for i, module in enumerate(architecture) if module not in KNOWN_MODULES]:
        raise InvalidHead(
            f"no module is called {architecture[unknown[0]][:64]!r}: use {', '.join(KNOWN_MODULES)}",
            field="architecture",
            rows=unknown,
        )
    if "linear" not in architecture:
        raise InvalidHead("an architecture has at least one 'linear'", field="architecture")


def _check_names(tensors: Mapping[str, Tensor], architecture: Sequence[str]) -> None:
    """Every tensor has its module, and every module its tensors."""
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
            f"the file lacks {missing[0]!r}, which module {module} of the architecture needs; it has {has}",
            field="safetensors",
        )
    if surplus := sorted(set(tensors) - set(known) - ignored):
        raise InvalidHead(
            f"the architecture has no place for tensor {surplus[0][:64]!r}", field="safetensors"
        )
    for i, module in enumerate(architecture):
        if module == "linear":
            continue
        if f"{i}.bias" in tensors and f"{i}.weight" not in tensors:
            raise InvalidHead(f"the file has '{i}.bias' without '{i}.weight'", field="safetensors")


def read_mlp(data: bytes, architecture: Sequence[str], *, dim: int) -> MlpHead:
    """An MLP of a safetensors file. Raises InvalidHead, HeadTooLarge."""
    return make_mlp(files.read_tensors(data), architecture, dim=dim)
