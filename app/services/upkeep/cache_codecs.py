"""How what the maths makes travels between processes: as named tensors, numbers as tensors of no dimension."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

import orjson
import torch
from torch import Tensor

from app.maths.geometry.space import Space
from app.maths.quality.confidence import Confidence
from app.maths.quality.confidence_features import Reference
from app.maths.quality.selection import Choice, ScoredCandidate
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import Translator
from app.storage.cache import TensorCodec

Value = TypeVar("Value")


def _dump(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """The fields of a dataclass that are not None; those of one within it as `field.name`."""
    tensors: dict[str, Tensor] = {}
    for name, each in ((field.name, getattr(value, field.name)) for field in fields(value)):
        if is_dataclass(each):
            tensors |= _dump(each, f"{prefix}{name}.")
        elif each is not None:
            kind = torch.float64 if isinstance(each, float) else None
            tensors[prefix + name] = (
                each if isinstance(each, Tensor) else torch.tensor(each, dtype=kind)
            )
    return tensors


def _load(kind: type[Value], tensors: dict[str, Tensor], **parts: type) -> Value:
    """The dataclass again, with its `parts`, which are dataclasses too."""
    own: dict[str, Any] = {
        name: each if each.dim() else each.item()
        for name, each in tensors.items()
        if "." not in name
    }
    for part, of in parts.items():
        start = f"{part}."
        own[part] = _load(
            of,
            {
                name.removeprefix(start): each
                for name, each in tensors.items()
                if name.startswith(start)
            },
        )
    return kind(**own)


def _codec(kind: type[Value], **parts: type) -> TensorCodec[Value]:
    return TensorCodec(dump=_dump, load=lambda tensors: _load(kind, tensors, **parts))


def _load_choice(tensors: dict[str, Tensor]) -> Choice:
    told = orjson.loads(tensors["json"].numpy().tobytes())
    return Choice(
        **{**told, "candidates": [ScoredCandidate(**each) for each in told["candidates"]]}
    )


CHOICE: TensorCodec[Choice] = TensorCodec(
    dump=lambda choice: {
        "json": torch.frombuffer(bytearray(orjson.dumps(asdict(choice))), dtype=torch.uint8)
    },
    load=_load_choice,
)


#: None: there are too few anchors for any. An entry holds a tensor, also where there is nothing to tell
CONFIDENCE: TensorCodec[Confidence | None] = TensorCodec(
    dump=lambda made: {"nothing": torch.tensor(1.0)} if made is None else _dump(made),
    load=lambda tensors: (
        None if "nothing" in tensors else _load(Confidence, tensors, reference=Reference)
    ),
)
MATRIX: TensorCodec[Tensor] = TensorCodec(
    dump=lambda matrix: {"matrix": matrix}, load=lambda tensors: tensors["matrix"]
)
SPACE = _codec(Space)
DECODER = _codec(Decoder)
TRANSLATOR = _codec(Translator, decoder=Decoder)
