"""Pools: items of one encoder in no known order, which come in pieces, and which bootstraps find partners in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.errors import (
    Conflict,
    DegenerateAnchors,
    EncoderNeedsVectors,
    OffsetMismatch,
    PoolOfAnotherEncoder,
    PoolTooLarge,
)
from app.maths.bootstrap.neighbours import Beat, no_beat
from app.maths.geometry.space import fit_space
from app.services import incoming
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.encoders.encoding import Inputs, encode, readable, spec_of
from app.storage import tables
from app.storage.queries import resources

#: what a piece's tensor is called in its blob
ROWS = "pool"

#: pieces of one pool: each is a file, and the pool's row names all of them
MOST_PIECES = 4_096

#: items that are looked at together for whether they differ
BLOCK = 1_024


@dataclass(frozen=True, eq=False)
class Given:
    """One side of a bootstrap as a client sends it, by the request's field: vectors, a pool's name, or inputs."""

    field: str
    content: Tensor | str | Inputs


@dataclass(frozen=True, eq=False)
class Found:
    """One side of a bootstrap, checked as far as it can be without encoding; a stored pool's content is its blobs."""

    encoder: tables.EncoderRow
    field: str
    rows: int
    content: Tensor | Inputs | Sequence[str]


def create(
    services: Services,
    project: str,
    *,
    name: str,
    encoder: str,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> tables.PoolRow:
    """A new pool of one piece: vectors, or inputs encoded now.

    Raises NameTaken, EncoderNotFound, NotExactlyOne, PoolTooLarge, and as `given_vectors`.
    """
    field, count = incoming.exactly_one(vectors, inputs)
    with services.db.transaction() as session:
        resources.require_free(session, tables.PoolRow, project, name)
        encoder_row = resources.by_name(
            session, tables.EncoderRow, project, encoder, field="encoder"
        )
    _require_room(services, count, field)
    piece = _write(
        services, incoming.vectors_or_encoded(services, encoder_row, vectors, inputs).vectors
    )
    row = tables.PoolRow(
        project=project,
        name=name,
        encoder_id=encoder_row.id,
        encoder=encoder_row,
        items=piece["rows"],
        pieces=[piece],
    )
    with services.db.transaction() as session:
        resources.require_free(session, tables.PoolRow, project, name)
        session.add(row)
        record_audit(session, project, "create", "pool", name, row)
    return row


def append(
    services: Services,
    project: str,
    *,
    name: str,
    offset: int,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> tables.PoolRow:
    """The pool with another piece, which begins at the item `offset`: where the pool ends, or it is refused.

    Raises PoolNotFound, OffsetMismatch, NotExactlyOne, PoolTooLarge, Conflict, and as `given_vectors`.
    """
    field, count = incoming.exactly_one(vectors, inputs)
    with services.db.transaction() as session:
        row = resources.whole_pool(session, project, name)
    if offset != row.items:
        raise _elsewhere(row, offset)
    _require_room(services, row.items + count, field)
    if len(row.pieces) >= MOST_PIECES:
        raise PoolTooLarge(
            f"a pool of {MOST_PIECES} pieces: send more vectors in each",
            field=field,
            limit=MOST_PIECES,
        )
    piece = _write(
        services, incoming.vectors_or_encoded(services, row.encoder, vectors, inputs).vectors
    )
    with services.db.transaction() as session:
        extended = resources.extend_pool(session, row, piece)
        found = resources.by_name(session, tables.PoolRow, project, name)
        if found.id != row.id:
            raise Conflict(
                f"pool {name!r} was made anew meanwhile; look at it and try again", field="name"
            )
        if not extended:
            raise _elsewhere(found, offset)
        record_audit(session, project, "append", "pool", name, found)
    return found


def delete(services: Services, project: str, name: str) -> None:
    """Forget a pool; jobs that use it have its blobs' names. Raises PoolNotFound."""
    with services.db.transaction() as session:
        resources.remove(session, resources.by_name(session, tables.PoolRow, project, name))
        record_audit(session, project, "delete", "pool", name)


def find(services: Services, project: str, encoder: tables.EncoderRow, given: Given) -> Found:
    """One side of a bootstrap; nothing is encoded or written yet.

    Raises PoolNotFound, PoolOfAnotherEncoder, PoolTooLarge, DegenerateAnchors, EncoderNeedsVectors, the vector errors, and the
    errors of inputs that nobody could read, naming the request's field.
    """
    field, content = given.field, given.content
    if isinstance(content, str):
        with services.db.transaction() as session:
            row = resources.whole_pool(session, project, content, field=field)
        if row.encoder_id != encoder.id:
            raise PoolOfAnotherEncoder(
                f"pool {content!r} is of encoder {row.encoder.name!r}, not {encoder.name!r}",
                field=field,
            )
        found = Found(encoder, field, row.items, [piece["blob"] for piece in row.pieces])
    elif isinstance(content, Inputs):
        found = Found(
            encoder, field, len(content.values), _readable(services, encoder, content, field)
        )
    else:
        _require_room(services, len(content), field)
        rows = incoming.checked_vectors(
            content, field=field, limits=services.limits, dim=encoder.dim
        )
        found = Found(encoder, field, len(rows), rows)
    _require_room(services, found.rows, field)
    if not isinstance(found.content, Inputs):
        _require_direction(services, found.content, field)
    return found


def keep(services: Services, found: Found) -> list[str]:
    """The blobs of one side, which no sweep takes until a job names them. Raises DegenerateAnchors, and as `encode`."""
    content = found.content
    if isinstance(content, Inputs):
        content = encode(
            services, found.encoder, content.values, role=content.role, field=found.field
        ).vectors
        _require_direction(services, content, found.field)
    if isinstance(content, Tensor):
        return [_write(services, content)["blob"]]
    services.blobs.touch(content)
    return list(content)


def load(services: Services, blobs: str | Sequence[str], *, beat: Beat = no_beat) -> Tensor:
    """The items of a side (n, d), float32, from its blobs: in memory for them alone and one piece. Raises StorageUnavailable.

    beat  is called before each piece, and may end it
    """
    digests = [blobs] if isinstance(blobs, str) else blobs
    shapes = [services.blobs.shape(digest, ROWS) for digest in digests]
    whole = torch.empty(sum(rows for rows, _ in shapes), shapes[0][1])
    end = 0
    for digest, (rows, _) in zip(digests, shapes, strict=True):
        beat()
        services.blobs.copy(digest, ROWS, to=whole[end : end + rows])
        end += rows
    return whole


def _write(services: Services, rows: Tensor) -> dict[str, Any]:
    """Store checked vectors; returns the piece as a pool's row has it."""
    return {"blob": services.blobs.put({ROWS: rows}), "rows": len(rows)}


def _elsewhere(pool: tables.PoolRow, offset: int) -> OffsetMismatch:
    """What is wrong with a piece that does not begin where the pool ends."""
    says = f"pool {pool.name!r} has {pool.items} items: its next piece begins at offset {pool.items}, not {offset}"
    return OffsetMismatch(says, items=pool.items)


def _require_room(services: Services, count: int, field: str) -> None:
    """Raises PoolTooLarge."""
    most = services.limits.pool
    if count > most:
        raise PoolTooLarge(f"{count} items in a pool, {most} are allowed", field=field, limit=most)


def _readable(services: Services, encoder: tables.EncoderRow, inputs: Inputs, field: str) -> Inputs:
    """The inputs as the encoder reads them. Raises EncoderNeedsVectors, and the errors of inputs that nobody could read."""
    try:
        spec_of(encoder)
    except EncoderNeedsVectors as error:
        error.field = field
        raise
    return Inputs(
        readable(encoder, inputs.values, limits=services.limits, field=field), inputs.role
    )


def _require_direction(services: Services, content: Tensor | Sequence[str], field: str) -> None:
    """Raises DegenerateAnchors when all items are one vector. A stored pool is read no further than to the first that differ."""
    pieces = (
        [content]
        if isinstance(content, Tensor)
        else (services.blobs.get(digest)[ROWS] for digest in content)
    )
    firsts = []
    for piece in pieces:
        for start in range(0, len(piece), BLOCK):
            if _differ(piece[start : start + BLOCK]):
                return
            firsts.append(piece[start : start + 1])
    if not _differ(torch.cat(firsts)):
        raise DegenerateAnchors(
            "the items of the pool are all the same vector, up to float32 rounding", field=field
        )


def _differ(rows: Tensor) -> bool:
    try:
        fit_space(rows)
    except DegenerateAnchors:
        return False
    return True
