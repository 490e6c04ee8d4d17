"""Searches a store with queries of a new encoder, before, during and after a reindexing.

Nothing is written. Vectors of two encoders are never compared: a bridge compares old vectors with
queries translated into the old space, and every other mode compares vectors of the new space.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from anyio import to_thread
from torch import Tensor

from app.errors import (
    Invalid,
    InvalidRequest,
    MissingField,
    NotExactlyOne,
    StoreChanged,
    TooManyVectors,
    WrongState,
    blaming,
)
from app.maths.translators import methods
from app.services import incoming
from app.services.context import Services
from app.services.encoders import encoding
from app.services.encoders.encoding import Inputs
from app.services.relevance import rescoring
from app.services.relevance.rescoring import Rescored, Rescoring, WeightSource
from app.services.request_context import RequestContext
from app.services.serving import apply
from app.services.serving.apply import ServedMap, Translation
from app.services.translators.translators import FitRequest
from app.services.translators.warnings import AnswerWarning
from app.storage import tables
from app.storage.queries import stores as queries
from app.storage.queries.reindexings import STEP
from app.stores.base import Hits, Page, Side, Store, StoreId, StoreVectors
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
class _Ready:
    """A search that is ready for the store.

    compared    the vectors that the store compares, (m, d), and `candidates` rows for each
    request     how stored vectors become vectors of the target; None in `translate`
    has_new     whether rows may have a new vector already
    cut_over    whether a reindexing of the store may finish, and delete its old vectors
    """

    row: tables.StoreRow
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


@dataclass(frozen=True)
class StoreResults:
    """The results of one query, best first."""

    ids: Sequence[StoreId]
    scores: Sequence[float]
    payloads: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, eq=False)
class StoreAnswer:
    """The results of each query, and how they were found.

    side       the vectors of the store that were searched
    scoring    the translator of stored vectors; None in `bridge` and `translate`
    bridging   the translator of the queries; None where none was translated
    native     candidates that were scored by a new vector of the store
    truncated  rows of the inputs that an encoder read only in part
    seconds    time of each step
    """

    results: Sequence[StoreResults]
    mode: StoreSearchMode
    side: Side
    candidates: int | None
    scoring: ServedMap | None
    bridging: ServedMap | None
    weight: float | None
    weight_chosen_by: WeightSource | None
    native: int
    truncated: Sequence[int]
    seconds: Mapping[str, float]

    @property
    def warnings(self) -> list[AnswerWarning]:
        """The warnings about the translators, each code once."""
        maps = [each for each in (self.scoring, self.bridging) if each is not None]
        every = [each for served in maps for each in served.warnings]
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
    if ready.request is None or ready.mode == "bridge":
        results = [_results(each, request.k) for each in hits]
        rescored = None
    else:
        rescored, results = await _rescore(services, context, request, ready, hits, new)
    seconds = {"bridge": bridged - began, "store": stored - bridged}
    if rescored is not None:
        seconds["rescore"] = time.perf_counter() - stored
    return StoreAnswer(
        results=results,
        mode=ready.mode,
        side=ready.side,
        candidates=None if rescored is None else ready.candidates,
        scoring=None if rescored is None else rescored.served,
        bridging=ready.bridging,
        weight=None if rescored is None else rescored.weight,
        weight_chosen_by=None if rescored is None else rescored.weight_chosen_by,
        native=0 if new is None else len(new.ids),
        truncated=ready.truncated,
        seconds=seconds,
    )


def _ask(store: Store, request: StoreSearch, ready: _Ready) -> tuple[Sequence[Hits], Page | None]:
    """Search the store, and fetch the new vectors that its candidates have already."""
    scores = ready.mode in ("cascade", "fuse")
    hits = store.search(
        ready.compared,
        ready.candidates,
        filter=request.filter,
        side=ready.side,
        exact=request.exact,
        vectors=scores,
        payload=request.payload,
    )
    if ready.mode == "fuse":
        half = len(ready.queries)
        hits = [_union(*pair) for pair in zip(hits[:half], hits[half:], strict=True)]
    if not (scores and ready.has_new):
        return hits, None
    ids = list(dict.fromkeys(each for one in hits for each in one.ids))
    try:
        return hits, store.fetch(ids, "new")
    except StoreChanged:  # the reindexing has not begun to write, or was just abandoned
        return hits, None


def _prepare(services: Services, context: RequestContext, request: StoreSearch) -> _Ready:
    """Find what the request names, and bring its queries into the space of the store."""
    if (request.queries is None) == (request.inputs is None):
        raise NotExactlyOne("Send exactly one of `queries` and `inputs`.", field="queries")
    with services.db.transaction() as session:
        row, moving, target = queries.searched_store(
            session, context.project, request.store, request.target
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
    vectors, truncated = _encode(services, context, target, request.queries, request.inputs)
    if mode == "translate":
        _reserve(services, context, len(vectors) * request.k, row, "k")
        side: Side = "old" if same else "new"
        return _Ready(row, mode, side, vectors, _numpy(vectors), request.k, truncated, cut_over)
    fit = _fit_request(request, row, moving)
    old = _old_queries(services, context, request, row, len(vectors)) if mode == "fuse" else None
    candidates = request.k if mode == "bridge" else _candidates(request)
    _reserve(services, context, len(vectors) * (1 if old is None else 2) * candidates, row)
    bridging, bridged = _bridge(services, context, row, fit, vectors)
    compared = [_numpy(each) for each in (old, bridged) if each is not None]
    return _Ready(
        row,
        mode,
        "old",
        vectors,
        compared[0] if len(compared) == 1 else np.concatenate(compared),
        candidates,
        truncated,
        cut_over,
        request=fit,
        old_queries=old,
        bridging=bridging,
        has_new=moving is not None and moving.state != ReindexingState.planned,
    )


def _refuse_if_finished(
    services: Services, context: RequestContext, request: StoreSearch, ready: _Ready
) -> None:
    """Raises WrongState if the old vectors may have been deleted while the store was searched."""
    with services.db.transaction() as session:
        row, moving = queries.moving_store(session, context.project, request.store)
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


def _union(first: Hits, second: Hits) -> Hits:
    """Return the rows of both, those of the first before those that only the second has."""
    seen = set(first.ids)
    places = [place for place, each in enumerate(second.ids) if each not in seen]
    vectors = [each.vectors for each in (first, second)]
    if vectors[0] is None or vectors[1] is None:
        joined = None
    elif not first.ids:
        joined = vectors[1]
    else:
        joined = np.concatenate([vectors[0], vectors[1][places]]) if places else vectors[0]
    payloads = (
        None
        if first.payloads is None or second.payloads is None
        else [*first.payloads, *(second.payloads[place] for place in places)]
    )
    return Hits(
        ids=[*first.ids, *(second.ids[place] for place in places)],
        scores=[*first.scores, *(second.scores[place] for place in places)],
        vectors=joined,
        payloads=payloads,
    )


async def _rescore(
    services: Services,
    context: RequestContext,
    request: StoreSearch,
    ready: _Ready,
    hits: Sequence[Hits],
    new: Page | None,
) -> tuple[Rescored, list[StoreResults]]:
    """Order the candidates by the new encoder. Raises StoreChanged for vectors of another form."""
    assert ready.request is not None
    dim = ready.row.encoder.dim
    rescoring_request = Rescoring(
        Translation(ready.request),
        ready.queries,
        None,
        [_vectors(each, dim) for each in hits],
        "fuse" if ready.mode == "fuse" else "cascade",
        ready.old_queries,
        request.weight,
        request.k,
        known=_known(hits, new, ready.queries.shape[1]),
    )
    try:
        rescored = await rescoring.rescore(services, context, rescoring_request)
    except Invalid as error:
        if (error.field or "").startswith("candidates"):
            raise StoreChanged(f"The store returned wrong vectors. {error.detail}") from None
        raise
    results = []
    for found, each in zip(rescored.results, hits, strict=True):
        places = found.places.tolist()
        payloads = None if each.payloads is None else [each.payloads[place] for place in places]
        ids = [each.ids[place] for place in places]
        results.append(StoreResults(ids, found.scores.tolist(), payloads))
    return rescored, results


def _vectors(hits: Hits, dim: int) -> Tensor:
    """Return the vectors of candidates (m, d). Raises StoreChanged for another dimension."""
    if not len(hits.ids) or hits.vectors is None:
        return torch.empty(0, 0)
    if hits.vectors.shape != (len(hits.ids), dim):
        raise StoreChanged(
            f"The store returned vectors of shape {hits.vectors.shape}, and its encoder has {dim} "
            "dimensions. Delete the store here, and connect it again."
        )
    return torch.from_numpy(np.ascontiguousarray(hits.vectors))


def _known(hits: Sequence[Hits], new: Page | None, dim: int) -> tuple[Tensor, Tensor] | None:
    """Return the candidates of all queries that have a new vector, and these vectors."""
    if new is None or not len(new.ids) or new.vectors.shape[1] != dim:
        return None
    rows = {each: row for row, each in enumerate(new.ids) if np.isfinite(new.vectors[row]).all()}
    every = [each for one in hits for each in one.ids]
    places = [place for place, each in enumerate(every) if each in rows]
    chosen = new.vectors[[rows[every[place]] for place in places]]
    return torch.tensor(places, dtype=torch.int64), torch.from_numpy(chosen)


def _results(hits: Hits, k: int) -> StoreResults:
    payloads = None if hits.payloads is None else list(hits.payloads[:k])
    return StoreResults(list(hits.ids[:k]), [float(each) for each in hits.scores[:k]], payloads)
