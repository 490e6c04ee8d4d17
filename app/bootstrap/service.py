"""Pools, items of one encoder sent in pieces, and requests for bootstraps, which search two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from app import errors
from app.access.audit import record_audit
from app.access.name_lookup import require_free
from app.anchors import made_pairs
from app.bootstrap.run import POOL_TENSOR, SIDES
from app.bootstrap.schemas import BootstrapRequest, NewPiece, NewPool
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders import encoding, incoming
from app.encoders.encoding import require_same_vectors
from app.jobs.submission import submit_job
from app.maths.bootstrap.alignment import FEWEST_ALIGNED_ROWS, AlignmentSettings
from app.maths.bootstrap.anchored import FOLDS
from app.maths.bootstrap.pools import check_pairs
from app.maths.bootstrap.self_learning import FEWEST_POOL_ITEMS, SelfLearningSettings
from app.maths.geometry.space import fit_space
from app.types import JobKind

#: most pieces of one pool: each is a file, and the pool's row names all
MAX_POOL_PIECES = 4_096

#: items of one comparison, when a pool is searched for two that differ
COMPARED_ITEMS = 1_024

#: fewest made pairs that a translator is fitted to, and how many it has by default
FEWEST_MADE_PAIRS, DEFAULT_MADE_PAIRS = 1_000, 8_192

#: fewest seeds of an alignment: two of each fold that judges it
FEWEST_SEEDS = 2 * FOLDS


@dataclass(frozen=True, eq=False)
class PoolSide:
    """One side of a bootstrap, checked. A stored pool's content is its blobs."""

    field: str
    rows: int
    content: Tensor | Sequence[str]


def create_pool(
    services: Services, context: RequestContext, name: str, body: NewPool
) -> tables.PoolRow:
    """Create a pool of one piece: vectors, or inputs that are encoded now.

    Raises NameTaken, NotFound, and the errors of `_make_piece`.
    """
    require_free(services, tables.PoolRow, context.project, name)
    with services.db.transaction() as session:
        encoder = resources.by_name(
            session, tables.EncoderRow, context.project, body.encoder, field="encoder"
        )
    piece = _make_piece(services, context, encoder, body)
    row = tables.PoolRow(
        project=context.project,
        name=name,
        encoder_id=encoder.id,
        encoder=encoder,
        items=piece["rows"],
        pieces=[piece],
    )
    with services.db.transaction() as session:
        resources.require_free(session, tables.PoolRow, context.project, name)
        session.add(row)
        record_audit(session, context, "create", "pool", name)
    return row


def append_piece(
    services: Services, context: RequestContext, name: str, body: NewPiece
) -> tables.PoolRow:
    """Append a piece to a pool, whose number of items must be the piece's `offset`.

    Raises NotFound, OffsetMismatch, PoolTooLarge, Conflict, and the errors of `_make_piece`.
    """
    with services.db.transaction() as session:
        row = resources.whole_pool(session, context.project, name)
    _require_end(row, body.offset)
    piece = _make_piece(services, context, row.encoder, body, pool=row)
    with services.db.transaction() as session:
        is_appended = resources.extend_pool(session, row, piece)
        current = resources.by_name(session, tables.PoolRow, context.project, name)
        if current.id != row.id:
            raise errors.Conflict(
                f"Pool {name!r} was replaced by another of that name. Check it, and try again.",
                field="name",
            )
        if not is_appended:
            _require_end(current, body.offset)
        record_audit(session, context, "append", "pool", name)
    return current


def delete_pool(services: Services, context: RequestContext, name: str) -> None:
    """Delete a pool. Jobs that use it still read its blobs. Raises NotFound."""
    with services.db.transaction() as session:
        resources.remove(session, resources.by_name(session, tables.PoolRow, context.project, name))
        record_audit(session, context, "delete", "pool", name)


