"""Converts results of the maths to named tensors and back, to share them between processes.

A number becomes a tensor without dimensions.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from app.db.cache import TensorCodec
from app.maths.geometry.space import Space
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import Translator

Value = TypeVar("Value")


def _dump_dataclass(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """The fields of a dataclass that are not None; those of a nested one as `field.name`."""
    tensors: dict[str, Tensor] = {}
    for name, each in ((field.name, getattr(value, field.name)) for field in fields(value)):
        if is_dataclass(each):
            tensors |= _dump_dataclass(each, f"{prefix}{name}.")
        elif each is not None:
            kind = torch.float64 if isinstance(each, float) else None
            tensors[prefix + name] = (
                each if isinstance(each, Tensor) else torch.tensor(each, dtype=kind)
            )
    return tensors


def _load_dataclass(kind: type[Value], tensors: dict[str, Tensor], **parts: type) -> Value:
    """The dataclass again; `parts` are its nested dataclasses."""
    own: dict[str, Any] = {
        name: each if each.dim() else each.item()
        for name, each in tensors.items()
        if "." not in name
    }
    for part, of in parts.items():
        start = f"{part}."
        own[part] = _load_dataclass(
            of,
            {
                name.removeprefix(start): each
                for name, each in tensors.items()
                if name.startswith(start)
            },
        )
    return kind(**own)


def _dataclass_codec(kind: type[Value], **parts: type) -> TensorCodec[Value]:
    return TensorCodec(
        dump=_dump_dataclass, load=lambda tensors: _load_dataclass(kind, tensors, **parts)
    )


MATRIX: TensorCodec[Tensor] = TensorCodec(
    dump=lambda matrix: {"matrix": matrix}, load=lambda tensors: tensors["matrix"]
)
VERDICT: TensorCodec[bool] = TensorCodec(
    dump=lambda verdict: {"verdict": torch.tensor(verdict)},
    load=lambda tensors: bool(tensors["verdict"]),
)
SPACE = _dataclass_codec(Space)
DECODER = _dataclass_codec(Decoder)
TRANSLATOR = _dataclass_codec(Translator, decoder=Decoder)
