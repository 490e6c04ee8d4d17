"""The one object that bulk translation sends to every process: a translator with its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson
from safetensors.torch import load
from torch import Tensor

from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import RowFlags, Translator
from app.services.serving.placed_translator import PlacedTranslator, empty_rows
from app.services.translators.translators import canonical_json


@dataclass(frozen=True, eq=False)
class BulkRows:
    """Translated rows on the CPU. flags: None if no row is flagged."""

    vectors: Tensor
    flags: RowFlags | None


@dataclass(frozen=True, eq=False)
class RowTranslator:
    """A fitted translator, and what made it.

    id     the public id of the translator
    facts  source, target, anchor set, method and options, as texts for a file's metadata
    device  where `translate` multiplies
    """

    id: str
    translator: Translator
    facts: dict[str, str]
    device: str = "cpu"

    @property
    def dims(self) -> tuple[int, int]:
        """The dimensions of the source and of the target."""
        return self.translator.dims

    def translate(self, vectors: Tensor) -> BulkRows:
        """Translate vectors (n, d_x) of any float type, in the memory of the CPU, on the device.

        Raises NonFinite and OutOfRange, which name the rows.
        """
        out = empty_rows(len(vectors), self.dims[1], self.device)
        flags = self.placed.apply_into(vectors, out)
        return BulkRows(out, flags)

    @cached_property
    def placed(self) -> PlacedTranslator:
        """The translator on its device."""
        return PlacedTranslator(self.translator, self.device)

    def to(self, device: str) -> RowTranslator:
        """The same translator, to be used on a device."""
        return replace(self, device=device)


def read_translator(data: bytes, options: Mapping[str, Any]) -> RowTranslator:
    """Return the translator of a file that `translators.read_file` made.

    options  of its method, which its answer names
    """
    size = int.from_bytes(data[:8], "little")
    about = orjson.loads(orjson.loads(data[8 : 8 + size])["__metadata__"]["anchorage"])
    tensors = load(data)
    matrix = tensors["matrix"]
    decoder = Decoder(
        matrix,
        matrix.double().square().sum(dim=1).float(),
        about["scale"],
        tensors["target_mean"],
        about["renormalise"],
        about["kernel"],
    )
    translator = Translator(
        tensors["source_mean"], decoder, about["kept_scale"], tensors.get("landmarks")
    )
    facts = {name: about[name] for name in ("source", "target", "anchor_set", "method")}
    facts["options"] = canonical_json(dict(options)).decode()
    return RowTranslator(about["id"], translator, facts)
