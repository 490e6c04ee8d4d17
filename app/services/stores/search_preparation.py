"""Prepares a search of a store: its mode, its side, and the queries in the space of that side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from app.errors import (
    InvalidRequest,
    MissingField,
    NotExactlyOne,
    TooManyVectors,
    WrongState,
)
from app.maths.translators import methods
from app.services.context import Services
from app.services.encoders import encoding
from app.services.encoders.encoding import Inputs
from app.services.incoming import checked_vectors
from app.services.request_context import RequestContext
from app.services.serving import apply
from app.services.serving.apply import MappedVectors, ServedMap, Translation
from app.services.stores import stores
from app.services.translators.translators import FitRequest
from app.storage import tables
from app.storage.queries import resources
from app.storage.queries.reindexings import STEP
from app.stores.base import Side, StoreVectors
from app.types import EncoderKind, ReindexingState

StoreSearchMode = Literal["bridge", "cascade", "fuse", "translate"]

#: candidates of each query, unless the request says otherwise
USUAL_CANDIDATES = 100

#: bytes of memory for a candidate's id, score and place
HIT_BYTES = 256

#: states in which every row has a new vector, and an index
COMPLETE = (ReindexingState.filled, ReindexingState.cut_over, ReindexingState.rolled_back)


@dataclass(frozen=True, eq=False)
class StoreSearch:
    """Queries of the encoder `target` for a store.

    queries, inputs  (q, d_target), or what the target encoder encodes
    anchor_set       None: the set of the store's reindexing to the target
    mode             None: `translate` where the store shows vectors of the target, else `cascade`
    k, candidates    results of each query, and rows that are scored; None: USUAL_CANDIDATES
    filter           in the store's language
    old_queries      (q, d_source) for `fuse`; None: the store's encoder encodes the inputs
    weight           of the new scores in `fuse`; None: chosen by the service
    payload          whether results have payloads
    """

    store: str
    target: str
    queries: Tensor | None = None
    inputs: Inputs | None = None
    anchor_set: str | None = None
    mode: StoreSearchMode | None = None
    k: int = 10
    candidates: int | None = None
    filter: Any = None
    old_queries: Tensor | None = None
    weight: float | None = None
    method: str | None = None
    options: methods.Options = field(default_factory=dict)
    payload: bool = False
    exact: bool = False


@dataclass(frozen=True, eq=False)
class PreparedSearch:
    """A search that is ready for the store.

    compared  the vectors that the store compares, (m, d)
    cut_over  whether a reindexing of the store may finish, and delete its old vectors
    """

    row: tables.StoreRow
    mode: StoreSearchMode
    side: Side
    request: FitRequest | None
    queries: Tensor
    old_queries: Tensor | None
    compared: StoreVectors
    bridging: ServedMap | None
    candidates: int
    has_new: bool
    truncated: Sequence[int]
    cut_over: bool


def prepare_search(
    services: Services, context: RequestContext, request: StoreSearch
) -> PreparedSearch:
    """Find what the request names, and bring its queries into the space of the store."""
    if (request.queries is None) == (request.inputs is None):
        raise NotExactlyOne("Send exactly one of `queries` and `inputs`.", field="queries")
    row, moving = stores.find_moving_store(services, context.project, request.store)
    with services.db.transaction() as session:
        target = resources.by_name(
            session, tables.EncoderRow, context.project, request.target, field="target"
        )
    cut_over = moving is not None and moving.state == ReindexingState.cut_over
    if moving is not None and moving.target.id != target.id:
        _refuse_unsettled(moving)
        moving = None
    same = row.encoder.id == target.id
    mode = request.mode or _usual_mode(same, moving)
    _check_mode(request, mode, same, moving)
    if moving is not None and mode != "translate":
        _refuse_unsettled(moving)
    queries, truncated = _encode(services, context, target, request.queries, request.inputs)
    if mode == "translate":
        _reserve(services, context, len(queries) * request.k, row, "k")
        side: Side = "old" if same else "new"
        return PreparedSearch(
            row=row,
            mode=mode,
            side=side,
            request=None,
            queries=queries,
            old_queries=None,
            compared=_numpy(queries),
            bridging=None,
            candidates=request.k,
            has_new=False,
            truncated=truncated,
            cut_over=cut_over,
        )
    fit = _fit_request(request, row, moving)
    old = _old_queries(services, context, request, row, len(queries)) if mode == "fuse" else None
    candidates = request.k if mode == "bridge" else _candidates(request)
    _reserve(services, context, len(queries) * (1 if old is None else 2) * candidates, row)
    bridged = _bridge(services, context, fit, queries)
    compared = _numpy(bridged.output.vectors)
    if old is not None:
        compared = np.concatenate([_numpy(old), compared])
    has_new = moving is not None and moving.state != ReindexingState.planned
    return PreparedSearch(
        row=row,
        mode=mode,
        side="old",
        request=fit,
        queries=queries,
        old_queries=old,
        compared=compared,
        bridging=bridged.served,
        candidates=candidates,
        has_new=has_new,
        truncated=truncated,
        cut_over=cut_over,
    )


def refuse_if_finished(
    services: Services, context: RequestContext, request: StoreSearch, ready: PreparedSearch
) -> None:
    """Raises WrongState if the old vectors may have been deleted while the store was searched."""
    row, moving = stores.find_moving_store(services, context.project, request.store)
    if moving is not None:
        _refuse_unsettled(moving)
    if row.encoder.id != ready.row.encoder.id:
        raise WrongState(
            f"The store now belongs to the encoder {row.encoder.name!r}: its reindexing ended "
            "during the search. Repeat the call."
        )


def _refuse_unsettled(moving: tables.ReindexingRow) -> None:
    """Raises WrongState while `finish` deletes the old vectors, or was interrupted there.

    The store may then hold vectors of the target where the old ones were.
    """
    if moving.position.get(STEP) == "finish":
        raise WrongState(
            f"`finish` of the store's reindexing {moving.id} deletes the old vectors, or was "
            f"interrupted. Call `finish` of it again, or search with `target: {moving.target.name}`"
            " and `mode: translate`.",
            field="mode",
        )


def _usual_mode(same: bool, moving: tables.ReindexingRow | None) -> StoreSearchMode:
    cut_over = moving is not None and moving.state == ReindexingState.cut_over
    return "translate" if same or cut_over else "cascade"


def _check_mode(
    request: StoreSearch,
    mode: StoreSearchMode,
    same: bool,
    moving: tables.ReindexingRow | None,
) -> None:
    """Raises InvalidRequest for fields of other modes, and WrongState."""
    if mode != "fuse":
        for name in ("old_queries", "weight"):
            if getattr(request, name) is not None:
                raise InvalidRequest(
                    f"`{name}` only applies with `mode: fuse`. Remove it, or set `mode`.",
                    field=name,
                )
    if mode in ("bridge", "translate") and request.candidates is not None:
        raise InvalidRequest(
            f"`candidates` does not apply with `mode: {mode}`. Remove it, or set `mode: cascade`.",
            field="candidates",
        )
    if mode == "translate":
        if not same and (moving is None or moving.state not in COMPLETE):
            raise WrongState(
                f"The store has no complete vectors of {request.target!r}. Set `mode: cascade`, or "
                "run a reindexing first.",
                field="mode",
            )
    elif same:
        raise InvalidRequest(
            f"The store holds vectors of {request.target!r}, so there is nothing to translate. "
            "Remove `mode`, or name another `target`.",
            field="mode",
        )


def _fit_request(
    request: StoreSearch, row: tables.StoreRow, moving: tables.ReindexingRow | None
) -> FitRequest:
    """Return how stored vectors become vectors of the target. Raises MissingField."""
    if request.anchor_set is None and moving is None:
        raise MissingField(
            "`anchor_set` is missing (`--anchors` in a terminal). Name a set that the store's "
            "encoder and `target` embedded.",
            field="anchor_set",
        )
    anchor_set = request.anchor_set or (moving.anchor_set.name if moving is not None else "")
    method, options = request.method, request.options
    if method is None:
        method = "auto"
        if moving is not None and moving.anchor_set.name == anchor_set and not options:
            method = moving.plan.get("method") or "auto"
            options = moving.plan.get("options") or {}
    return FitRequest(row.encoder.name, request.target, anchor_set, method, options)


def _candidates(request: StoreSearch) -> int:
    """Return the number of candidates of each query. Raises InvalidRequest."""
    if request.candidates is None:
        return max(USUAL_CANDIDATES, request.k)
    if request.candidates < request.k:
        raise InvalidRequest(
            f"`candidates` is {request.candidates}, and `k` is {request.k}. Send at least `k` "
            "candidates.",
            field="candidates",
        )
    return request.candidates


def _reserve(
    services: Services,
    context: RequestContext,
    count: int,
    row: tables.StoreRow,
    field: str = "candidates",
) -> None:
    """Reserve memory for the store's answer. Raises TooManyVectors and the limits of memory."""
    most = services.limits.vectors
    if count > most:
        raise TooManyVectors(
            f"The request needs {count} rows of the store for all queries together; at most "
            f"{most} are allowed. Send fewer queries, or lower `{field}`.",
            field=field,
            limit=most,
        )
    context.reserve_bytes(count * (4 * row.encoder.dim + HIT_BYTES))


