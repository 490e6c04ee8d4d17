"""Reads safetensors files and their tensors."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from app.errors import InvalidHead
from app.heads.base import check_size


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file. Never unpickles.

    Raises HeadTooLarge, and InvalidHead for any other file.
    """
    check_size(data, "safetensors")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidHead(
            f"The file is not a safetensors file.{_guess_format(data)}", field="safetensors"
        ) from error


def _guess_format(data: bytes) -> str:
    """Return advice for a client that sent a pickle."""
    if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
        return (
            " It is a pickle, the format of torch.save, which the service never opens. "
            "Save it with safetensors.torch.save_file(model.state_dict(), ...)."
        )
    return ""


def to_float32(tensor: Tensor, name: str, field: str) -> Tensor:
    """Return the tensor as float32. Raises InvalidHead unless it holds finite floats."""
    if not tensor.is_floating_point():
        raise InvalidHead(
            f"Tensor `{name}` must hold floats, not {tensor.dtype}. Convert it.", field=field
        )
    tensor = tensor.float()
    if not bool(tensor.isfinite().all()):
        raise InvalidHead(
            f"Tensor `{name}` contains NaN, infinity or a value beyond float32. "
            "Remove these values.",
            field=field,
        )
    return tensor
