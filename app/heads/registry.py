"""Builds heads of all kinds, from files that clients send and from stored tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from app.errors import InvalidHead
from app.heads import linear, mlp
from app.heads.base import HeadModel
from app.heads.onnx.head import load_onnx, make_onnx
from app.heads.onnx.process import OnnxRunner

HEAD_KINDS = ("linear", "mlp", "onnx")


def make(
    kind: str,
    data: bytes,
    architecture: Sequence[str] | None = None,
    *,
    dim: int,
    runner: OnnxRunner,
    owner: str,
) -> HeadModel:
    """Return the head of a client's file: safetensors for `linear` and `mlp`, ONNX for `onnx`.

    Only `mlp` has an architecture.
    Raises InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded.
    """
    _check(kind, architecture)
    if kind == "linear":
        weight, bias = linear.read_safetensors(data)
        return linear.make_linear_head(weight, bias, dim=dim)
    if kind == "mlp":
        return mlp.read_mlp(data, architecture or (), dim=dim)
    return make_onnx(data, dim=dim, runner=runner, owner=owner)


def load(
    kind: str,
    tensors: Mapping[str, Tensor],
    architecture: Sequence[str] | None = None,
    *,
    dim: int,
    runner: OnnxRunner,
    owner: str,
) -> HeadModel:
    """Return the head of stored `tensors()`. Owners take turns at the ONNX process.

    Raises InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded.
    """
    _check(kind, architecture)
    if kind == "linear":
        return linear.make_linear_head(tensors["weight"], tensors["bias"], dim=dim)
    if kind == "mlp":
        return mlp.make_mlp(tensors, architecture or (), dim=dim)
    return load_onnx(tensors["onnx"].numpy().tobytes(), dim=dim, runner=runner, owner=owner)


def _check(kind: str, architecture: Sequence[str] | None) -> None:
    if kind not in HEAD_KINDS:
        raise InvalidHead(
            f"`kind` must be one of {', '.join(HEAD_KINDS)}; got {kind!r}.", field="kind"
        )
    if kind == "mlp" and architecture is None:
        raise InvalidHead(
            "`kind: mlp` needs `architecture`, the list of its modules. Add it.",
            field="architecture",
        )
    if kind != "mlp" and architecture is not None:
        raise InvalidHead(
            "`architecture` only applies to `kind: mlp`. Remove it.", field="architecture"
        )
