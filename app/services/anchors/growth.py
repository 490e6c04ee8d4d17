"""Appends items to anchor sets: a new version, which replaces the old one at once.

The spaces of the old version stay for the requests that began before the append, which use it to
their end, and for the translators that were fitted to them until retention deletes those. The next
append deletes spaces without translators, so that many appends do not keep many copies of a set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import InUse, InvalidRequest, MissingField, TooManyVectors, UnequalAnchors
from app.services.access.audit import record_audit
from app.services.anchors import anchor_embedding, anchor_sets, spaces
from app.services.context import Services
from app.services.encoders.encoding import Inputs, check_inputs, require_same_vectors
from app.services.incoming import checked_vectors
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources, set_versions


def append_items(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    embeddings: Mapping[str, Tensor],
    inputs: Inputs | None,
    roles: Sequence[str] | None,
    read: tables.AnchorSetRow | None = None,
) -> tables.AnchorSetRow:
    """Append items to a set, in all its spaces or in none, and return its row.

    embeddings  vectors of the items, by encoder
    inputs      the items, which the set's other encoders encode
    read        the set as the caller read it; None: as it is now

    Raises AnchorSetNotFound, InUse when a head reads relative vectors of the set, InvalidRequest,
    MissingField, UnequalAnchors, TooManyVectors, the vector errors, the errors of `encode`,
    Overloaded, and Conflict when another request changed the set meanwhile.
    """
    with services.db.transaction() as session:
        old = resources.whole_set(session, context.project, anchor_set)
        if read is not None and (old.id, old.version) != (read.id, read.version):
            raise anchor_sets.changed(anchor_set)
        _refuse_relative_heads(session, old)
    count = _check_items(services, old, embeddings, inputs, roles)
    new = _vectors_of_all(services, context, old, embeddings, inputs, roles)
    with services.fitting(context.project):  # all anchors are examined again, which takes seconds
        grown = [
            anchor_sets.build_space(
                services,
                context.project,
                space.encoder,
                torch.cat([spaces.raw_anchors(services, space), new[space.encoder.name].float()]),
                size=old.size + count,
                field=f"embeddings.{space.encoder.name}",
            )
            for space in old.spaces
        ]
    for before, space in zip(old.spaces, grown, strict=True):
        is_sent = inputs is not None and space.encoder.name in embeddings
        space.is_baseline = before.is_baseline and not is_sent
    stored = _joined_inputs(services, old, inputs)
    with services.db.transaction() as session:
        row = replace_spaces(session, context, old, grown)
        row.size, row.version, row.inputs = old.size + count, old.version + 1, stored
        if roles is not None:
            row.roles = [*(old.roles or []), *roles]
        record_audit(session, context, "append", "anchor-set", row.name)
        session.flush()
        session.expire_all()
        row = resources.whole_set(session, context.project, anchor_set)
    services.names.forget()
    return row


def _check_items(
    services: Services,
    row: tables.AnchorSetRow,
    embeddings: Mapping[str, Tensor],
    inputs: Inputs | None,
    roles: Sequence[str] | None,
) -> int:
    """Return the number of new items, once everything is checked that needs no encoding."""
    names = [space.encoder.name for space in row.spaces]
    for key in embeddings:
        if key not in names:
            raise InvalidRequest(
                f"Anchor set {row.name!r} has no embeddings by {key!r}. Its encoders are "
                f"{', '.join(names)}.",
                field=f"embeddings.{key}",
            )
    missing = [name for name in names if name not in embeddings]
    if inputs is None and missing:
        raise MissingField(
            f"Each new item needs a vector by each encoder of the set. Add `embeddings` by "
            f"{', '.join(missing)}, or send `inputs` that the service encodes.",
            field="embeddings",
        )
    if inputs is not None and not missing and row.inputs is None:
        raise InvalidRequest(
            f"Anchor set {row.name!r} stores no inputs, and no encoder needs them with "
            "`embeddings`. Remove `inputs`.",
            field="inputs",
        )
    if inputs is None and row.inputs is not None:
        raise MissingField(
            f"Anchor set {row.name!r} stores its inputs. Send the `inputs` of the new items too.",
            field="inputs",
        )
    count = anchor_sets.common_size(embeddings) if embeddings else 0
    if inputs is not None:
        if embeddings and len(inputs.values) != count:
            raise UnequalAnchors(
                f"There are {count} vectors by each encoder and {len(inputs.values)} `inputs`. "
                "Send one for each item.",
                field="inputs",
            )
        count = len(inputs.values)
    _check_roles(row, roles, count)
    most = services.limits.vectors
    if row.size + count > most:
        raise TooManyVectors(
            f"The set has {row.size} anchors, and would have {row.size + count}; at most {most} "
            "are allowed. Append fewer.",
            field="inputs" if inputs is not None else "embeddings",
            limit=most,
        )
    return count


def _check_roles(row: tables.AnchorSetRow, roles: Sequence[str] | None, count: int) -> None:
    """Raises MissingField, InvalidRequest and UnequalAnchors."""
    if roles is None and row.roles is not None:
        raise MissingField(
            f"The items of anchor set {row.name!r} have roles. Send `roles` of the new items.",
            field="roles",
        )
    if roles is not None and row.roles is None:
        raise InvalidRequest(
            f"The items of anchor set {row.name!r} have no roles. Remove `roles`, or create a new "
            "set with roles for all its items.",
            field="roles",
        )
    anchor_sets.check_roles(roles, count)


def _vectors_of_all(
    services: Services,
    context: RequestContext,
    row: tables.AnchorSetRow,
    embeddings: Mapping[str, Tensor],
    inputs: Inputs | None,
    roles: Sequence[str] | None,
) -> dict[str, Tensor]:
    """Return the new items' vectors by each encoder of the set, encoded where none were sent.

    Everything is checked before the first encoder runs.
    """
    vectors = {
        space.encoder.name: checked_vectors(
            embeddings[space.encoder.name],
            field=f"embeddings.{space.encoder.name}",
            limits=services.limits,
            dim=space.encoder.dim,
        )
        for space in row.spaces
        if space.encoder.name in embeddings
    }
    encoders = [space.encoder for space in row.spaces if space.encoder.name not in vectors]
    if inputs is None:
        return vectors
    for encoder in encoders:
        require_same_vectors(encoder)
    for encoder in encoders:
        values = check_inputs(encoder, inputs.values, limits=services.limits, field="inputs")
        vectors[encoder.name] = anchor_embedding.encode_items(
            services, context, encoder, Inputs(values, inputs.role, roles)
        )
    return vectors


def _joined_inputs(
    services: Services, row: tables.AnchorSetRow, inputs: Inputs | None
) -> str | None:
    """Return the blob of the old and new items; None if the set stores none."""
    if row.inputs is None or inputs is None:
        return None
    old = anchor_embedding.read_inputs(services, row.inputs, of=f"anchor set {row.name!r}")
    if old.roles is None and old.role != inputs.role:
        raise InvalidRequest(
            f"The stored inputs have the `input_type` {old.role.value}. Send the new ones with the "
            "same.",
            field="input_type",
        )
    values = inputs.values
    for space in row.spaces:  # images are stored as bytes
        values = check_inputs(space.encoder, values, limits=services.limits, field="inputs")
    roles = None if old.roles is None else [*old.roles, *(inputs.roles or [])]
    return anchor_embedding.write_inputs(services, Inputs([*old.values, *values], old.role, roles))


def replace_spaces(
    session: Session,
    context: RequestContext,
    old: tables.AnchorSetRow,
    grown: Sequence[tables.SpaceRow],
) -> tables.AnchorSetRow:
    """Add the spaces of the next version; return the set's row, which still has the old version.

    Samples move to them. Raises Conflict when the set changed since `old` was read.
    """
    row = anchor_sets.require_version(session, context.project, old)
    current = {space.encoder_id: space for space in row.spaces}
    if {space.id for space in row.spaces} != {space.id for space in old.spaces}:
        raise anchor_sets.changed(old.name)
    _refuse_relative_heads(session, row)
    for space in grown:
        before = current[space.encoder_id]
        space.anchor_set_id, space.version = row.id, row.version + 1
        space.encoder = before.encoder  # the object of this session
        space.sample, space.sample_size = before.sample, before.sample_size
        space.store_size = before.store_size
        session.add(space)
    session.flush()
    set_versions.delete_replaced(session, row)
    return row


def _refuse_relative_heads(session: Session, row: tables.AnchorSetRow) -> None:
    """Raises InUse: a relative head reads as many numbers as the set has anchors."""
    users = resources.users_of_anchor_set(session, row)
    if users:
        raise InUse(
            f"{', '.join(users[:10])} reads relative vectors of anchor set {row.name!r}, with one "
            f"number for each of its {row.size} anchors. Create a new set from the old and the new "
            "items, or delete the head.",
            field="name",
        )
