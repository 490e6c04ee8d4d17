"""Applies a head to the vectors of any encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import normalize

from app.access import name_lookup
from app.context import Services
from app.db import tables
from app.encoders import encoding, incoming
from app.encoders.encoding import Inputs
from app.errors import Conflict, InvalidHead, MissingField
from app.heads.base import probabilities
from app.heads.service import load_head
from app.maths.translators.methods import Options
from app.request_context import RequestContext
from app.translate import fit as translators
from app.translate.service import (
    MappedVectors,
    MapRequest,
    Relation,
    Translation,
    apply_map,
)
from app.translate.warnings import AnswerWarning, warnings_about_change


@dataclass(frozen=True)
class TranslationChoice:
    """How vectors are translated into a head's space; see `translators.FitRequest`."""

    method: str = "auto"
    options: Options = field(default_factory=dict)
    min_quality: Mapping[str, float] = field(default_factory=dict)
    index: int | None = None


@dataclass(frozen=True, eq=False)
class HeadVectors:
    """Vectors in the head's space, and the map that put them there.

    truncated   rows of inputs that were cut
    at_mean, outside  the flags (n,) of `TranslatedRows`, or None where nothing was translated
    method, translator  None for a native or relative head
    warnings    about the translation
    """

    vectors: Tensor
    truncated: Sequence[int] = ()
    at_mean: Tensor | None = None
    outside: Tensor | None = None
    method: str | None = None
    translator: str | None = None
    warnings: Sequence[AnswerWarning] = ()


@dataclass(frozen=True, eq=False)
class Prediction:
    """The output of a head.

    values      (n, m): probabilities, or a decoder's numbers
    labels      (n,) indices into classes, of a classifier
    read        the vectors that the head read
    """

    values: Tensor
    labels: Sequence[int]
    classes: Sequence[str]
    read: HeadVectors


def stitch(
    services: Services,
    context: RequestContext,
    *,
    encoder: str,
    head: str,
    anchor_set: str | None,
    vectors: Tensor | None,
    inputs: Inputs | None,
    choice: TranslationChoice | None = None,
) -> Prediction:
    """Run the head on vectors or inputs of `encoder`, which are translated or made relative if
    needed.

    Raises the not-found errors, NotExactlyOne, MissingField, AnchorsNotEmbedded, InvalidHead,
    and the option and vector errors.
    """
    row = name_lookup.find_by_name(services, tables.HeadRow, context.project, head, field="head")
    source = name_lookup.find_by_name(
        services, tables.EncoderRow, context.project, encoder, field="encoder"
    )
    field, count = encoding.exactly_one(vectors, inputs)
    incoming.reserve_answer(services, context, field, count, dim=row.outputs)
    ready = _reach_head(
        services, context, row, source, anchor_set, choice or TranslationChoice(), vectors, inputs
    )
    values = _predict(services, row, ready.vectors)
    return Prediction(
        values=values,
        labels=values.argmax(dim=1).tolist() if row.classes else [],
        classes=row.classes,
        read=ready,
    )


def _reach_head(
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
        power, ridge = row.settings.get("encode_power", 0.0), row.settings.get("ridge")
        relation = Relation(source.name, row.anchor_set.name, power, ridge)
        mapped = _apply(services, context, row, relation, source, vectors, inputs)
        output, served = mapped.output, mapped.served
        return HeadVectors(
            output.vectors, mapped.truncated, output.at_mean, warnings=served.warnings
        )
    assert row.encoder is not None
    if row.encoder_id == source.id:
        _refuse_translation(choice, f"head {row.name!r} reads vectors of {source.name!r}")
        encoded = encoding.vectors_or_encoded(services, context, source, vectors, inputs)
        about = [] if inputs is None else warnings_about_change(source)
        return HeadVectors(encoded.vectors, encoded.truncated, warnings=about)
    if anchor_set is None:
        raise MissingField(
            f"Head {row.name!r} reads vectors of {row.encoder.name!r}. Name the `anchor_set` to "
            "translate with.",
            field="anchor_set",
        )
    request = translators.FitRequest(
        source.name,
        row.encoder.name,
        anchor_set,
        choice.method,
        choice.options,
        choice.min_quality,
        index=choice.index,
        numbers=not row.classes,
    )
    mapped = _apply(services, context, row, Translation(request), source, vectors, inputs)
    output, served = mapped.output, mapped.served
    return HeadVectors(
        output.vectors,
        mapped.truncated,
        output.at_mean,
        output.outside,
        served.method,
        served.id,
        served.warnings,
    )


def _apply(
    services: Services,
    context: RequestContext,
    row: tables.HeadRow,
    request: MapRequest,
    source: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> MappedVectors:
    """Apply the map from the source encoder to what the head reads.

    Raises Conflict when an encoder, the set or the head was replaced after its look-up.
    """
    pair = translators.resolve(services, request.name(context.project))
    assert pair.source is not None
    encoders = [None if space is None else space.encoder_id for space in (pair.source, pair.target)]
    same_set = row.anchor_set_id in (None, pair.source.anchor_set_id)
    if encoders != [source.id, row.encoder_id] or not same_set:
        raise Conflict(
            "An encoder or the head was replaced by another of that name. Try again.",
            field="head",
        )
    return apply_map(services, context, request, vectors=vectors, inputs=inputs, pair=pair)


def _refuse_translation(choice: TranslationChoice, reason: str) -> None:
    """Raises InvalidHead for options that would have no effect."""
    if choice.method != "auto" or choice.options:
        raise InvalidHead(
            f"{reason}: `method` and `options` do not apply. Remove them.", field="method"
        )
    for name in ("min_quality", "index"):
        if getattr(choice, name):
            raise InvalidHead(f"{reason}: `{name}` does not apply. Remove it.", field=name)


def _predict(services: Services, row: tables.HeadRow, vectors: Tensor) -> Tensor:
    """Run the head, on vectors scaled to the norm of its training vectors (IRP, section 3.4)."""
    scale = row.settings.get("scale")
    if scale is not None:
        vectors = normalize(vectors.double(), dim=1).mul(scale).float()
    values = load_head(services, row).run(vectors)
    return probabilities(values) if row.classes and row.settings.get("softmax", True) else values
