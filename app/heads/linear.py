"""Heads of linear layers, with the tensors of a torch.nn.Linear or of a torch.nn.Sequential.

Without an architecture a head is one layer: logits = x weight^T + bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from app.errors import HeadTooLarge, InvalidHead

#: most bytes of a file, and of its tensors in float32
MAX_HEAD_BYTES = 64 * 2**20
MAX_LAYER_WIDTH = 16_384
#: numbers of the widest layer that one step computes: 32 MiB in float64
PIECE_NUMBERS = 2**22

#: with PyTorch's defaults: gelu by erf, elu with alpha 1, leaky_relu with slope 0.01, softplus with
#: beta 1; the last two do nothing when a head is applied
MODULES: dict[str, type[nn.Module]] = {
    "linear": nn.Linear,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
    "dropout": nn.Dropout,
    "identity": nn.Identity,
}


@dataclass(eq=False)
class LinearHead:
    """A head of float32 numbers, which computes in float64. `make_head` checks and builds it.

    widest  numbers of its widest layer
    """

    model: nn.Module
    dim: int
    outputs: int
    widest: int

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.model.state_dict().values())

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.float() for name, tensor in self.model.state_dict().items()}

    @torch.no_grad()
    def run(self, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n m"]:
        """Return outputs (n, m), computed in float64 in pieces of rows, so that no product of
        float32 overflows.
        """
        pieces = torch.split(vectors, max(1, PIECE_NUMBERS // self.widest))
        return clamp_to_float32(torch.cat([self.model(piece.double()) for piece in pieces]))


def clamp_to_float32(values: Float[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
    """Return the values as float32, clamped to its range.

    Raises InvalidHead for rows with NaN or infinity.
    """
    wrong = ~values.isfinite().all(dim=1)
    if bool(wrong.any()):
        raise InvalidHead(
            "The head returns NaN or infinity for these rows. Check the vectors and the head.",
            field="head",
            rows=wrong.nonzero().flatten().tolist(),
        )
    limit = torch.finfo(torch.float32).max
    return values.clamp(-limit, limit).float()


def make_head(
    tensors: Mapping[str, Tensor], architecture: Sequence[str] | None = None, *, dim: int
) -> LinearHead:
    """Check names, shapes and values, and return the head. Raises InvalidHead and HeadTooLarge.

    architecture  the modules, whose tensors are named after their positions; None: one linear layer
    """
    modules = ["linear"] if architecture is None else list(architecture)
    _check_modules(modules)
    places = [i for i, module in enumerate(modules) if module == "linear"]
    layers = {i: "" if architecture is None else f"{i}." for i in places}
    _check_names(tensors, list(layers.values()))
    size = sum(tensor.numel() for tensor in tensors.values()) * 4
    _require_at_most(size, MAX_HEAD_BYTES, f"The head takes {size} bytes in float32")
    width = widest = dim
    built: list[nn.Module] = []
    state = {}
    for i, module in enumerate(modules):
        if i not in layers:
            built.append(MODULES[module]())
            continue
        weight, bias = f"{layers[i]}weight", f"{layers[i]}bias"
        shape = list(tensors[weight].shape)
        outputs = shape[0] if len(shape) == 2 and shape[0] else 1
        for name, right in ((weight, [outputs, width]), (bias, [outputs])):
            if name not in tensors:
                continue
            place = name if architecture is None else "safetensors"
            if list(tensors[name].shape) != right:
                raise InvalidHead(
                    f"`{name}` must have shape {right}, which is [outputs, inputs] of a weight and "
                    f"[outputs] of a bias; got {list(tensors[name].shape)}.",
                    field=place,
                )
            state[name] = _to_float32(tensors[name], name, place)
        _require_at_most(outputs, MAX_LAYER_WIDTH, f"`{weight}` makes a layer of {outputs} numbers")
        built.append(nn.Linear(width, outputs, bias=bias in tensors, device="meta"))
        width, widest = outputs, max(widest, outputs)
    model = built[0] if architecture is None else nn.Sequential(*built)
    model.load_state_dict(state, assign=True)
    return LinearHead(model.double().eval(), dim, width, widest)


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file. Never unpickles.

    Raises HeadTooLarge, and InvalidHead for any other file.
    """
    _require_at_most(len(data), MAX_HEAD_BYTES, f"The head's file has {len(data)} bytes")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        pickled = data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")
        advice = " It is a pickle, the format of torch.save, which the service never opens. Save "
        advice += "it with safetensors.torch.save_file(model.state_dict(), ...)."
        raise InvalidHead(
            f"The file is not a safetensors file.{advice if pickled else ''}", field="safetensors"
        ) from error


def _require_at_most(found: int, limit: int, what: str) -> None:
    """Raises HeadTooLarge."""
    if found > limit:
        raise HeadTooLarge(
            f"{what}; the limit is {limit}. Send a smaller head.", field="safetensors", limit=limit
        )


def _check_modules(modules: Sequence[str]) -> None:
    if unknown := [i for i, module in enumerate(modules) if module not in MODULES]:
        raise InvalidHead(
            f"`architecture` has an unknown module {modules[unknown[0]][:64]!r}. "
            f"Use {', '.join(MODULES)}; other models are ONNX files of the operator.",
            field="architecture",
            rows=unknown,
        )
    if "linear" not in modules:
        raise InvalidHead(
            "`architecture` must have at least one 'linear' module.", field="architecture"
        )


def _check_names(tensors: Mapping[str, Tensor], layers: Sequence[str]) -> None:
    """Raises InvalidHead unless each tensor has a layer, and each layer its weight."""
    needed = [f"{layer}weight" for layer in layers]
    if not {*needed} <= {*tensors} <= {*needed, *(f"{layer}bias" for layer in layers)}:
        shown = sorted(name[:64] for name in tensors)
        more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
        raise InvalidHead(
            f"The head must have the tensors {', '.join(needed)}, the bias of each or none, and no "
            f"other; it has {shown[:8]}{more}.",
            field="safetensors",
        )


def _to_float32(tensor: Tensor, name: str, place: str) -> Tensor:
    """Return the tensor as float32. Raises InvalidHead unless it holds finite floats."""
    if not tensor.is_floating_point():
        raise InvalidHead(
            f"Tensor `{name}` must hold floats, not {tensor.dtype}. Convert it.", field=place
        )
    tensor = tensor.float()
    if not bool(tensor.isfinite().all()):
        raise InvalidHead(
            f"Tensor `{name}` contains NaN, infinity or a value beyond float32. "
            "Remove these values.",
            field=place,
        )
    return tensor
