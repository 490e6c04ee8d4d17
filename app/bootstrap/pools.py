"""Pools: items of one encoder, sent in pieces, among which a bootstrap searches for pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.access.audit import record_audit
from app.context import Services
from app.db import resources, tables
from app.encoders import encoding, incoming
from app.encoders.encoding import check_inputs, encode, require_same_vectors
from app.encoders.models.base import Inputs
from app.errors import (
    Conflict,
    DegenerateAnchors,
    InvalidRequest,
    OffsetMismatch,
    PoolOfAnotherEncoder,
    PoolTooLarge,
    blaming,
)
from app.maths.bootstrap.neighbours import Beat, no_beat
from app.maths.geometry.space import fit_space
from app.request_context import RequestContext

#: the name of a piece's tensor in its blob
POOL_TENSOR = "pool"

#: most pieces of one pool: each is a file, and the pool's row names all
MAX_POOL_PIECES = 4_096

#: items of one comparison, when a pool is searched for two that differ
COMPARED_ITEMS = 1_024


@dataclass(frozen=True, eq=False)
class PoolInput:
    """One side of a bootstrap, as sent in `field`: vectors, a pool's name, or inputs."""

    field: str
    content: Tensor | str | Inputs


@dataclass(frozen=True, eq=False)
class PoolSide:
    """One side of a bootstrap, checked but not encoded. A stored pool's content is its blobs."""

    encoder: tables.EncoderRow
    field: str
    rows: int
    content: Tensor | Inputs | Sequence[str]


