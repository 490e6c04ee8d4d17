"""Creates, extends and deletes anchor sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import (
    AnchorCountMismatch,
    AnchorsNotEmbedded,
    Conflict,
    EmbeddingsExist,
    EmptyVectors,
    PairsNotFound,
    UnequalAnchors,
)
from app.maths.anchors.health import examine
from app.maths.bootstrap.neighbours import Beat, no_beat
from app.services.access.audit import record_audit
from app.services.anchors.spaces import require_direction
from app.services.context import Services
from app.services.incoming import checked_vectors
from app.services.name_lookup import refuse_in_use, require_free
from app.storage import tables
from app.storage.queries import resources


def create_anchor_set(
    services: Services, project: str, *, name: str, embeddings: Mapping[str, Tensor]
) -> tables.AnchorSetRow:
    """A new set with all its embeddings, or nothing. Raises as `new_anchor_set`."""
    row = build_anchor_set(services, project, name=name, embeddings=embeddings)
    with services.db.transaction() as session:
        add_anchor_set(session, row)
    return row


def add_anchor_set(session: Session, row: tables.AnchorSetRow) -> None:
    """Add a new set. Raises NameTaken."""
    resources.require_free(session, tables.AnchorSetRow, row.project, row.name)
    session.add(row)
    record_audit(session, row.project, "create", "anchor-set", row.name, row)


def build_anchor_set(
    services: Services,
    project: str,
    *,
    name: str,
    embeddings: Mapping[str, Tensor],
    provenance: dict[str, Any] | None = None,
    inputs: str | None = None,
    made_by: Mapping[str, str] | None = None,
    pairs: Mapping[str, Tensor] | None = None,
    beat: Beat = no_beat,
) -> tables.AnchorSetRow:
    """The row of a new set and its spaces, not yet in any session; its blobs are written.

    inputs   the blob of its items, where they are kept
    made_by  ids of the encoders that made the embeddings, when the service did
    pairs    where a bootstrap found each anchor: `pairs` (k, 2) int64, rows of the source's and the target's pool, and
             `confidence` (k,) float32, nan where the method has none
    beat     called before each space is made, which takes seconds of many anchors; what it raises ends it

    Raises NameTaken, EncoderNotFound, UnequalAnchors, and every vector error, naming `embeddings.<encoder>`.
    """
    if not embeddings:
        raise EmptyVectors("expected embeddings by at least one encoder", field="embeddings")
    require_free(services, tables.AnchorSetRow, project, name)
    with services.db.transaction() as session:
        encoders = {
            key: resources.by_name(
                session, tables.EncoderRow, project, key, field=f"embeddings.{key}"
            )
            for key in embeddings
        }
    for key, row_ in encoders.items():
        _require_maker(row_, (made_by or {}).get(key))
    sizes = {key: vectors.shape[0] for key, vectors in embeddings.items()}
    size = next(iter(sizes.values()))
    for key, other in sizes.items():
        if other != size:
            raise UnequalAnchors(
                f"{next(iter(sizes))!r} brings {size} vectors, {key!r} {other}",
                field=f"embeddings.{key}",
            )
    row = tables.AnchorSetRow(
        project=project, name=name, size=size, provenance=provenance, inputs=inputs
    )
    row.pairs = None if pairs is None else services.blobs.put(pairs)
    for key, vectors in embeddings.items():
        beat()
        row.spaces.append(
            build_space(
                services, project, encoders[key], vectors, size=size, field=f"embeddings.{key}"
            )
        )
    return row


def add_embeddings(
    services: Services,
    project: str,
    *,
    anchor_set: str,
    encoder: str,
    vectors: Tensor,
    field: str = "vectors",
    made_by: str | None = None,
) -> tables.AnchorSetRow:
    """Another encoder's embeddings of a set; `made_by`: the id of the encoder that made them, when the service did.

    Raises the not-found errors, EmbeddingsExist, AnchorCountMismatch, and the vector errors.
    """
    set_row, encoder_row = set_and_encoder(
        services, project, anchor_set=anchor_set, encoder=encoder
    )
    _require_maker(encoder_row, made_by)
    space = build_space(services, project, encoder_row, vectors, size=set_row.size, field=field)
    with services.db.transaction() as session:
        return add_space(session, set_row, space)


def set_and_encoder(
    services: Services, project: str, *, anchor_set: str, encoder: str
) -> tuple[tables.AnchorSetRow, tables.EncoderRow]:
    """A set, and an encoder that has not embedded it. Raises the not-found errors and EmbeddingsExist."""
    with services.db.transaction() as session:
        set_row = resources.by_name(session, tables.AnchorSetRow, project, anchor_set)
        encoder_row = resources.by_name(
            session, tables.EncoderRow, project, encoder, field="encoder"
        )
        _refuse_present(session, set_row, encoder_row)
    return set_row, encoder_row


def add_space(
    session: Session, set_row: tables.AnchorSetRow, space: tables.SpaceRow
) -> tables.AnchorSetRow:
    """Add a space to its set. Raises AnchorSetNotFound, EmbeddingsExist, and Conflict when the set was made anew meanwhile."""
    found = resources.by_name(session, tables.AnchorSetRow, set_row.project, set_row.name)
    if found.id != set_row.id:  # another set, made meanwhile under the name of a deleted one
        raise Conflict(
            f"anchor set {set_row.name!r} was made anew meanwhile; look at it and try again",
            field="anchor_set",
        )
    _refuse_present(session, found, space.encoder)
    space.anchor_set_id = found.id
    session.add(space)
    record_audit(session, found.project, "embed", "anchor-set", found.name)
    session.flush()
    session.refresh(found)
    return found


def delete_anchor_set(services: Services, project: str, name: str) -> None:
    """The set, its spaces and its translators. Raises AnchorSetNotFound, InUse."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, project, name)
        refuse_in_use(f"anchor set {name!r}", resources.users_of_anchor_set(session, row))
        resources.remove(session, row)
        record_audit(session, project, "delete", "anchor-set", name)
    services.names.forget()


