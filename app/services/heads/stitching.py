"""Heads, and what a head of one space answers to another encoder's vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import BaseModel
from sqlalchemy.orm import Session
from torch import Tensor
from torch.nn.functional import normalize

from app.errors import (
    Conflict,
    EncoderChanged,
    EncoderFailed,
    EncoderUnavailable,
    InvalidHead,
    InvalidInput,
    InvalidRequest,
    MissingField,
    NotExactlyOne,
)
from app.heads import registry as heads
from app.heads.base import HeadModel, probabilities
from app.heads.image import png
from app.maths.quality import candidates
from app.maths.translators import methods
from app.services import incoming, name_lookup
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.encoders.encoding import Inputs
from app.services.serving import plans
from app.services.translators import translators
from app.storage import tables
from app.storage.queries import resources
from app.types import EncoderKind, HeadOutput, repeats

log = logging.getLogger("anchorage.stitching")


@dataclass(frozen=True)
class TranslationChoice:
    """How vectors are translated into a head's space, as `translation.Request` has it.

    prefer  None: retrieval for a classifier, which serves it at least as well as classification; cosine for numbers
    """

    method: str = "auto"
    options: methods.Options = field(default_factory=dict)
    prefer: candidates.Preference | None = None
    min_quality: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NewHead:
    """What a client says of a head.

    output        what its numbers mean; for an image, `image` says which
    classes       names, for a classifier
    softmax       whether its numbers are logits, of which probabilities are made
    scale         norm of the vectors that it was trained on, if they were brought to one; None: the encoder's own units
    encode_power, ridge  of the relative vectors that a relative head reads
    """

    name: str
    kind: str
    encoder: str | None
    anchor_set: str | None
    output: HeadOutput
    classes: Sequence[str] = ()
    architecture: Sequence[str] | None = None
    softmax: bool = True
    scale: float | None = None
    encode_power: float = 0.0
    ridge: float | None = None
    image: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Truth:
    """What the client knows of its items: class names, or the numbers of a decoder; and the vectors of the head's own encoder."""

    labels: Sequence[str] | None = None
    targets: Tensor | None = None
    native_vectors: Tensor | None = None


class Score(BaseModel):
    """accuracy of a classifier; mse, the mean squared difference of a decoder's numbers; null where no truth was sent."""

    accuracy: float | None
    mse: float | None


class StitchQuality(BaseModel):
    """How good the answers are, beside those for the head's own encoder; agreement: share of equal classes, whoever is right."""

    stitched: Score
    native: Score | None
    agreement: float | None


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the head answered.

    values      (n, m): probabilities, or a decoder's numbers
    labels      (n,) indices into classes, of a classifier
    images      PNG files, of a head that answers images
    at_mean, outside  the flags (n,) of `TranslatedRows`, or None where nothing was translated
    truncated   rows of inputs that were cut
    method, translator  None for a native or relative head
    """

    output: HeadOutput
    values: Tensor
    labels: Sequence[int]
    images: Sequence[bytes]
    classes: Sequence[str]
    at_mean: Tensor | None
    outside: Tensor | None
    truncated: Sequence[int]
    method: str | None
    translator: str | None
    quality: StitchQuality | None


@dataclass(frozen=True, eq=False)
class _Ready:
    """Vectors in the head's space, and how they came there."""

    vectors: Tensor
    truncated: Sequence[int] = ()
    at_mean: Tensor | None = None
    outside: Tensor | None = None
    method: str | None = None
    translator: str | None = None


