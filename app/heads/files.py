"""Safetensors files and their tensors."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from app.errors import InvalidHead
from app.heads.base import check_size


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """Every tensor of a safetensors file. Raises HeadTooLarge, and InvalidHead for anything else: nothing is ever unpickled."""
    check_size(data, "safetensors")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidHead(f"not a safetensors file{_guess(data)}", field="safetensors") from error


def _guess(data: bytes) -> str:
    """What a client probably sent instead."""
    if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
        return ": a pickle, as torch.save writes it, is never opened; write safetensors.torch.save_file(model.state_dict(), ...)"
    return ""


def to_float32(tensor: Tensor, name: str, field: str) -> Tensor:
    """The tensor as float32. Raises InvalidHead unless it holds floats that are finite in float32."""
    if not tensor.is_floating_point():
        raise InvalidHead(f"{name} must hold floats, got {tensor.dtype}", field=field)
    tensor = tensor.float()
    if not bool(tensor.isfinite().all()):
        raise InvalidHead(f"{name} holds NaN, infinity or a value beyond float32", field=field)
    return tensor