def check_side(
    services: Services, encoder: tables.EncoderRow, body: BootstrapRequest, side: str
) -> PoolSide:
    """Check the `source` or the `target` of a bootstrap. Nothing is written."""
    field = f"{side}_pool"
    content = getattr(body, field)
    if content is None:
        raise errors.MissingField(f"Send `{field}`: vectors, or the name of a pool.", field=field)
    if isinstance(content, Tensor):
        _require_room(services, len(content), field)
        vectors = incoming.checked_vectors(
            content, field=field, limits=services.limits, dim=encoder.dim
        )
        _require_direction(services, vectors, field)
        return PoolSide(field, len(vectors), vectors)
    with services.db.transaction() as session:
        row = resources.whole_pool(session, encoder.project, content, field=field)
    if row.encoder_id != encoder.id:
        raise errors.PoolOfAnotherEncoder(
            f"Pool {content!r} belongs to encoder {row.encoder.name!r}, not {encoder.name!r}. "
            "Name a pool of that encoder.",
            field=field,
        )
    _require_room(services, row.items, field)
    blobs = [piece["blob"] for piece in row.pieces]
    _require_direction(services, blobs, field)
    return PoolSide(field, row.items, blobs)


def store_side(services: Services, side: PoolSide) -> list[str]:
    """Store one side, and return its blobs, which no sweep deletes before a job names them."""
    if isinstance(side.content, Tensor):
        return [services.blobs.put({POOL_TENSOR: side.content})]
    services.blobs.touch(side.content)
    return list(side.content)


def _make_piece(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    body: NewPool | NewPiece,
    pool: tables.PoolRow | None = None,
) -> dict[str, Any]:
    """Store the next piece of the pool: vectors, or inputs that are encoded now. Return its entry
    of `pieces`.

    Raises NotExactlyOne, PoolTooLarge, and the errors of `vectors_or_encoded`.
    """
    inputs = body.encoder_inputs()
    field, count = encoding.exactly_one(body.vectors, inputs)
    _require_room(services, count + (pool.items if pool else 0), field)
    if pool is not None and len(pool.pieces) >= MAX_POOL_PIECES:
        why = f"The pool has {MAX_POOL_PIECES} pieces, the most. Create one of larger pieces."
        raise errors.PoolTooLarge(why, field=field, limit=MAX_POOL_PIECES)
    if inputs is not None:
        require_same_vectors(encoder)
    read = encoding.vectors_or_encoded(services, context, encoder, body.vectors, inputs)
    return {"blob": services.blobs.put({POOL_TENSOR: read.vectors}), "rows": len(read.vectors)}


def _require_end(pool: tables.PoolRow, offset: int) -> None:
    """Raises OffsetMismatch unless a piece with this offset begins where the pool ends."""
    if offset != pool.items:
        raise errors.OffsetMismatch(
            f"pool {pool.name!r} has {pool.items} items. Send its next piece with offset "
            f"{pool.items}, not {offset}",
            field="offset",
            more={"items": pool.items},
        )


def _require_room(services: Services, count: int, field: str) -> None:
    """Raises PoolTooLarge."""
    most = services.limits.pool
    if count > most:
        why = f"The pool would have {count} items; at most {most} are allowed."
        raise errors.PoolTooLarge(why, field=field, limit=most)


def _require_direction(services: Services, content: Tensor | Sequence[str], field: str) -> None:
    """Raises DegenerateAnchors when all items are equal. Reads a stored pool up to a difference."""
    pieces = (
        [content]
        if isinstance(content, Tensor)
        else (services.blobs.get(digest)[POOL_TENSOR] for digest in content)
    )
    first = None
    for piece in pieces:
        for rows in torch.split(piece, COMPARED_ITEMS):
            first = rows[:1] if first is None else first
            with suppress(errors.DegenerateAnchors):
                fit_space(torch.cat([first, rows]))
                return
    raise errors.DegenerateAnchors(
        "All items of the pool are equal, up to float32 rounding. Send different items.",
        field=field,
    )