def create_head(
    services: Services, project: str, new: NewHead, make: Callable[[int], HeadModel]
) -> tables.HeadRow:
    """Store a head of an encoder's space, or of an anchor set's relative space. `make` reads it, given its vectors' dimension.

    Raises NotExactlyOne, NameTaken, InvalidHead, HeadTooLarge, HeadTooSlow, TooMuchAtOnce, Overloaded, and the not-found errors.
    """
    if (new.encoder is None) == (new.anchor_set is None):
        raise NotExactlyOne(
            "a head belongs to exactly one of encoder and anchor_set", field="encoder"
        )
    if repeated := repeats(new.classes):
        raise InvalidHead("class names repeat", field="classes", rows=repeated)
    if new.anchor_set is None and (new.encode_power or new.ridge is not None):
        raise InvalidHead(
            "encode_power and ridge belong to a head of an anchor set", field="encode_power"
        )
    name_lookup.require_free(services, tables.HeadRow, project, new.name)
    with services.db.transaction() as session:
        row = _new_row(session, project, new)
    head = make(row.dim)
    _check_outputs(new, head)
    row.outputs, row.blob = head.outputs, services.blobs.put(head.tensors())
    with services.db.transaction() as session:
        kept = _new_row(
            session, project, new
        )  # what it belongs to may have gone, or been made anew
        if kept.dim != row.dim:
            raise InvalidHead(
                f"its vectors have {kept.dim} dimensions now, not {row.dim}", field="encoder"
            )
        kept.outputs, kept.blob = row.outputs, row.blob
        session.add(kept)
        record_audit(session, project, "create", "head", new.name, kept)
    return kept


def _new_row(session: Session, project: str, new: NewHead) -> tables.HeadRow:
    resources.require_free(session, tables.HeadRow, project, new.name)
    row = tables.HeadRow(
        project=project,
        name=new.name,
        kind=new.kind,
        classes=list(new.classes),
        encoder=None,
        anchor_set=None,
        settings={
            "output": str(new.output),
            "architecture": None if new.architecture is None else list(new.architecture),
            "softmax": new.softmax,
            "scale": new.scale,
            "encode_power": new.encode_power,
            "ridge": new.ridge,
            "image": dict(new.image),
        },
    )
    with session.no_autoflush:
        if new.encoder is not None:
            row.encoder = resources.by_name(
                session, tables.EncoderRow, project, new.encoder, field="encoder"
            )
            row.dim = row.encoder.dim
        if new.anchor_set is not None:
            row.anchor_set = resources.by_name(
                session, tables.AnchorSetRow, project, new.anchor_set, field="anchor_set"
            )
            row.dim = row.anchor_set.size
    return row


def _check_outputs(new: NewHead, head: HeadModel) -> None:
    """Raises InvalidHead for a head that does not answer what it is said to."""
    if new.output is HeadOutput.classes and head.outputs != len(new.classes):
        raise InvalidHead(
            f"{len(new.classes)} classes, and the head answers {head.outputs} numbers",
            field="classes",
        )
    if new.output is HeadOutput.image:
        sides = [int(new.image[side]) for side in ("height", "width", "channels")]
        if sides[0] * sides[1] * sides[2] != head.outputs:
            raise InvalidHead(
                f"an image of {sides} is not {head.outputs} numbers, which the head answers",
                field="output",
            )
        _draw(new.image, torch.zeros(1, head.outputs))


def delete_head(services: Services, project: str, name: str) -> None:
    """Raises HeadNotFound."""
    with services.db.transaction() as session:
        resources.remove(session, resources.by_name(session, tables.HeadRow, project, name))
        record_audit(session, project, "delete", "head", name)
    services.names.forget()


def stitch(
    services: Services,
    project: str,
    *,
    encoder: str,
    head: str,
    anchor_set: str | None,
    vectors: Tensor | None,
    inputs: Inputs | None,
    way: TranslationChoice | None = None,
    truth: Truth | None = None,
) -> Prediction:
    """What the head answers to vectors or inputs of `encoder`: as they are, translated, or made relative, as the head needs.

    Raises the not-found errors, NotExactlyOne, AnchorsNotEmbedded, InvalidHead (an absolute head of another encoder without an
    anchor set), HeadTooSlow, and the option and vector errors.
    """
    truth = truth or Truth()
    row = name_lookup.find_by_name(services, tables.HeadRow, project, head, field="head")
    source = name_lookup.find_by_name(
        services, tables.EncoderRow, project, encoder, field="encoder"
    )
    sent_as, count = incoming.exactly_one(vectors, inputs)
    incoming.reserve_answer(services, sent_as, count, dim=row.outputs)
    known = _known(services, row, truth, count)
    ready = _bring(
        services, project, row, source, anchor_set, way or TranslationChoice(), vectors, inputs
    )
    values = _ask(services, row, ready.vectors)
    output = output_of(row)
    native = _native(
        services, project, row, source, truth, inputs, values, wanted=known is not None
    )
    return Prediction(
        output=output,
        values=values,
        labels=values.argmax(dim=1).tolist() if output is HeadOutput.classes else [],
        images=_draw(row.settings["image"], values) if output is HeadOutput.image else [],
        classes=row.classes,
        at_mean=ready.at_mean,
        outside=ready.outside,
        truncated=ready.truncated,
        method=ready.method,
        translator=ready.translator,
        quality=_quality(output, values, native, known),
    )


