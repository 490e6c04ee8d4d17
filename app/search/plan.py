"""Decides how a store is searched, and brings the queries into the space of its vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding, incoming
from app.encoders.models.base import Inputs
from app.errors import InvalidRequest, MissingField, TooManyVectors, WrongState, blaming
from app.maths.geometry.space import row_norms, unit_rows
from app.maths.relevance.options import DEFAULT_CANDIDATES
from app.moves.queries import STEP
from app.search.compare import compare_once
from app.search.schemas import StoreSearchMode, StoreSearchRequest
from app.search.scoring import (
    USUAL_NATIVE,
    encode_old_queries,
    has_old_queries,
    refuse_fields_of_fuse,
    require_texts_encoder,
    sent_old_queries,
)
from app.stores import queries
from app.stores.port import Side, StoreVectors
from app.stores.registry import has_cutover
from app.translate.maps import FitRequest, ServedMap
from app.translate.service import Translation, prepare_map
from app.types import EncoderKind, InputRole, MigrationState

#: bytes of memory for a candidate's id, score and place
HIT_BYTES = 256

#: states in which every row has a new vector, and an index
COMPLETE = (MigrationState.filled, MigrationState.cut_over, MigrationState.rolled_back)


@dataclass(frozen=True, eq=False)
class SearchPlan:
    """How a store is searched.

    mode        in `bridge` and `translate`, the store's own results are the answer
    queries     (q, d_target)
    compared    (m, d), which the store compares: in `fuse` the old queries, then the bridged ones
    candidates  rows for each of them
    old_queries  (q, d_source) in `fuse`
    served      the map of the stored vectors; None where none is translated
    bridging    the map of the queries; None where none is translated
    native      candidates of each query that the target encoder embeds
    has_new     whether rows may have a new vector already
    embedded    whether these are of the rows' texts
    cut_over    whether a migration of the store may finish, and delete its old vectors
    truncated   rows of the inputs that an encoder read only in part
    """

    row: tables.StoreRow
    target: tables.EncoderRow
    mode: StoreSearchMode
    side: Side
    queries: Tensor
    compared: StoreVectors
    candidates: int
    truncated: Sequence[int]
    cut_over: bool
    old_queries: Tensor | None = None
    served: ServedMap | None = None
    bridging: ServedMap | None = None
    native: int = 0
    has_new: bool = False
    embedded: bool = False

    @property
    def scores(self) -> bool:
        """Whether the candidates are scored by the new encoder."""
        return self.mode in ("cascade", "fuse")


def plan_search(
    services: Services, context: RequestContext, name: str, request: StoreSearchRequest
) -> SearchPlan:
    """Find what the request names, and bring its queries into the space of the store."""
    role = InputRole(request.input_type)
    inputs = None if request.inputs is None else Inputs(request.inputs, role)
    _, count = encoding.exactly_one(request.queries, inputs, field="queries")
    with services.db.transaction() as session:
        row, moving, target = queries.searched_store(session, context.project, name, request.target)
    cut_over = moving is not None and moving.state == MigrationState.cut_over
    if moving is not None and moving.target.id != target.id:
        refuse_unsettled(row, moving)
        moving = None
    pairs = None if moving is None else moving.anchor_set
    same = row.encoder.id == target.id
    native = _native_count(services, row, target, request.native, request.mode)
    usual: StoreSearchMode = "fuse" if has_old_queries(request, row.encoder) else "cascade"
    if same or (cut_over and moving is not None):
        usual = "translate"
    mode = request.mode or usual
    _check_mode(request, mode, same, moving if has_cutover(row.kind) else None)
    if moving is not None and mode != "translate":
        refuse_unsettled(row, moving)
    sent = None
    if mode == "fuse":
        sent = sent_old_queries(services, row.encoder, request.old_queries, inputs, count)
    read = encoding.vectors_or_encoded(
        services, context, target, request.queries, inputs, field="queries"
    )
    vectors = read.vectors
    side: Side = "old"
    candidates = _candidates(request) if mode in ("cascade", "fuse") else request.k
    old = served = bridging = None
    if mode == "translate":
        _reserve(services, context, len(vectors) * request.k, row, "k")
        side = "old" if same else "new"
        compared = vectors
    else:
        if mode == "fuse":
            optional = request.mode is None and not (request.anchor_set is None and pairs is None)
            sent = sent or encode_old_queries(
                services, context, row.encoder, inputs, optional=optional
            )
            old = None if sent is None else sent.vectors
            mode = "cascade" if old is None else mode
            if old is not None and native and request.weight is None:
                compare_once(services, context, row.encoder, target, row)
        if request.anchor_set is None and pairs is None and old is not None and native:
            if request.method is not None:
                raise InvalidRequest(
                    "`method` only applies with `anchor_set`. Name a set, or remove `method`.",
                    field="method",
                )
            _reserve(services, context, len(old) * candidates, row)
            compared = old
        else:
            fit = _fit_request(request, row, moving)
            _reserve(services, context, len(vectors) * (1 if old is None else 2) * candidates, row)
            bridging, bridged = _bridge(services, context, row, fit, vectors)
            compared = bridged if old is None else torch.cat([old, bridged])
            served = None if mode == "bridge" else prepare_map(services, context, Translation(fit))
            items = served.pair[0].anchor_set if served is not None and served.pair else None
            if mode == "fuse" and not native and request.weight is None and items and items.inputs:
                compare_once(services, context, row.encoder, target, items)
    return SearchPlan(
        row,
        target,
        mode,
        side,
        vectors,
        np.ascontiguousarray(compared.float().numpy()),
        candidates,
        read.truncated,
        cut_over,
        old_queries=old,
        served=served,
        bridging=bridging,
        native=native,
        has_new=mode in ("cascade", "fuse")
        and has_cutover(row.kind)
        and moving is not None
        and moving.state != MigrationState.planned,
        embedded=moving is not None and moving.plan.get("fill") == "embed",
    )


def _native_count(
    services: Services,
    row: tables.StoreRow,
    target: tables.EncoderRow,
    requested: int | None,
    mode: str | None,
) -> int:
    """Return how many candidates of each query of a store the target embeds.

    requested  None: USUAL_NATIVE where the store has texts and they stay in this process, or the
               operator lets them leave it; else 0

    Raises InvalidRequest where a requested number is not possible.
    """
    has_texts = row.options.get("text_field") is not None
    may_leave = row.address in services.limits.native_remote
    if requested is None:
        is_remote = target.kind == EncoderKind.openai
        embeds = target.kind == EncoderKind.sentence_transformers or (is_remote and may_leave)
        scores = mode in (None, "cascade", "fuse")
        return USUAL_NATIVE[is_remote] if has_texts and embeds and scores else 0
    if not requested:
        return 0
    if mode in ("bridge", "translate"):
        raise InvalidRequest(
            f"`native` does not apply with `mode: {mode}`. Remove it, or remove `mode`.",
            field="native",
        )
    if not has_texts:
        raise InvalidRequest(
            "`native` embeds texts of the store, which was connected without `text_field`. "
            "Disconnect it, and connect it again with `text_field`, or remove `native`.",
            field="native",
        )
    require_texts_encoder(target)
    if target.kind == EncoderKind.openai and not may_leave:
        raise InvalidRequest(
            f"`native` would send texts of the store to the endpoint of {target.name!r}. The "
            "operator allows that by `remote_texts` of the store's address in "
            "ANCHORAGE_STORES. Until then, remove `native`.",
            field="native",
        )
    return requested


def refuse_unsettled(row: tables.StoreRow, moving: tables.MigrationRow) -> None:
    """Raises WrongState while `finish` deletes the old vectors, or was interrupted there.

    The store may then hold vectors of the target where the old ones were.
    """
    if has_cutover(row.kind) and moving.position.get(STEP) == "finish":
        raise WrongState(
            f"`finish` of the store's migration {moving.id} deletes the old vectors, or was "
            f"interrupted. Call `finish` of it again, or search with `target: {moving.target.name}`"
            " and `mode: translate`.",
            field="mode",
        )


def _check_mode(
    request: StoreSearchRequest,
    mode: StoreSearchMode,
    same: bool,
    moving: tables.MigrationRow | None,
) -> None:
    """Raises InvalidRequest for fields of other modes, and WrongState."""
    if mode != "fuse":
        refuse_fields_of_fuse(request)
    if mode in ("bridge", "translate") and request.candidates is not None:
        raise InvalidRequest(
            f"`candidates` does not apply with `mode: {mode}`. Remove it, or set `mode: cascade`.",
            field="candidates",
        )
    if mode == "translate":
        if not same and (moving is None or moving.state not in COMPLETE):
            raise WrongState(
                f"The store has no complete vectors of {request.target!r}. Set `mode: cascade`, or "
                "run a migration first.",
                field="mode",
            )
    elif same:
        raise InvalidRequest(
            f"The store holds vectors of {request.target!r}, so there is nothing to translate. "
            "Remove `mode`, or name another `target`.",
            field="mode",
        )


def _fit_request(
    request: StoreSearchRequest, row: tables.StoreRow, moving: tables.MigrationRow | None
) -> FitRequest:
    """Return how stored vectors become vectors of the target."""
    pairs = None if moving is None else moving.anchor_set
    if request.anchor_set is None and pairs is None:
        if moving is not None and moving.state == MigrationState.running:
            raise WrongState(
                f"The migration {moving.id} embeds the first rows, by which the old vectors are "
                "searched. Search again when it has, usually within a minute."
            )
        has_texts = row.options.get("text_field") is not None
        raise MissingField(
            "`anchor_set` is missing. Name a set that the store's encoder and `target` embedded"
            + ("; a migration makes one of its first 1,000 rows." if has_texts else "."),
            field="anchor_set",
        )
    anchor_set = request.anchor_set or (pairs.name if pairs is not None else "")
    method: str | None = request.method
    options = request.options.as_dict()
    if method is None:
        method = "auto"
        if moving is not None and pairs is not None and pairs.name == anchor_set and not options:
            method = moving.plan.get("method") or "auto"
            options = moving.plan.get("options") or {}
    options = row.map_options(options)
    return FitRequest(row.encoder.name, request.target, anchor_set, method, options)


def _candidates(request: StoreSearchRequest) -> int:
    """Return the number of candidates of each query."""
    if request.candidates is None:
        return max(DEFAULT_CANDIDATES, request.k)
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
    """Reserve memory for the store's answer."""
    most = services.limits.vectors
    if count > most:
        raise TooManyVectors(
            f"The request needs {count} rows of the store for all queries together; at most "
            f"{most} are allowed. Send fewer queries, or lower `{field}`.",
            field=field,
            limit=most,
        )
    context.reserve_bytes(count * (4 * row.encoder.dim + HIT_BYTES))


def _bridge(
    services: Services,
    context: RequestContext,
    row: tables.StoreRow,
    fit: FitRequest,
    vectors: Tensor,
) -> tuple[ServedMap, Tensor]:
    """Return the map into the store's space, and the queries there.

    A query's length changes no order by products, but where it is unlike that of the anchors, it
    changes the direction of the translation: it is translated at their usual length.
    """
    assert fit.source is not None
    back = Translation(replace(fit, source=fit.target, target=fit.source))
    incoming.reserve_answer(services, context, "queries", len(vectors), dim=row.encoder.dim)
    served = prepare_map(services, context, back)
    kept, shares = served.translator.kept_scale, None
    if row.by_product and kept is not None:
        shares = row_norms(vectors) / math.hypot(float(served.translator.source_mean.norm()), kept)
        vectors = unit_rows(vectors, shares)
    with blaming("queries"):
        bridged = served.start(services, context.project, vectors).result().vectors
    return served, bridged if shares is None else bridged * shares[:, None].float()