def create_pool(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    encoder: str,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> tables.PoolRow:
    """Create a pool of one piece: vectors, or inputs that are encoded now.

    Raises NameTaken, EncoderNotFound, NotExactlyOne, PoolTooLarge, and the errors of
    `vectors_or_encoded`.
    """
    field, count = encoding.exactly_one(vectors, inputs)
    with services.db.transaction() as session:
        resources.require_free(session, tables.PoolRow, context.project, name)
        encoder_row = resources.by_name(
            session, tables.EncoderRow, context.project, encoder, field="encoder"
        )
    _require_room(services, count, field)
    if inputs is not None:
        require_same_vectors(encoder_row)
    piece = _store_piece(
        services,
        encoding.vectors_or_encoded(services, context, encoder_row, vectors, inputs).vectors,
    )
    row = tables.PoolRow(
        project=context.project,
        name=name,
        encoder_id=encoder_row.id,
        encoder=encoder_row,
        items=piece["rows"],
        pieces=[piece],
    )
    with services.db.transaction() as session:
        resources.require_free(session, tables.PoolRow, context.project, name)
        session.add(row)
        record_audit(session, context, "create", "pool", name)
    return row


def append_piece(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    offset: int,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> tables.PoolRow:
    """Append a piece to a pool. `offset` must be the pool's number of items.

    Raises PoolNotFound, OffsetMismatch, NotExactlyOne, PoolTooLarge, Conflict, and the errors of
    `vectors_or_encoded`.
    """
    field, count = encoding.exactly_one(vectors, inputs)
    with services.db.transaction() as session:
        row = resources.whole_pool(session, context.project, name)
    if offset != row.items:
        raise _offset_mismatch(row, offset)
    _require_room(services, row.items + count, field)
    if len(row.pieces) >= MAX_POOL_PIECES:
        raise PoolTooLarge(
            f"The pool has {MAX_POOL_PIECES} pieces, the most allowed. Create a pool of larger "
            "pieces.",
            field=field,
            limit=MAX_POOL_PIECES,
        )
    if inputs is not None:
        require_same_vectors(row.encoder)
    piece = _store_piece(
        services,
        encoding.vectors_or_encoded(services, context, row.encoder, vectors, inputs).vectors,
    )
    with services.db.transaction() as session:
        is_appended = resources.extend_pool(session, row, piece)
        current = resources.by_name(session, tables.PoolRow, context.project, name)
        if current.id != row.id:
            raise Conflict(
                f"Pool {name!r} was replaced by another of that name. Check it, and try again.",
                field="name",
            )
        if not is_appended:
            raise _offset_mismatch(current, offset)
        record_audit(session, context, "append", "pool", name)
    return current


def delete_pool(services: Services, context: RequestContext, name: str) -> None:
    """Delete a pool. Jobs that use it still read its blobs. Raises PoolNotFound."""
    with services.db.transaction() as session:
        resources.remove(session, resources.by_name(session, tables.PoolRow, context.project, name))
        record_audit(session, context, "delete", "pool", name)


def check_sides(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    encoders: Mapping[str, str],
    inputs: tuple[PoolInput, PoolInput],
) -> list[PoolSide]:
    """Check both sides of a bootstrap.

    name      the anchor set, which must be free
    encoders  the names of `source` and `target`
    """
    if encoders["source"] == encoders["target"]:
        raise InvalidRequest("`source` and `target` must be different encoders.", field="target")
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, context.project, name)
        rows = [
            resources.by_name(session, tables.EncoderRow, context.project, encoder, field=field)
            for field, encoder in encoders.items()
        ]
    return [
        check_side(services, context.project, row, side)
        for row, side in zip(rows, inputs, strict=True)
    ]


def store_sides(
    services: Services, context: RequestContext, sides: Sequence[PoolSide]
) -> dict[str, Any]:
    """Store both sides, and return a job's arguments about them."""
    return {
        "made_by": {side.encoder.name: side.encoder.id for side in sides},
        "blobs": {
            name: store_side(services, context, side)
            for name, side in zip(("source_pool", "target_pool"), sides, strict=True)
        },
    }


def check_side(
    services: Services, project: str, encoder: tables.EncoderRow, side: PoolInput
) -> PoolSide:
    """Check one side of a bootstrap, without encoding or writing anything."""
    field, content = side.field, side.content
    if isinstance(content, str):
        with services.db.transaction() as session:
            row = resources.whole_pool(session, project, content, field=field)
        if row.encoder_id != encoder.id:
            raise PoolOfAnotherEncoder(
                f"Pool {content!r} belongs to encoder {row.encoder.name!r}, not {encoder.name!r}. "
                "Name a pool of that encoder.",
                field=field,
            )
        pool_side = PoolSide(encoder, field, row.items, [piece["blob"] for piece in row.pieces])
    elif isinstance(content, Inputs):
        pool_side = PoolSide(
            encoder,
            field,
            len(content.values),
            _check_side_inputs(services, encoder, content, field),
        )
    else:
        _require_room(services, len(content), field)
        rows = incoming.checked_vectors(
            content, field=field, limits=services.limits, dim=encoder.dim
        )
        pool_side = PoolSide(encoder, field, len(rows), rows)
    _require_room(services, pool_side.rows, field)
    if not isinstance(pool_side.content, Inputs):
        _require_direction(services, pool_side.content, field)
    return pool_side


def store_side(services: Services, context: RequestContext, pool_side: PoolSide) -> list[str]:
    """Store one side, and return its blobs, which no sweep deletes before a job names them."""
    content = pool_side.content
    if isinstance(content, Inputs):
        content = encode(
            services,
            context,
            pool_side.encoder,
            content.values,
            role=content.role,
            field=pool_side.field,
        ).vectors
        _require_direction(services, content, pool_side.field)
    if isinstance(content, Tensor):
        return [_store_piece(services, content)["blob"]]
    services.blobs.touch(content)
    return list(content)


def load_items(services: Services, digests: Sequence[str], *, beat: Beat = no_beat) -> Tensor:
    """Return the items of a side (n, d), float32, in memory for them and one piece.

    beat  called before each piece; it may raise to stop
    """
    shapes = [services.blobs.shape(digest, POOL_TENSOR) for digest in digests]
    items = torch.empty(sum(rows for rows, _ in shapes), shapes[0][1])
    end = 0
    for digest, (rows, _) in zip(digests, shapes, strict=True):
        beat()
        services.blobs.copy(digest, POOL_TENSOR, to=items[end : end + rows])
        end += rows
    return items


def _store_piece(services: Services, rows: Tensor) -> dict[str, Any]:
    """Store checked vectors; return the entry of a pool's `pieces`."""
    return {"blob": services.blobs.put({POOL_TENSOR: rows}), "rows": len(rows)}


def _offset_mismatch(pool: tables.PoolRow, offset: int) -> OffsetMismatch:
    """The error of a piece that does not begin where the pool ends."""
    detail = (
        f"pool {pool.name!r} has {pool.items} items. Send its next piece with offset "
        f"{pool.items}, not {offset}"
    )
    return OffsetMismatch(detail, field="offset", more={"items": pool.items})


def _require_room(services: Services, count: int, field: str) -> None:
    """Raises PoolTooLarge."""
    most = services.limits.pool
    if count > most:
        raise PoolTooLarge(
            f"The pool would have {count} items; at most {most} are allowed.",
            field=field,
            limit=most,
        )


def _check_side_inputs(
    services: Services, encoder: tables.EncoderRow, inputs: Inputs, field: str
) -> Inputs:
    """Return the inputs as the encoder reads them."""
    with blaming(field, always=True):
        require_same_vectors(encoder)
    return Inputs(
        check_inputs(encoder, inputs.values, limits=services.limits, field=field), inputs.role
    )


def _require_direction(services: Services, content: Tensor | Sequence[str], field: str) -> None:
    """Raises DegenerateAnchors when all items are equal. Reads a stored pool up to a difference."""
    pieces = (
        [content]
        if isinstance(content, Tensor)
        else (services.blobs.get(digest)[POOL_TENSOR] for digest in content)
    )
    first_rows = []
    for piece in pieces:
        for start in range(0, len(piece), COMPARED_ITEMS):
            if _differ(piece[start : start + COMPARED_ITEMS]):
                return
            first_rows.append(piece[start : start + 1])
    if not _differ(torch.cat(first_rows)):
        raise DegenerateAnchors(
            "All items of the pool are equal, up to float32 rounding. Send different items.",
            field=field,
        )


def _differ(rows: Tensor) -> bool:
    try:
        fit_space(rows)
    except DegenerateAnchors:
        return False
    return True
