"""Heads by kind: made of what a client sends, and made again of what was stored."""

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
    """A head of a client's file: safetensors for `linear` and `mlp` (which has an architecture), or ONNX.

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
    """The head whose `tensors()` these are; owners take turns at the ONNX processes.

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
        raise InvalidHead(f"a head's kind is one of {', '.join(HEAD_KINDS)}", field="kind")
    if (kind == "mlp") != (architecture is not None):
        raise InvalidHead("an architecture belongs to an mlp, and only there", field="architecture")