def bootstrapped_pairs(services: Services, project: str, name: str) -> tuple[Tensor, Tensor]:
    """Where a bootstrap found a set's anchors: pairs (k, 2) of rows of the two pools, and their confidence (k,).

    Raises AnchorSetNotFound, and PairsNotFound for a set that no bootstrap made.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, project, name)
    if row.pairs is None:
        raise PairsNotFound(
            f"anchor set {name!r} keeps no pairs: no bootstrap made it", field="name"
        )
    kept = services.blobs.get(row.pairs, of=f"anchor set {name!r}")
    return kept["pairs"], kept["confidence"]


def build_space(
    services: Services,
    project: str,
    encoder: tables.EncoderRow,
    vectors: Tensor,
    *,
    size: int,
    field: str,
) -> tables.SpaceRow:
    """Check and examine `size` anchors, write their blob, and return a row not yet in any session.

    Raises AnchorCountMismatch and the vector errors.
    """
    raw = checked_vectors(vectors, field=field, limits=services.limits, dim=encoder.dim)
    if raw.shape[0] != size:
        raise AnchorCountMismatch(
            f"the set has {size} anchors, this encoder brings {raw.shape[0]}", field=field
        )
    health = asdict(examine(raw.double(), require_direction(raw, field=field)))
    return tables.SpaceRow(
        project=project,
        encoder_id=encoder.id,
        encoder=encoder,
        blob=services.blobs.put({"anchors": raw}),
        health=health,
    )


def _require_maker(encoder: tables.EncoderRow, made_by: str | None) -> None:
    """Raises Conflict when the encoder of that name is not the one that made the vectors."""
    if made_by not in (None, encoder.id):
        raise Conflict(
            f"encoder {encoder.name!r} was made anew meanwhile; look at it and try again",
            field="encoder",
        )


def _refuse_present(
    session: Session, anchor_set: tables.AnchorSetRow, encoder: tables.EncoderRow
) -> None:
    try:
        resources.space(session, anchor_set, encoder)
    except AnchorsNotEmbedded:
        return
    raise EmbeddingsExist(
        f"anchor set {anchor_set.name!r} already has embeddings by {encoder.name!r}; they never change, make a new set",
        field="encoder",
    )
