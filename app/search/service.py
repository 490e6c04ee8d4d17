"""Searches a store with queries of a new encoder, before, during and after a migration.

Nothing is written. Vectors of two encoders are never compared: a bridge compares old vectors with
queries translated into the old space, and every other mode compares vectors of the new space.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from anyio import to_thread
from torch import Tensor

from app.context import Services
from app.db import tables
from app.encoders import encoding, incoming
from app.encoders.encoding import Inputs
from app.errors import (
    EncoderChanged,
    EncoderUnavailable,
    Invalid,
    InvalidRequest,
    MissingField,
    StoreChanged,
    TooManyVectors,
    Unavailable,
    WrongState,
    blaming,
)
from app.maths.translators import methods
from app.moves.queries import STEP
from app.request_context import RequestContext
from app.search import rescoring
from app.search.hits import hit_vectors, known_vectors, union
from app.search.native import USUAL_DEADLINE_S, NativeCounts
from app.search.native_texts import native_count, native_scoring
from app.search.rescoring import (
    EncoderNames,
    Rescored,
    RescoredQuery,
    Rescoring,
    WeightSource,
)
from app.stores import queries as queries
from app.stores.port import Hits, Page, Search, Side, Store, StoreId, StoreVectors
from app.stores.registry import has_cutover
from app.translate import service as apply
from app.translate.fit import FitRequest
from app.translate.service import ServedMap, Translation
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import EncoderKind, MigrationState

StoreSearchMode = Literal["bridge", "cascade", "fuse", "translate"]

#: candidates of each query, unless the request says otherwise
USUAL_CANDIDATES = 100

#: bytes of memory for a candidate's id, score and place
HIT_BYTES = 256

#: of an answer by the vectors that the store has of the target
NO_CANDIDATES = AnswerWarning(
    "native-unavailable",
    "`native` was left out: the store is searched by its vectors of the target, and none of its "
    "texts are embedded for a query.",
)

#: states in which every row has a new vector, and an index
COMPLETE = (MigrationState.filled, MigrationState.cut_over, MigrationState.rolled_back)


@dataclass(frozen=True, eq=False)
class StoreSearch:
    """Queries of the encoder `target` for a store.

    queries, inputs  (q, d_target), or what the target encoder encodes
    anchor_set       None: the set of the store's migration to the target
    mode             None: `translate` where the store shows vectors of the target; `fuse` with
                     native scores and old queries; else `cascade`
    k, candidates    results of each query, and rows that are scored; None: USUAL_CANDIDATES
    filter           in the store's language
    old_queries      (q, d_source) for `fuse`; None: the store's encoder encodes the inputs
    weight           of the new scores in `fuse`; None: chosen by the service
    payload          whether results have payloads
    native           candidates of each query that the target encoder embeds; None: USUAL_NATIVE
                     where the store has texts and the encoder runs in the process, else 0
    native_deadline_s  how long native vectors are waited for
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
    native: int | None = None
    native_deadline_s: float = USUAL_DEADLINE_S


