"""The one object that bulk translation sends to every process: a translator with its facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from app.errors import InvalidRequest
from app.maths.quality.confidence import Confidence, ExpectedCosines, expected_cosines
from app.maths.translators.translator import RowFlags, Translator
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving.apply import Translation, prepare_map
from app.services.serving.confidence import find_confidence
from app.services.serving.placed_translator import PlacedTranslator, empty_rows
from app.services.translators.translators import FitRequest, canonical_json

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


def make_row_translator(
    services: Services, context: RequestContext, request: FitRequest, *, confidence: bool
) -> RowTranslator:
    """Fit the translator, or find it, and write its row.

    Raises the not-found and option errors, and InvalidRequest for a translation into the source's
    own space and for confidence without enough anchors.
    """
    served = prepare_map(services, context, Translation(request))
    if served.translator is None or served.id is None:
        raise InvalidRequest(
            f"`--from` and `--to` name the same encoder, {request.target!r}: "
            "there is nothing to translate."
        )
    model = find_confidence(services, served) if confidence else None
    if confidence and model is None:
        raise InvalidRequest(
            "The anchor set has too few anchors for confidence. Remove --confidence, or add anchors"
            " (docs/how-to/quality.md)."
        )
    facts: dict[str, Any] = {
        "source": request.source,
        "target": request.target,
        "anchor_set": request.anchor_set,
        "method": served.method,
        "options": canonical_json(served.options or {}).decode(),
    }
    return RowTranslator(
        served.id,
        served.translator,
        {name: str(value) for name, value in facts.items()},
        model,
    )