def _bring(
    services: Services,
    project: str,
    row: tables.HeadRow,
    source: tables.EncoderRow,
    anchor_set: str | None,
    way: TranslationChoice,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> _Ready:
    """Vectors or inputs of the source encoder, in the space that the head reads."""
    if row.anchor_set is not None:
        _refuse_way(way, "a relative head reads relative vectors")
        if anchor_set is not None and anchor_set != row.anchor_set.name:
            raise InvalidHead(
                f"head {row.name!r} belongs to anchor set {row.anchor_set.name!r}",
                field="anchor_set",
            )
        relation = plans.Relation(
            source.name,
            row.anchor_set.name,
            row.settings.get("encode_power", 0.0),
            row.settings.get("ridge"),
        )
        pair = translators.resolve(services, relation.name(project))
        space, *_ = relation.sides(pair)
        _require_same((space.anchor_set_id, space.encoder_id), (row.anchor_set_id, source.id))
        related = plans.apply(
            services, project, relation, vectors=vectors, inputs=inputs, pair=pair
        )
        return _Ready(related.made.vectors, related.truncated, at_mean=related.made.at_mean)
    assert row.encoder is not None
    if row.encoder_id == source.id:
        _refuse_way(way, f"head {row.name!r} was trained on {source.name!r} itself")
        given = incoming.vectors_or_encoded(services, source, vectors, inputs)
        return _Ready(given.vectors, given.truncated)
    if anchor_set is None:
        raise MissingField(
            f"head {row.name!r} was trained on {row.encoder.name!r}: name the anchor_set to translate by",
            field="anchor_set",
        )
    usual: candidates.Preference = "retrieval" if output_of(row) is HeadOutput.classes else "cosine"
    prefer = way.prefer or usual
    request = translators.Request(
        source.name, row.encoder.name, anchor_set, way.method, way.options, prefer, way.min_quality
    )
    asked = plans.Translation(request)
    pair = translators.resolve(services, asked.name(project))
    _require_same([space.encoder_id for space in pair.both], [source.id, row.encoder_id])
    answer = plans.apply(services, project, asked, vectors=vectors, inputs=inputs, pair=pair)
    done, by = answer.made, answer.served
    return _Ready(done.vectors, answer.truncated, done.at_mean, done.outside, by.method, by.id)


def _require_same(found: Sequence[str | None], expected: Sequence[str | None]) -> None:
    """Raises Conflict when the spaces are not those of the head and the encoder that were looked up before them."""
    if list(found) != list(expected):
        raise Conflict(
            "an encoder or the head was made anew meanwhile; look at them and try again",
            field="head",
        )


def _ask(services: Services, row: tables.HeadRow, vectors: Tensor) -> Tensor:
    """The head's probabilities or numbers for vectors of its space, at the scale that it was trained at (IRP, section 3.4)."""
    scale = row.settings.get("scale")
    if scale is not None:
        vectors = normalize(vectors.double(), dim=1).mul(scale).float()
    values = loaded_head(services, row).run(vectors)
    classifies = output_of(row) is HeadOutput.classes
    return probabilities(values) if classifies and row.settings.get("softmax", True) else values


def output_of(row: tables.HeadRow) -> HeadOutput:
    """What its numbers are; heads made before others were known are classifiers."""
    return HeadOutput(row.settings.get("output", HeadOutput.classes))


def loaded_head(services: Services, row: tables.HeadRow) -> HeadModel:
    architecture = row.settings.get("architecture")

    def load() -> HeadModel:
        tensors = services.blobs.get(row.blob, of=f"head {row.name!r}")
        return heads.load(
            row.kind, tensors, architecture, dim=row.dim, runner=services.onnx, owner=row.project
        )

    return services.cache.get_or_make(
        ("head", row.project, row.blob, row.kind, row.dim, tuple(architecture or ())),
        load,
        lambda head: head.nbytes,
    )


def _known(services: Services, row: tables.HeadRow, truth: Truth, count: int) -> Tensor | None:
    """What the client says is right: indices into classes (n,), or numbers (n, m). Raises for what does not fit the head."""
    classifies = output_of(row) is HeadOutput.classes
    if truth.labels is not None:
        if not classifies:
            raise InvalidRequest(
                "labels belong to a classifier: this head's truth are targets", field="labels"
            )
        places = {name: place for place, name in enumerate(row.classes)}
        unknown = [place for place, label in enumerate(truth.labels) if label not in places]
        if unknown:
            raise InvalidRequest(
                "labels that are no class of the head", field="labels", rows=unknown
            )
        _require_count(len(truth.labels), count, "labels")
        return torch.tensor([places[label] for label in truth.labels])
    if truth.targets is not None:
        if classifies:
            raise InvalidRequest(
                "targets belong to a decoder: a classifier's truth are labels", field="targets"
            )
        _require_count(len(truth.targets), count, "targets")
        return incoming.checked_vectors(
            truth.targets, field="targets", limits=services.limits, dim=row.outputs
        )
    return None


def _require_count(count: int, expected: int, field: str) -> None:
    if count != expected:
        raise InvalidRequest(f"expected one for each of {expected} items, got {count}", field=field)


def _native(
    services: Services,
    project: str,
    row: tables.HeadRow,
    source: tables.EncoderRow,
    truth: Truth,
    inputs: Inputs | None,
    values: Tensor,
    *,
    wanted: bool,
) -> Tensor | None:
    """What the head answers for the same items by its own encoder: vectors that the client has, or inputs that we can encode."""
    own = row.encoder
    if truth.native_vectors is not None:
        if own is None:
            raise InvalidRequest(
                "a relative head has no encoder of its own", field="native_vectors"
            )
        native = incoming.checked_vectors(
            truth.native_vectors, field="native_vectors", limits=services.limits, dim=own.dim
        )
        _require_count(len(native), len(values), "native_vectors")
        return _ask(services, row, native)
    if not wanted or own is None:
        return None
    if own.id == source.id:
        return values
    if inputs is None or own.kind == EncoderKind.external:
        return None
    try:
        return _ask(services, row, incoming.vectors_or_encoded(services, own, None, inputs).vectors)
    except (EncoderUnavailable, EncoderChanged, EncoderFailed, InvalidInput) as error:
        log.info(
            "no native answers of head %s: %s", row.id, error.detail
        )  # a head outlives its encoder
        return None


def _quality(
    output: HeadOutput, values: Tensor, native: Tensor | None, known: Tensor | None
) -> StitchQuality | None:
    if native is None and known is None:
        return None
    agreement = None
    if native is not None and output is HeadOutput.classes:
        agreement = float((native.argmax(dim=1) == values.argmax(dim=1)).double().mean())
    return StitchQuality(
        stitched=_score(output, values, known),
        native=None if native is None else _score(output, native, known),
        agreement=agreement,
    )


def _score(output: HeadOutput, values: Tensor, known: Tensor | None) -> Score:
    if known is None:
        return Score(accuracy=None, mse=None)
    if output is HeadOutput.classes:
        return Score(accuracy=float((values.argmax(dim=1) == known).double().mean()), mse=None)
    return Score(accuracy=None, mse=float((values.double() - known.double()).square().mean()))


def _draw(image: Mapping[str, Any], values: Tensor) -> list[bytes]:
    """Each row as a PNG file."""
    shape = [image["height"], image["width"], image["channels"]]
    if image["layout"] == "chw":
        values = values.reshape(-1, shape[2], *shape[:2]).permute(0, 2, 3, 1).contiguous()
    return [png(each, image["low"], image["high"]) for each in values.reshape(-1, *shape)]


def _refuse_way(way: TranslationChoice, reason: str) -> None:
    """What would do nothing is refused, not ignored."""
    if way.method != "auto" or way.options:
        raise InvalidHead(f"{reason}: method and options have no place here", field="method")
    for name in ("prefer", "min_quality"):
        if getattr(way, name):
            raise InvalidHead(f"{reason}: {name} has no place here", field=name)