@dataclass(frozen=True, eq=False)
class _Ready:
    """A search that is ready for the store.

    compared    the vectors that the store compares, (m, d), and `candidates` rows for each
    request     how stored vectors become vectors of the target; None in `translate`, and where
                native and old scores alone order the candidates
    native      candidates of each query that the target encoder embeds
    has_new     whether rows may have a new vector already
    cut_over    whether a migration of the store may finish, and delete its old vectors
    notices     further warnings
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
    request: FitRequest | None = None
    old_queries: Tensor | None = None
    bridging: ServedMap | None = None
    has_new: bool = False
    native: int = 0
    notices: Sequence[AnswerWarning] = ()


@dataclass(frozen=True)
class StoreResults:
    """The results of one query, best first.

    native  ids that a native vector was scored for
    """

    ids: Sequence[StoreId]
    scores: Sequence[float]
    payloads: Sequence[Mapping[str, Any]] | None = None
    native: Sequence[StoreId] = ()


@dataclass(frozen=True, eq=False)
class StoreAnswer:
    """The results of each query, and how they were found.

    row, target  the store, and the encoder of the queries
    side       the vectors of the store that were searched
    scoring    the translator of stored vectors; None where none was translated
    bridging   the translator of the queries; None where none was translated
    new_vectors  candidates that were scored by a new vector of the store
    native     how many texts were embedded; None without native scores
    truncated  rows of the inputs that an encoder read only in part
    seconds    time of each step
    notices    further warnings
    """

    row: tables.StoreRow
    target: tables.EncoderRow
    results: Sequence[StoreResults]
    mode: StoreSearchMode
    side: Side
    candidates: int | None
    scoring: ServedMap | None
    bridging: ServedMap | None
    weight: float | None
    weight_chosen_by: WeightSource | None
    new_vectors: int
    native: NativeCounts | None
    truncated: Sequence[int]
    seconds: Mapping[str, float]
    notices: Sequence[AnswerWarning] = ()

    @property
    def warnings(self) -> list[AnswerWarning]:
        """The warnings about encoders and translators, each code once."""
        maps = [each for each in (self.scoring, self.bridging) if each is not None]
        every = warnings_about_change(self.row.encoder, self.target)
        every += [each for served in maps for each in served.warnings]
        if self.native is not None and self.native.shortfall is not None:
            every.append(AnswerWarning(*self.native.shortfall))
        every += self.notices
        return list({each.code: each for each in every}.values())


async def search_store(
    services: Services, context: RequestContext, request: StoreSearch
) -> StoreAnswer:
    """Search a store. Its answer is waited for on the event loop, and holds no thread.

    Raises StoreNotFound, the not-found, option and vector errors, NotExactlyOne, MissingField,
    InvalidRequest, WrongState, TooManyVectors, StoreChanged, and the errors of `encode` and
    `StoreHandles.ask`.
    """
    began = time.perf_counter()
    ready = await to_thread.run_sync(_prepare, services, context, request)
    bridged = time.perf_counter()
    hits, new = await services.stores.ask(ready.row, lambda store: _ask(store, request, ready))
    if ready.cut_over and ready.side == "old":
        await to_thread.run_sync(_refuse_if_finished, services, context, request, ready)
    stored = time.perf_counter()
    seconds = {"bridge": bridged - began, "store": stored - bridged}
    answer = StoreAnswer(
        row=ready.row,
        target=ready.target,
        results=[],
        mode=ready.mode,
        side=ready.side,
        candidates=None,
        scoring=None,
        bridging=ready.bridging,
        weight=None,
        weight_chosen_by=None,
        new_vectors=0 if new is None else len(new.ids),
        native=None,
        truncated=ready.truncated,
        seconds=seconds,
        notices=ready.notices,
    )
    if ready.mode in ("bridge", "translate"):
        return replace(answer, results=[_results(each, request.k) for each in hits])
    rescored = await _rescore(services, context, request, ready, hits, new)
    seconds["rescore"] = time.perf_counter() - stored
    return replace(
        answer,
        results=_results_of(hits, rescored.results),
        candidates=ready.candidates,
        scoring=rescored.served,
        weight=rescored.weight,
        weight_chosen_by=rescored.weight_chosen_by,
        native=rescored.native,
    )


def _ask(store: Store, request: StoreSearch, ready: _Ready) -> tuple[Sequence[Hits], Page | None]:
    """Search the store, and fetch the new vectors that its candidates have already."""
    scores = ready.mode in ("cascade", "fuse")
    hits = store.search(
        Search(
            ready.compared,
            ready.candidates,
            filter=request.filter,
            side=ready.side,
            exact=request.exact,
            vectors=scores,
            payload=request.payload,
        )
    )
    if ready.mode == "fuse" and ready.bridging is not None:
        half = len(ready.queries)
        hits = [union(*pair) for pair in zip(hits[:half], hits[half:], strict=True)]
    if not (scores and ready.has_new):
        return hits, None
    ids = list(dict.fromkeys(each for one in hits for each in one.ids))
    try:
        return hits, store.fetch(ids, "new")
    except StoreChanged:  # the migration has not begun to write, or was just abandoned
        return hits, None


def _prepare(services: Services, context: RequestContext, request: StoreSearch) -> _Ready:
    """Find what the request names, and bring its queries into the space of the store."""
    encoding.exactly_one(request.queries, request.inputs, field="queries")
    with services.db.transaction() as session:
        row, moving, target = queries.searched_store(
            session, context.project, request.store, request.target
        )
    cut_over = moving is not None and moving.state == MigrationState.cut_over
    if moving is not None and moving.target.id != target.id:
        _refuse_unsettled(row, moving)
        moving = None
    same = row.encoder.id == target.id
    native = native_count(services, row, target, request.native, request.mode)
    mode = request.mode or _usual_mode(same, moving)
    if request.mode is None and mode == "cascade" and native and _runs_old(request, row):
        mode = "fuse"
    _check_mode(request, mode, same, moving if has_cutover(row.kind) else None)
    if moving is not None and mode != "translate":
        _refuse_unsettled(row, moving)
    vectors, truncated = _encode(services, context, target, request.queries, request.inputs)
    if mode == "translate":
        _reserve(services, context, len(vectors) * request.k, row, "k")
        side: Side = "old" if same else "new"
        compared = _numpy(vectors)
        ready = _Ready(row, target, mode, side, vectors, compared, request.k, truncated, cut_over)
        return replace(ready, notices=[NO_CANDIDATES] if request.native else ())
    native = 0 if mode == "bridge" else native
    old = None
    if mode == "fuse":
        try:
            old = _old_queries(services, context, request, row, len(vectors))
        except (Unavailable, EncoderUnavailable, EncoderChanged):
            if request.mode is not None or (request.anchor_set is None and moving is None):
                raise
            mode = "cascade"  # the store's encoder does not run now
    alone = request.anchor_set is None and moving is None and mode == "fuse" and native > 0
    if alone and request.method is not None:
        raise InvalidRequest(
            "`method` only applies with `anchor_set`. Name a set, or remove `method`.",
            field="method",
        )
    fit = None if alone else _fit_request(request, row, moving)
    candidates = request.k if mode == "bridge" else _candidates(request)
    both = old is not None and fit is not None
    _reserve(services, context, len(vectors) * (2 if both else 1) * candidates, row)
    bridging, bridged = (
        (None, None) if fit is None else _bridge(services, context, row, fit, vectors)
    )
    every = [_numpy(each) for each in (old, bridged) if each is not None]
    return _Ready(
        row,
        target,
        mode,
        "old",
        vectors,
        every[0] if len(every) == 1 else np.concatenate(every),
        candidates,
        truncated,
        cut_over,
        request=fit,
        old_queries=old,
        bridging=bridging,
        has_new=has_cutover(row.kind)
        and moving is not None
        and moving.state != MigrationState.planned,
        native=native,
    )


def _runs_old(request: StoreSearch, row: tables.StoreRow) -> bool:
    """Return whether there are queries of the store's encoder, or it can make them."""
    return request.old_queries is not None or (
        request.inputs is not None and row.encoder.kind == EncoderKind.sentence_transformers
    )