def request_bootstrap(
    services: Services, context: RequestContext, body: BootstrapRequest
) -> tables.JobRow:
    """Check the request, store the pools, and queue the job.

    Raises the not-found errors, NameTaken, MissingField, InvalidRequest, InvalidSeeds,
    InvalidOption, UnknownOption, TooManyVectors, TooManyJobs, QueueFull, and the errors of
    `check_side` and `store_side`.
    """
    if body.source == body.target:
        raise errors.InvalidRequest(
            "`source` and `target` must be different encoders.", field="target"
        )
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, context.project, body.name)
        encoders = [
            resources.by_name(
                session, tables.EncoderRow, context.project, getattr(body, side), field=side
            )
            for side in SIDES
        ]
    sides = [
        check_side(services, encoder, body, side)
        for encoder, side in zip(encoders, SIDES, strict=True)
    ]
    arguments = {
        **body.model_dump(include={"name", "source", "target", "seeds", "method", "min_precision"}),
        "settings": _settings_of(body, sides, most=services.limits.vectors),
        "made_by": {encoder.name: encoder.id for encoder in encoders},
        "blobs": {
            f"{side}_pool": store_side(services, found)
            for side, found in zip(SIDES, sides, strict=True)
        },
    }
    return submit_job(services, context, JobKind.bootstrap, arguments)


def _settings_of(body: BootstrapRequest, sides: list[PoolSide], *, most: int) -> dict[str, Any]:
    """Return the settings of the method, once sizes, seeds and options fit these pools.

    most  the most anchors of a set
    """
    is_alignment, size = body.method == made_pairs.ALIGNMENT, body.size
    if size is not None and size > most:
        raise errors.TooManyVectors(
            f"`size` is {size}; at most {most} anchors are allowed.", field="size", limit=most
        )
    fewest = FEWEST_ALIGNED_ROWS if is_alignment else FEWEST_POOL_ITEMS
    smaller = min(sides, key=lambda side: side.rows)
    if smaller.rows < fewest:
        raise errors.InvalidRequest(
            f"`method: {body.method}` needs pools of at least {fewest:,} items; this one has "
            f"{smaller.rows:,}. Send more items.",
            field=smaller.field,
        )
    if not is_alignment and size is not None and size > smaller.rows:
        raise errors.InvalidSeeds(
            f"`size` is {size}; the smaller pool has {smaller.rows} items. Lower `size`.",
            field="size",
        )
    most_seeds = most if is_alignment else size or most
    if len(body.seeds) > most_seeds:
        raise errors.InvalidSeeds(
            f"There are {len(body.seeds):,} seeds; at most {most_seeds:,} are allowed. Send fewer.",
            field="seeds",
        )
    check_pairs(body.seeds, source=sides[0].rows, target=sides[1].rows)
    if is_alignment:
        return _alignment_settings(body, sides[0].rows, most=most)
    options = body.options.model_dump(exclude_none=True)
    return asdict(SelfLearningSettings(size=size, **options))


def _alignment_settings(body: BootstrapRequest, rows: int, *, most: int) -> dict[str, Any]:
    """Return the settings of an alignment. `rows` counts the items of the source's pool."""
    if 0 < len(body.seeds) < FEWEST_SEEDS:
        raise errors.InvalidSeeds(
            f"`method: alignment` takes no seeds or at least {FEWEST_SEEDS}, because some of them "
            f"judge the alignment; there are {len(body.seeds)}. Send more, or `[]`.",
            field="seeds",
        )
    options = body.options.model_dump(exclude_none=True)
    allowed = ("seed",) if body.seeds else ("attempts", "seed")
    for name in options.keys() - set(allowed):
        raise errors.UnknownOption(
            f"`method: alignment`{' with seeds' if body.seeds else ''} has no option `{name}`. It "
            f"has {', '.join(allowed)}.",
            field=f"options.{name}",
        )
    if options.get("attempts") == 1:
        raise errors.InvalidOption(
            "`method: alignment` compares attempts, so it needs at least two. Raise `attempts`.",
            field="options.attempts",
        )
    if body.size is not None and not FEWEST_MADE_PAIRS <= body.size <= rows:
        raise errors.InvalidRequest(
            f"`size` must be {FEWEST_MADE_PAIRS:,} to the {rows:,} items of the source's pool. "
            "Change it, or drop it.",
            field="size",
        )
    size = body.size or min(DEFAULT_MADE_PAIRS, rows, most)
    if body.seeds:
        return {"seed": 0, "size": size, **options}
    return asdict(AlignmentSettings(size=size, **options))
