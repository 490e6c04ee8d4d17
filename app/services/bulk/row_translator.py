"""The one object that bulk translation sends to every process: a translator with its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson
from safetensors.torch import load
from torch import Tensor

from app.errors import InvalidRequest
from app.maths.quality.confidence import Confidence, ExpectedCosines, expected_cosines
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import RowFlags, Translator
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving.apply import serve_translator
from app.services.serving.confidence import find_confidence
from app.services.serving.placed_translator import PlacedTranslator, empty_rows
from app.services.translators import translators
from app.services.translators.translators import FittedTranslator, canonical_json
from app.services.upkeep.cache_codecs import CONFIDENCE
from app.storage.tables import SpaceRow

#: begins the names of tensors that belong to the model of the confidence
CONFIDENCE_PREFIX = "confidence."

#: the level of the intervals of `--confidence`
BULK_LEVEL = 0.9


@dataclass(frozen=True, eq=False)
class BulkRows:
    """Translated rows on the CPU. flags and judged: None if no row is flagged, or none is judged"""

    vectors: Tensor
    flags: RowFlags | None
    judged: ExpectedCosines | None


@dataclass(frozen=True, eq=False)
class RowTranslator:
    """A fitted translator, what made it, and the model of its confidence if that was requested.

    id     the public id of the translator
    facts  source, target, anchor set, method and options, as texts for a file's metadata
    device  where `translate` multiplies
    """

    id: str
    translator: Translator
    facts: dict[str, str]
    confidence: Confidence | None = None
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
        judged = None
        if self.confidence is not None:
            judged = expected_cosines(self.confidence, vectors, level=BULK_LEVEL)
        return BulkRows(out, flags, judged)

    @cached_property
    def placed(self) -> PlacedTranslator:
        """The translator on its device."""
        return PlacedTranslator(self.translator, self.device)

    def to(self, device: str) -> RowTranslator:
        """The same translator, to be used on a device. Confidence stays on the CPU."""
        return replace(self, device=device)


def pack_translator(
    services: Services, context: RequestContext, content: str, *, confidence: bool
) -> bytes:
    """Return the safetensors file of a translator, by its id.

    confidence  whether it also has the model of its confidence
    Raises as `translators.read_file`, and InvalidRequest for confidence without enough anchors.
    """
    if not confidence:
        return translators.read_file(services, context, content)

    def model(fitted: FittedTranslator, pair: tuple[SpaceRow, SpaceRow]) -> dict[str, Tensor]:
        found = find_confidence(services, serve_translator(fitted, pair))
        if found is None:
            raise InvalidRequest(
                "The anchor set has too few anchors for `confidence`. Remove it, or add anchors.",
                field="confidence",
            )
        return {CONFIDENCE_PREFIX + name: each for name, each in CONFIDENCE.dump(found).items()}

    return translators.read_file(services, context, content, more=model)


def read_translator(data: bytes, options: Mapping[str, Any]) -> RowTranslator:
    """Return the translator of a file that `pack_translator` made.

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
    model = {
        name.removeprefix(CONFIDENCE_PREFIX): each
        for name, each in tensors.items()
        if name.startswith(CONFIDENCE_PREFIX)
    }
    facts = {name: about[name] for name in ("source", "target", "anchor_set", "method")}
    facts["options"] = canonical_json(dict(options)).decode()
    return RowTranslator(about["id"], translator, facts, CONFIDENCE.load(model) if model else None)