def _refuse_if_finished(
    services: Services, context: RequestContext, request: StoreSearch, ready: _Ready
) -> None:
    """Raises WrongState if the old vectors may have been deleted while the store was searched."""
    with services.db.transaction() as session:
        row, moving = queries.moving_store(session, context.project, request.store)
    if moving is not None:
        _refuse_unsettled(row, moving)
    if row.encoder.id != ready.row.encoder.id:
        raise WrongState(
            f"The store now belongs to the encoder {row.encoder.name!r}: its migration ended "
            "during the search. Repeat the call."
        )


def _refuse_unsettled(row: tables.StoreRow, moving: tables.MigrationRow) -> None:
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


def _usual_mode(same: bool, moving: tables.MigrationRow | None) -> StoreSearchMode:
    cut_over = moving is not None and moving.state == MigrationState.cut_over
    return "translate" if same or cut_over else "cascade"


def _check_mode(
    request: StoreSearch,
    mode: StoreSearchMode,
    same: bool,
    moving: tables.MigrationRow | None,
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
    request: StoreSearch, row: tables.StoreRow, moving: tables.MigrationRow | None
) -> FitRequest:
    """Return how stored vectors become vectors of the target."""
    if request.anchor_set is None and moving is None:
        has_texts = row.options.get("text_field") is not None
        raise MissingField(
            "`anchor_set` is missing (`--anchor-set` in a terminal). Name a set that the store's "
            "encoder and `target` embedded"
            + ("; POST /anchor-sets with `store` makes one." if has_texts else "."),
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
    """Return the number of candidates of each query."""
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


def _encode(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
    field: str = "queries",
) -> tuple[Tensor, Sequence[int]]:
    if vectors is not None:
        checked = incoming.checked_vectors(
            vectors, field=field, limits=services.limits, dim=encoder.dim
        )
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
    """Return the queries by the store's encoder."""
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
    services: Services,
    context: RequestContext,
    row: tables.StoreRow,
    fit: FitRequest,
    vectors: Tensor,
) -> tuple[ServedMap, Tensor]:
    """Return the map into the store's space, and the queries there."""
    assert fit.source is not None
    back = Translation(FitRequest(fit.target, fit.source, fit.anchor_set, fit.method, fit.options))
    incoming.reserve_answer(services, context, "queries", len(vectors), dim=row.encoder.dim)
    served = apply.find_map(services, context.project, back)
    if served is None:
        served = apply.prepare_map(services, context, back)
    with blaming("queries"):
        return served, served.start(services, vectors).result().vectors


