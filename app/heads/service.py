"""Stores, loads and deletes heads, and applies them to the vectors of any encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sqlalchemy.orm import Session
from torch import Tensor
from torch.nn.functional import normalize

from app.access import name_lookup
from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders import encoding, incoming
from app.encoders.models.base import Inputs
from app.errors import Conflict, InvalidHead, MissingField, NotExactlyOne
from app.heads import linear, onnx
from app.heads.linear import LinearHead
from app.heads.onnx import OnnxHead
from app.heads.schemas import NewHead, StitchRequest
from app.translate import fit as translators
from app.translate.maps import FitRequest
from app.translate.service import MappedVectors, MapRequest, Relation, Translation, apply_map
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import repeated_positions

Head = LinearHead | OnnxHead

#: the fields of a new head that its row keeps as they are
SETTINGS = {"architecture", "file", "scale", "encode_power", "ridge"}


def create_head(services: Services, context: RequestContext, new: NewHead) -> tables.HeadRow:
    """Store a head of an encoder's space, or of an anchor set's relative space.

    Raises NotExactlyOne, NameTaken, InvalidHead, HeadTooLarge, and the not-found errors.
    """
    _check(new)
    name_lookup.require_free(services, tables.HeadRow, context.project, new.name)
    with services.db.transaction() as session:
        dim = _build_row(session, context.project, new).dim
    head = _make_model(services, new, dim)
    if new.classes and head.outputs != len(new.classes):
        raise InvalidHead(
            f"There are {len(new.classes)} classes, and the head has {head.outputs} outputs. Send "
            "one class for each output.",
            field="classes",
        )
    blob = services.blobs.put(head.tensors())
    with services.db.transaction() as session:
        # The encoder or the set may have been deleted or replaced.
        row = _build_row(session, context.project, new)
        if row.dim != dim:
            raise InvalidHead(
                f"The head reads vectors of {dim} dimensions, and its encoder or anchor set has "
                f"changed to {row.dim}. Try again.",
                field="encoder",
            )
        row.outputs, row.blob = head.outputs, blob
        session.add(row)
        record_audit(session, context, "create", "head", new.name)
    return row


def _check(new: NewHead) -> None:
    """Raises NotExactlyOne and InvalidHead for fields that contradict each other."""
    if (new.classes is None) == (new.output is None):
        raise NotExactlyOne("Send exactly one of `classes` and `output`.", field="classes")
    if new.probabilities and new.classes is None:
        raise InvalidHead(
            "`probabilities` only applies with `classes`. Remove it, or send `classes`.",
            field="probabilities",
        )
    if (new.encoder is None) == (new.anchor_set is None):
        raise NotExactlyOne("Send exactly one of `encoder` and `anchor_set`.", field="encoder")
    if repeated := repeated_positions(new.classes or ()):
        raise InvalidHead(
            "Class names must differ; these repeat an earlier one.", field="classes", rows=repeated
        )
    if new.anchor_set is None and (new.encode_power or new.ridge is not None):
        raise InvalidHead(
            "`encode_power` and `ridge` only apply to a head with `anchor_set`. Remove them.",
            field="encode_power",
        )


def _build_row(session: Session, project: str, new: NewHead) -> tables.HeadRow:
    resources.require_free(session, tables.HeadRow, project, new.name)
    row = tables.HeadRow(
        project=project,
        name=new.name,
        kind=new.kind,
        classes=list(new.classes or ()),
        encoder=None,
        anchor_set=None,
        settings={"softmax": not new.probabilities, **new.model_dump(include=SETTINGS)},
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


def _make_model(services: Services, new: NewHead, dim: int) -> Head:
    """The head's model, for vectors of this dimension."""
    sent = [name for name in ("weight", "safetensors", "file") if getattr(new, name) is not None]
    if len(sent) != 1:
        raise NotExactlyOne(
            "Send exactly one of `weight`, `safetensors` and `file`.", field="weight"
        )
    source = sent[0]
    if (source == "file") != (new.kind == "onnx"):
        raise InvalidHead(
            f"`{source}` does not apply to `kind: {new.kind}`. Change one of the two.",
            field="kind",
        )
    if source != "safetensors" and new.architecture is not None:
        raise InvalidHead(
            "`architecture` only applies with `safetensors`. Remove it.", field="architecture"
        )
    if source != "weight" and new.bias is not None:
        raise NotExactlyOne(
            f"`bias` only applies with `weight`. Remove it: `{source}` holds the bias.",
            field="bias",
        )
    if new.file is not None:
        return onnx.open_onnx(services.heads_dir, new.file, dim=dim)
    return linear.make_head(new.tensors(), new.architecture, dim=dim)


