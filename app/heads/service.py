"""Stores, loads and deletes heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.access import name_lookup
from app.access.audit import record_audit
from app.context import Services
from app.db import resources, tables
from app.errors import (
    InvalidHead,
    NotExactlyOne,
)
from app.heads import linear, onnx
from app.heads.base import HeadModel
from app.request_context import RequestContext
from app.types import repeated_positions


@dataclass(frozen=True)
class HeadDefinition:
    """A head as its client describes it.

    classes       the names of a classifier's classes; empty: a regression or a decoder
    softmax       whether a classifier's numbers are logits
    file          the name of the operator's ONNX file
    scale         the norm that its training vectors were scaled to; None: the encoder's own units
    encode_power, ridge  of the relative vectors that a relative head reads
    """

    name: str
    kind: str
    encoder: str | None
    anchor_set: str | None
    classes: Sequence[str] = ()
    architecture: Sequence[str] | None = None
    file: str | None = None
    softmax: bool = True
    scale: float | None = None
    encode_power: float = 0.0
    ridge: float | None = None


def create_head(
    services: Services,
    context: RequestContext,
    new: HeadDefinition,
    make: Callable[[int], HeadModel],
) -> tables.HeadRow:
    """Store a head of an encoder's space, or of an anchor set's relative space.

    make  builds the head for vectors of a dimension

    Raises NotExactlyOne, NameTaken, InvalidHead, HeadTooLarge, and the not-found errors.
    """
    if (new.encoder is None) == (new.anchor_set is None):
        raise NotExactlyOne("Send exactly one of `encoder` and `anchor_set`.", field="encoder")
    if repeated := repeated_positions(new.classes):
        raise InvalidHead(
            "Class names must differ; these repeat an earlier one.", field="classes", rows=repeated
        )
    if new.anchor_set is None and (new.encode_power or new.ridge is not None):
        raise InvalidHead(
            "`encode_power` and `ridge` only apply to a head with `anchor_set`. Remove them.",
            field="encode_power",
        )
    name_lookup.require_free(services, tables.HeadRow, context.project, new.name)
    with services.db.transaction() as session:
        row = _build_row(session, context.project, new)
    head = make(row.dim)
    _check_outputs(new, head)
    row.outputs, row.blob = head.outputs, services.blobs.put(head.tensors())
    with services.db.transaction() as session:
        # The encoder or the set may have been deleted or replaced.
        new_row = _build_row(session, context.project, new)
        if new_row.dim != row.dim:
            raise InvalidHead(
                f"The head reads vectors of {row.dim} dimensions, and its encoder or anchor set "
                f"has changed to {new_row.dim}. Try again.",
                field="encoder",
            )
        new_row.outputs, new_row.blob = row.outputs, row.blob
        session.add(new_row)
        record_audit(session, context, "create", "head", new.name)
    return new_row


def _build_row(session: Session, project: str, new: HeadDefinition) -> tables.HeadRow:
    resources.require_free(session, tables.HeadRow, project, new.name)
    row = tables.HeadRow(
        project=project,
        name=new.name,
        kind=new.kind,
        classes=list(new.classes),
        encoder=None,
        anchor_set=None,
        settings={
            "architecture": None if new.architecture is None else list(new.architecture),
            "file": new.file,
            "softmax": new.softmax,
            "scale": new.scale,
            "encode_power": new.encode_power,
            "ridge": new.ridge,
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


def _check_outputs(new: HeadDefinition, head: HeadModel) -> None:
    """Raises InvalidHead when the head's outputs contradict its definition."""
    if new.classes and head.outputs != len(new.classes):
        raise InvalidHead(
            f"There are {len(new.classes)} classes, and the head has {head.outputs} outputs. Send "
            "one class for each output.",
            field="classes",
        )


def delete_head(services: Services, context: RequestContext, name: str) -> None:
    """Delete a head. Raises HeadNotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.HeadRow, context.project, name)
        resources.remove(session, row)
        record_audit(session, context, "delete", "head", name)
    services.names.forget()


def load_head(services: Services, row: tables.HeadRow) -> HeadModel:
    """Return the head, ready to run."""
    architecture, file = row.settings.get("architecture"), row.settings.get("file")

    def load() -> HeadModel:
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