def _numpy(vectors: Tensor) -> StoreVectors:
    return np.ascontiguousarray(vectors.float().numpy())


async def _rescore(
    services: Services,
    context: RequestContext,
    request: StoreSearch,
    ready: _Ready,
    hits: Sequence[Hits],
    new: Page | None,
) -> Rescored:
    """Order the candidates by the new encoder. Raises StoreChanged for vectors of another form."""
    encoder = ready.row.encoder
    rescoring_request = Rescoring(
        EncoderNames(encoder.name, request.target)
        if ready.request is None
        else Translation(ready.request),
        ready.queries,
        None,
        [hit_vectors(each, encoder.dim) for each in hits],
        "fuse" if ready.mode == "fuse" else "cascade",
        ready.old_queries,
        request.weight,
        request.k,
        known=known_vectors(hits, new, ready.queries.shape[1]),
        native=native_scoring(services, ready.row, ready.native, request.native_deadline_s, hits)
        if ready.native
        else None,
    )
    try:
        return await rescoring.rescore(services, context, rescoring_request)
    except Invalid as error:
        if (error.field or "").startswith("candidates"):
            raise StoreChanged(f"The store returned wrong vectors. {error.detail}") from None
        raise


def _results_of(hits: Sequence[Hits], found: Sequence[RescoredQuery]) -> list[StoreResults]:
    results = []
    for query, each in zip(found, hits, strict=True):
        places = query.places.tolist()
        payloads = None if each.payloads is None else [each.payloads[place] for place in places]
        ids = [each.ids[place] for place in places]
        is_native = [] if query.is_native is None else query.is_native.tolist()
        native_ids = [id for id, native in zip(ids, is_native, strict=False) if native]
        results.append(StoreResults(ids, query.scores.tolist(), payloads, native_ids))
    return results


def _results(hits: Hits, k: int) -> StoreResults:
    payloads = None if hits.payloads is None else list(hits.payloads[:k])
    return StoreResults(list(hits.ids[:k]), [float(each) for each in hits.scores[:k]], payloads)
