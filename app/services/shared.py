"""How what the maths makes travels between processes: as named tensors, numbers as tensors of no dimension."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
import torch
from torch import Tensor

from app.maths.confidence import Confidence, Reference
from app.maths.selection import Choice, Scored
from app.maths.space import Space
from app.maths.translator import Decoder, Translator
from app.storage.cache import Shared


def _number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def _dump_decoder(decoder: Decoder) -> dict[str, Tensor]:
    return {
        "matrix": decoder.matrix,
        "energy": decoder.energy,
        "mean": decoder.mean,
        "scale": _number(decoder.scale),
        "renormalise": _number(decoder.renormalise),
    }


def _load_decoder(tensors: dict[str, Tensor]) -> Decoder:
    return Decoder(
        matrix=tensors["matrix"],
        energy=tensors["energy"],
        scale=float(tensors["scale"]),
        mean=tensors["mean"],
        renormalise=bool(tensors["renormalise"]),
    )


def _dump_translator(translator: Translator) -> dict[str, Tensor]:
    kept = {} if translator.kept_scale is None else {"kept_scale": _number(translator.kept_scale)}
    return {"source_mean": translator.source_mean, **kept, **_dump_decoder(translator.decoder)}


def _load_translator(tensors: dict[str, Tensor]) -> Translator:
    kept = float(tensors["kept_scale"]) if "kept_scale" in tensors else None
    return Translator(tensors["source_mean"], _load_decoder(tensors), kept)


SPACE: Shared[Space] = Shared(
    dump=lambda space: {"mean": space.mean, "unit": space.unit, "norms": space.norms, "scale": _number(space.scale)},
    load=lambda tensors: Space(tensors["mean"], float(tensors["scale"]), tensors["unit"], tensors["norms"]),
)


def _load_choice(tensors: dict[str, Tensor]) -> Choice:
    told = orjson.loads(tensors["json"].numpy().tobytes())
    return Choice(**{**told, "candidates": [Scored(**each) for each in told["candidates"]]})


CHOICE: Shared[Choice] = Shared(
    dump=lambda choice: {"json": torch.frombuffer(bytearray(orjson.dumps(asdict(choice))), dtype=torch.uint8)}, load=_load_choice
)


def _dump_confidence(confidence: Confidence | None) -> dict[str, Tensor]:
    """An entry holds a tensor, also where there is nothing to tell."""
    if confidence is None:
        return {"nothing": _number(1)}
    told, reference = dict(vars(confidence)), vars(confidence.reference)
    del told["reference"]
    named = told | {f"reference.{name}": each for name, each in reference.items()}
    return {name: each if isinstance(each, Tensor) else _number(each) for name, each in named.items()}


def _load_confidence(tensors: dict[str, Tensor]) -> Confidence | None:
    if "nothing" in tensors:
        return None
    told: dict[str, Any] = {name: each if each.dim() else float(each) for name, each in tensors.items()}
    reference = {name.removeprefix("reference."): told.pop(name) for name in tensors if name.startswith("reference.")}
    return Confidence(Reference(**reference), **told)


#: None: there are too few anchors for any
CONFIDENCE: Shared[Confidence | None] = Shared(dump=_dump_confidence, load=_load_confidence)
MATRIX: Shared[Tensor] = Shared(dump=lambda matrix: {"matrix": matrix}, load=lambda tensors: tensors["matrix"])
DECODER: Shared[Decoder] = Shared(dump=_dump_decoder, load=_load_decoder)
TRANSLATOR: Shared[Translator] = Shared(dump=_dump_translator, load=_load_translator)
