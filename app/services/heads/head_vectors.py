"""The vectors that a head reads, made from another encoder's vectors or inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from app.errors import (
    Conflict,
    InvalidHead,
    MissingField,
)
from app.maths.quality import candidates
from app.maths.translators import methods
from app.services.context import Services
from app.services.encoders import vectors_or_inputs
from app.services.encoders.encoding import Inputs
from app.services.heads.heads import output_of
from app.services.request_context import RequestContext
from app.services.serving import apply
from app.services.translators import translators
from app.services.translators.warnings import AnswerWarning
from app.storage import tables
from app.types import HeadOutput


@dataclass(frozen=True)
class TranslationChoice:
    """How vectors are translated into a head's space; see `translators.FitRequest`.

    prefer  None: retrieval for a classifier, where it is at least as good as classification, and
            cosine for numbers
    """

    method: str = "auto"
    options: methods.Options = field(default_factory=dict)
    prefer: candidates.Preference | None = None
    min_quality: Mapping[str, float] = field(default_factory=dict)
    index: int | None = None


@dataclass(frozen=True, eq=False)
class HeadVectors:
    """Vectors in the head's space, and the map that put them there."""

    vectors: Tensor
    truncated: Sequence[int] = ()
    at_mean: Tensor | None = None
    outside: Tensor | None = None
    method: str | None = None
    translator: str | None = None
    warnings: Sequence[AnswerWarning] = ()


def reach_head(
    services: Services,
    context: RequestContext,
    row: tables.HeadRow,
    source: tables.EncoderRow,
    anchor_set: str | None,
    choice: TranslationChoice,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> HeadVectors:
    """Map vectors or inputs of the source encoder into the space that the head reads."""
    if row.anchor_set is not None:
        _refuse_translation(choice, "this head reads relative vectors")
        if anchor_set not in (None, row.anchor_set.name):
            raise InvalidHead(
                f"Head {row.name!r} belongs to anchor set {row.anchor_set.name!r}. Name that set, "
                "or none.",
                field="anchor_set",
            )
        return _relate(services, context, row, source, vectors, inputs)
    assert row.encoder is not None
    if row.encoder_id == source.id:
        _refuse_translation(choice, f"head {row.name!r} reads vectors of {source.name!r}")
        encoded = vectors_or_inputs.vectors_or_encoded(services, context, source, vectors, inputs)
        return HeadVectors(encoded.vectors, encoded.truncated)
    if anchor_set is None:
        raise MissingField(
            f"Head {row.name!r} reads vectors of {row.encoder.name!r}. Name the `anchor_set` to "
            "translate with.",
            field="anchor_set",
        )
    return _translate(services, context, row, source, anchor_set, choice, vectors, inputs)


def _relate(
    services: Services,
    context: RequestContext,
    row: tables.HeadRow,
    source: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> HeadVectors:
    """Map vectors or inputs to relative vectors of the head's anchor set."""
    assert row.anchor_set is not None
    relation = apply.Relation(
        source.name,
        row.anchor_set.name,
        row.settings.get("encode_power", 0.0),
        row.settings.get("ridge"),
    )
    pair = translators.resolve(services, relation.name(context.project))
    space, *_ = relation.sides(pair)
    require_same((space.anchor_set_id, space.encoder_id), (row.anchor_set_id, source.id))
    related = apply.apply_map(
        services, context, relation, vectors=vectors, inputs=inputs, pair=pair
    )
    return HeadVectors(related.output.vectors, related.truncated, at_mean=related.output.at_mean)


def _translate(
    services: Services,
    context: RequestContext,
    row: tables.HeadRow,
    source: tables.EncoderRow,
    anchor_set: str,
    choice: TranslationChoice,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> HeadVectors:
    """Translate vectors or inputs into the space of the head's encoder."""
    assert row.encoder is not None
    usual: candidates.Preference = "retrieval" if output_of(row) is HeadOutput.classes else "cosine"
    prefer = choice.prefer or usual
    request = translators.FitRequest(
        source.name,
        row.encoder.name,
        anchor_set,
        choice.method,
        choice.options,
        prefer,
        choice.min_quality,
        index=choice.index,
    )
    translation = apply.Translation(request)
    pair = translators.resolve(services, translation.name(context.project))
    require_same([space.encoder_id for space in pair.both], [source.id, row.encoder_id])
    answer = apply.apply_map(
        services, context, translation, vectors=vectors, inputs=inputs, pair=pair
    )
    output, served = answer.output, answer.served
    return HeadVectors(
        output.vectors,
        answer.truncated,
        output.at_mean,
        output.outside,
        served.method,
        served.id,
        served.warnings,
    )


def require_same(spaces: Sequence[str | None], expected: Sequence[str | None]) -> None:
    """Raises Conflict when an encoder or the head was replaced after its look-up."""
    if list(spaces) != list(expected):
        raise Conflict(
            "An encoder or the head was replaced by another of that name. Try again.",
            field="head",
        )


def _refuse_translation(choice: TranslationChoice, reason: str) -> None:
    """Raises InvalidHead for options that would have no effect."""
    if choice.method != "auto" or choice.options:
        raise InvalidHead(
            f"{reason}: `method` and `options` do not apply. Remove them.", field="method"
        )
    for name in ("prefer", "min_quality", "index"):
        if getattr(choice, name):
            raise InvalidHead(f"{reason}: `{name}` does not apply. Remove it.", field=name)