def delete_head(services: Services, context: RequestContext, name: str) -> None:
    """Delete a head. Raises NotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.HeadRow, context.project, name)
        resources.remove(session, row)
        record_audit(session, context, "delete", "head", name)
    services.names.forget()


def load_head(services: Services, row: tables.HeadRow) -> Head:
    """Return the head, ready to run."""
    architecture, file = row.settings["architecture"], row.settings["file"]

    def load() -> Head:
        tensors = services.blobs.get(row.blob, of=f"head {row.name!r}")
        if file is None:
            return linear.make_head(tensors, architecture, dim=row.dim)
        digest = tensors["digest"].numpy().tobytes()
        return onnx.open_onnx(services.heads_dir, file, dim=row.dim, digest=digest)

    return services.cache.get_or_make(
        ("head", row.project, row.blob, row.dim, tuple(architecture or ()), file),
        load,
        lambda head: head.nbytes,
    )


# --- applying -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prediction:
    """The output of a head.

    values   (n, m): probabilities, or a decoder's numbers
    classes  of a classifier; empty: another head
    mapped   how its inputs were translated or made relative; None: they were not
    truncated, warnings  about the inputs
    """

    values: Tensor
    classes: Sequence[str | int]
    mapped: MappedVectors | None
    truncated: Sequence[int]
    warnings: Sequence[AnswerWarning]


def stitch(
    services: Services, context: RequestContext, request: StitchRequest, inputs: Inputs | None
) -> Prediction:
    """Run the head on vectors or inputs of the request's encoder, which are translated or made
    relative if needed.

    Raises the not-found errors, NotExactlyOne, MissingField, AnchorsNotEmbedded, InvalidHead,
    and the option and vector errors.
    """
    head = name_lookup.find_by_name(
        services, tables.HeadRow, context.project, request.head, field="head"
    )
    source = name_lookup.find_by_name(
        services, tables.EncoderRow, context.project, request.encoder, field="encoder"
    )
    field, count = encoding.exactly_one(request.vectors, inputs)
    incoming.reserve_answer(services, context, field, count, dim=head.outputs)
    needed = _needed_map(head, source, request)
    if needed is None:
        own = encoding.vectors_or_encoded(services, context, source, request.vectors, inputs)
        about = [] if inputs is None else warnings_about_change(source)
        values = _predict(services, head, own.vectors)
        return Prediction(values, head.classes, None, own.truncated, about)
    pair = translators.resolve(services, needed.name(context.project))
    assert pair.source is not None
    encoders = [None if space is None else space.encoder_id for space in (pair.source, pair.target)]
    same_set = head.anchor_set_id in (None, pair.source.anchor_set_id)
    if encoders != [source.id, head.encoder_id] or not same_set:
        raise Conflict(
            "An encoder or the head was replaced by another of that name. Try again.",
            field="head",
        )
    mapped = apply_map(services, context, needed, vectors=request.vectors, inputs=inputs, pair=pair)
    values = _predict(services, head, mapped.output.vectors)
    return Prediction(values, head.classes, mapped, mapped.truncated, mapped.warnings)


def _needed_map(
    head: tables.HeadRow, source: tables.EncoderRow, request: StitchRequest
) -> MapRequest | None:
    """The map from the source encoder into the space that the head reads; None: it is the same."""
    if head.anchor_set is not None:
        _refuse_translation(request, "this head reads relative vectors")
        if request.anchor_set not in (None, head.anchor_set.name):
            raise InvalidHead(
                f"Head {head.name!r} belongs to anchor set {head.anchor_set.name!r}. Name that "
                "set, or none.",
                field="anchor_set",
            )
        power, ridge = head.settings["encode_power"], head.settings["ridge"]
        return Relation(source.name, head.anchor_set.name, power, ridge)
    assert head.encoder is not None
    if head.encoder_id == source.id:
        _refuse_translation(request, f"head {head.name!r} reads vectors of {source.name!r}")
        return None
    if request.anchor_set is None:
        raise MissingField(
            f"Head {head.name!r} reads vectors of {head.encoder.name!r}. Name the `anchor_set` to "
            "translate with.",
            field="anchor_set",
        )
    return Translation(
        FitRequest(
            source.name,
            head.encoder.name,
            request.anchor_set,
            request.method,
            request.options.as_dict(),
            request.min_quality.as_dict(),
            index=request.index,
            numbers=not head.classes,
        )
    )


def _refuse_translation(request: StitchRequest, reason: str) -> None:
    """Raises InvalidHead for options that would have no effect."""
    if request.method != "auto" or request.options.as_dict():
        raise InvalidHead(
            f"{reason}: `method` and `options` do not apply. Remove them.", field="method"
        )
    for name, value in (("min_quality", request.min_quality.as_dict()), ("index", request.index)):
        if value:
            raise InvalidHead(f"{reason}: `{name}` does not apply. Remove it.", field=name)


def _predict(services: Services, head: tables.HeadRow, vectors: Tensor) -> Tensor:
    """Run the head, on vectors scaled to the norm of its training vectors (IRP, section 3.4)."""
    scale = head.settings["scale"]
    if scale is not None:
        vectors = normalize(vectors.double(), dim=1).mul(scale).float()
    values = load_head(services, head).run(vectors)
    if head.classes and head.settings["softmax"]:
        return torch.softmax(values.double(), dim=1).float()
    return values
