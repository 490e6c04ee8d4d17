"""Builds heads of all kinds, from files and from stored tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from app.errors import InvalidHead
from app.heads import linear, mlp, onnx
from app.heads.base import HeadModel


def make(
    kind: str, data: bytes, architecture: Sequence[str] | None = None, *, dim: int
) -> HeadModel:
    """Return the head of a client's safetensors file. Only `mlp` has an architecture.

    Raises InvalidHead and HeadTooLarge.
    """
    check_architecture(kind, architecture)
    if kind == "linear":
        weight, bias = linear.read_safetensors(data)
        return linear.make_linear_head(weight, bias, dim=dim)
    return mlp.read_mlp(data, architecture or (), dim=dim)


def load(
    kind: str,
    tensors: Mapping[str, Tensor],
    architecture: Sequence[str] | None = None,
    *,
    dim: int,
    folder: Path | None = None,
    file: str | None = None,
) -> HeadModel:
    """Return the head of stored `tensors()`; an ONNX head is read from `file` in `folder`.

    Raises InvalidHead and HeadTooLarge.
    """
    if kind == "linear":
        return linear.make_linear_head(tensors["weight"], tensors["bias"], dim=dim)
    if kind == "mlp":
        return mlp.make_mlp(tensors, architecture or (), dim=dim)
    digest = tensors.get("digest")
    if file is None or digest is None:
        raise InvalidHead(
            "This head was uploaded as an ONNX file, which the service no longer runs. Ask the "
            "operator to put the file into ANCHORAGE_HEADS_DIR, and register it again.",
            field="head",
        )
    return onnx.open_onnx(folder, file, dim=dim, digest=digest.numpy().tobytes())


def check_architecture(kind: str, architecture: Sequence[str] | None) -> None:
    """Raises InvalidHead unless exactly a head of kind `mlp` has an architecture."""
    if kind == "mlp" and architecture is None:
        raise InvalidHead(
            "`kind: mlp` needs `architecture`, the list of its modules. Add it.",
            field="architecture",
        )
    if kind != "mlp" and architecture is not None:
        raise InvalidHead(
            "`architecture` only applies to `kind: mlp`. Remove it.", field="architecture"
        )