def _encode(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
    field: str = "queries",
) -> tuple[Tensor, Sequence[int]]:
    if vectors is not None:
        checked = checked_vectors(vectors, field=field, limits=services.limits, dim=encoder.dim)
        return checked, ()
    assert inputs is not None
    made = encoding.encode(services, context, encoder, inputs.values, role=inputs.role)
    return made.vectors, made.truncated


def _old_queries(
    services: Services,
    context: RequestContext,
    request: StoreSearch,
    row: tables.StoreRow,
    count: int,
) -> Tensor:
    """Return the queries by the store's encoder. Raises MissingField and InvalidRequest."""
    if request.old_queries is None and (
        request.inputs is None or row.encoder.kind == EncoderKind.external
    ):
        raise MissingField(
            "`mode: fuse` needs `old_queries`, the queries' vectors by the store's encoder "
            f"{row.encoder.name!r}. Add them, or set `mode: cascade`.",
            field="old_queries",
        )
    old, _ = _encode(
        services, context, row.encoder, request.old_queries, request.inputs, "old_queries"
    )
    if len(old) != count:
        raise InvalidRequest(
            f"There are {len(old)} `old_queries` and {count} queries. Send one for each query.",
            field="old_queries",
        )
    return old


def _bridge(
    services: Services, context: RequestContext, fit: FitRequest, queries: Tensor
) -> MappedVectors:
    """Translate the queries into the store's space."""
    assert fit.source is not None
    back = FitRequest(fit.target, fit.source, fit.anchor_set, fit.method, fit.options)
    return apply.apply_map(services, context, Translation(back), vectors=queries)


def _numpy(vectors: Tensor) -> StoreVectors:
    return np.ascontiguousarray(vectors.float().numpy())
