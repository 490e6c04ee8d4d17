"""Creates and deletes anchor sets, and adds encoders to them. Their items never change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session
from torch import Tensor

from app.access.audit import record_audit
from app.access.name_lookup import refuse_in_use, require_free
from app.anchors.spaces import require_direction
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.incoming import checked_vectors
from app.errors import (
    AnchorCountMismatch,
    AnchorsNotEmbedded,
    Conflict,
    EmbeddingsExist,
    EmptyVectors,
    UnequalAnchors,
)
from app.maths.anchors.health import examine
from app.maths.bootstrap.neighbours import Beat, no_beat
from app.openai import queries as aliases
from app.stores import queries as stores


def create_anchor_set(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    embeddings: Mapping[str, Tensor],
) -> tables.AnchorSetRow:
    """Create a set with all its embeddings. Raises the errors of `build_anchor_set`."""
    row = build_anchor_set(services, context.project, name=name, embeddings=embeddings)
    with services.db.transaction() as session:
        return add_anchor_set(session, context, row)


def add_anchor_set(
    session: Session, context: RequestContext, row: tables.AnchorSetRow
) -> tables.AnchorSetRow:
    """Add the row of a set, and return it."""
    resources.require_free(session, tables.AnchorSetRow, row.project, row.name)
    session.add(row)
    record_audit(session, context, "create", "anchor-set", row.name)
    return row


def build_anchor_set(
    services: Services,
    project: str,
    *,
    name: str,
    embeddings: Mapping[str, Tensor],
    provenance: dict[str, Any] | None = None,
    inputs: str | None = None,
    made_by: Mapping[str, str] | None = None,
    beat: Beat = no_beat,
) -> tables.AnchorSetRow:
    """Return the row of a new set and its spaces, not yet in a session. Their blobs are written.

    inputs   the blob of its items, if they are stored
    made_by  the ids of the encoders that the service encoded the embeddings with
    beat     called before each space, which takes seconds for many anchors; it may raise to stop
    """
    if not embeddings:
        raise EmptyVectors("Expected embeddings by at least one encoder.", field="embeddings")
    require_free(services, tables.AnchorSetRow, project, name)
    with services.db.transaction() as session:
        encoders = {
            key: resources.by_name(
                session, tables.EncoderRow, project, key, field=f"embeddings.{key}"
            )
            for key in embeddings
        }
    for key, encoder in encoders.items():
        if (made_by or {}).get(key) not in (None, encoder.id):
            raise Conflict(
                f"Encoder {key!r} was replaced by another of that name. Check it, and try again.",
                field="encoder",
            )
    size = common_size(embeddings)
    row = tables.AnchorSetRow(
        project=project,
        name=name,
        size=size,
        provenance=provenance,
        inputs=inputs,
    )
    for key, vectors in embeddings.items():
        beat()
        row.spaces.append(
            build_space(
                services, project, encoders[key], vectors, size=size, field=f"embeddings.{key}"
            )
        )
    return row


def common_size(embeddings: Mapping[str, Tensor]) -> int:
    """Return the number of vectors, which is the same for each encoder."""
    sizes = {key: vectors.shape[0] for key, vectors in embeddings.items()}
    first, size = next(iter(sizes.items()))
    for key, other in sizes.items():
        if other != size:
            raise UnequalAnchors(
                f"{first!r} has {size} vectors and {key!r} has {other}. Send one for each item.",
                field=f"embeddings.{key}",
            )
    return size


def add_embeddings(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    encoder: str,
    vectors: Tensor,
) -> tables.AnchorSetRow:
    """Add an encoder's embeddings to a set.

    Raises the not-found errors, EmbeddingsExist, AnchorCountMismatch, and the vector errors.
    """
    set_row, encoder_row = find_set_and_encoder(
        services, context.project, anchor_set=anchor_set, encoder=encoder
    )
    space = build_space(
        services, context.project, encoder_row, vectors, size=set_row.size, field="vectors"
    )
    with services.db.transaction() as session:
        return add_space(session, context, set_row, space)


def find_set_and_encoder(
    services: Services, project: str, *, anchor_set: str, encoder: str
) -> tuple[tables.AnchorSetRow, tables.EncoderRow]:
    """Return a set, and an encoder without embeddings in it."""
    with services.db.transaction() as session:
        set_row = resources.by_name(session, tables.AnchorSetRow, project, anchor_set)
        encoder_row = resources.by_name(
            session, tables.EncoderRow, project, encoder, field="encoder"
        )
        _refuse_existing(session, set_row, encoder_row)
    return set_row, encoder_row


def add_space(
    session: Session, context: RequestContext, set_row: tables.AnchorSetRow, space: tables.SpaceRow
) -> tables.AnchorSetRow:
    """Add the row of a space to its set.

    Raises NotFound, EmbeddingsExist, and Conflict when another set has the name now.
    """
    current = resources.by_name(session, tables.AnchorSetRow, set_row.project, set_row.name)
    if current.id != set_row.id:
        raise Conflict(
            f"Anchor set {set_row.name!r} was replaced by another of that name. Check it, and try "
            "again.",
            field="anchor_set",
        )
    _refuse_existing(session, current, space.encoder)
    space.anchor_set_id = current.id
    session.add(space)
    record_audit(session, context, "embed", "anchor-set", current.name)
    session.flush()
    session.refresh(current)
    return current


def delete_anchor_set(services: Services, context: RequestContext, name: str) -> None:
    """Delete a set with its spaces and translators. Raises NotFound, InUse."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, context.project, name)
        users = resources.users_of_anchor_set(session, row)
        users += stores.stores_of_anchor_set(session, row) + aliases.aliases_of(session, row)
        refuse_in_use(f"anchor set {name!r}", users)
        resources.remove(session, row)
        record_audit(session, context, "delete", "anchor-set", name)
    services.names.forget()


def build_space(
    services: Services,
    project: str,
    encoder: tables.EncoderRow,
    vectors: Tensor,
    *,
    size: int,
    field: str,
) -> tables.SpaceRow:
    """Check and examine `size` anchors, write their blob, and return a row not yet in a session."""
    raw = checked_vectors(vectors, field=field, limits=services.limits, dim=encoder.dim)
    if raw.shape[0] != size:
        raise AnchorCountMismatch(
            f"The set has {size} anchors, and the request {raw.shape[0]} vectors. Send one for "
            "each anchor.",
            field=field,
        )
    health = examine(raw.double(), require_direction(raw, field=field))
    return tables.SpaceRow(
        project=project,
        encoder_id=encoder.id,
        encoder=encoder,
        blob=services.blobs.put({"anchors": raw}),
        health=health,
    )


def _refuse_existing(
    session: Session, anchor_set: tables.AnchorSetRow, encoder: tables.EncoderRow
) -> None:
    try:
        resources.space(session, anchor_set, encoder)
    except AnchorsNotEmbedded:
        return
    raise EmbeddingsExist(
        f"Anchor set {anchor_set.name!r} has embeddings by {encoder.name!r} already, and they "
        "cannot change. Create a new set.",
        field="encoder",
    )
