"""Searches a store with queries of a new encoder, before, during and after a migration.

Nothing is written. Vectors of two encoders are never compared: a bridge compares old vectors with
queries translated into the old space, and every other mode compares vectors of the new space.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from anyio import to_thread
from torch import Tensor

from app.context import RequestContext, Services
from app.errors import Invalid, StoreChanged, WrongState
from app.search.plan import SearchPlan, plan_search, refuse_unsettled
from app.search.schemas import StoreSearchRequest
from app.search.scoring import (
    NativeScoring,
    Scored,
    Scoring,
    join_candidates,
    score_candidates,
    texts_of_store,
)
from app.stores import queries
from app.stores.port import Hits, Page, Search, Store
from app.translate.warnings import AnswerWarning, warnings_about_change

#: of an answer by the vectors that the store has of the target
NO_CANDIDATES = AnswerWarning(
    "native-unavailable",
    "`native` was left out: the store is searched by its vectors of the target, and none of its "
    "texts are embedded for a query.",
)


async def search_store(
    services: Services, context: RequestContext, name: str, request: StoreSearchRequest
) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Search a store; return the members of a StoreSearchAnswer, and the seconds of each step.

    The store's answer is waited for on the event loop, and holds no thread.

    Raises the not-found, option and vector errors, NotExactlyOne, MissingField,
    InvalidRequest, WrongState, TooManyVectors, StoreChanged, and the errors of `encode` and
    `StoreHandles.ask`.
    """
    began = time.perf_counter()
    plan = await to_thread.run_sync(plan_search, services, context, name, request)
    bridged = time.perf_counter()
    hits, new = await services.stores.ask(plan.row, lambda store: _ask(store, request, plan))
    if plan.cut_over and plan.side == "old":
        await to_thread.run_sync(_refuse_if_finished, services, context, plan)
    stored = time.perf_counter()
    seconds = {"bridge": bridged - began, "store": stored - bridged}
    scored = None
    if plan.scores:
        scored = await _score(services, context, request, plan, hits, new)
        seconds["rescore"] = time.perf_counter() - stored
    return _describe(request, plan, hits, new, scored), seconds


def _ask(
    store: Store, request: StoreSearchRequest, plan: SearchPlan
) -> tuple[Sequence[Hits], Page | None]:
    """Search the store, and fetch the new vectors that its candidates have already."""
    hits = store.search(
        Search(
            plan.compared,
            plan.candidates,
            filter=request.filter,
            side=plan.side,
            exact=request.exact,
            vectors=plan.scores,
            payload=request.payload,
        )
    )
    if plan.mode == "fuse" and plan.bridging is not None:
        half = len(plan.queries)
        hits = [_union(*pair) for pair in zip(hits[:half], hits[half:], strict=True)]
    if not plan.has_new:
        return hits, None
    ids = list(dict.fromkeys(each for one in hits for each in one.ids))
    try:
        return hits, store.fetch(ids, "new")
    except StoreChanged:  # the migration has not begun to write, or was just abandoned
        return hits, None


def _union(first: Hits, second: Hits) -> Hits:
    """Return the rows of both, those of the first before those that only the second has."""
    seen = set(first.ids)
    places = [place for place, each in enumerate(second.ids) if each not in seen]
    vectors = payloads = None
    if first.vectors is not None and second.vectors is not None:
        vectors = (
            np.concatenate([first.vectors, second.vectors[places]]) if first.ids else second.vectors
        )
    if first.payloads is not None and second.payloads is not None:
        payloads = [*first.payloads, *(second.payloads[place] for place in places)]
    return Hits(
        [*first.ids, *(second.ids[place] for place in places)],
        [*first.scores, *(second.scores[place] for place in places)],
        vectors=vectors,
        payloads=payloads,
    )


def _refuse_if_finished(services: Services, context: RequestContext, plan: SearchPlan) -> None:
    """Raises WrongState if the old vectors may have been deleted while the store was searched."""
    with services.db.transaction() as session:
        row, moving = queries.moving_store(session, context.project, plan.row.name)
    if moving is not None:
        refuse_unsettled(row, moving)
    if row.encoder.id != plan.row.encoder.id:
        raise WrongState(
            f"The store now belongs to the encoder {row.encoder.name!r}: its migration ended "
            "during the search. Repeat the call."
        )


async def _score(
    services: Services,
    context: RequestContext,
    request: StoreSearchRequest,
    plan: SearchPlan,
    hits: Sequence[Hits],
    new: Page | None,
) -> Scored:
    """Order the candidates by the new encoder. Raises StoreChanged for vectors of another form."""
    encoders = plan.row.encoder, plan.target
    native = None
    if plan.native:
        read_texts = texts_of_store(services, plan.row, hits)
        is_asked = request.native is not None
        native = NativeScoring(plan.native, read_texts, request.deadline_ms, is_asked)
    scoring = Scoring(
        encoders,
        plan.served,
        plan.queries,
        plan.old_queries,
        request.weight,
        request.k,
        native,
        plan.embedded,
        plan.row.by_product,
    )
    blocks = [
        torch.empty(0, 0)
        if each.vectors is None
        else torch.from_numpy(np.require(each.vectors, requirements=["C", "W"]))
        for each in hits
    ]
    counts = [len(each.ids) for each in hits]
    try:
        stored = join_candidates(services, context, blocks, encoders)
    except Invalid as error:
        if (error.field or "").startswith("candidates"):
            raise StoreChanged(f"The store returned wrong vectors. {error.detail}") from None
        raise
    if len(stored) != sum(counts):
        raise StoreChanged("The store returned other numbers of ids and vectors. Repeat the call.")
    known = _known_vectors(hits, new, plan.target.dim)
    return await score_candidates(services, context, scoring, stored, counts, known)


def _known_vectors(
    hits: Sequence[Hits], new: Page | None, dim: int
) -> tuple[Tensor, Tensor] | None:
    """Return the candidates of all queries that have a new vector, and these vectors."""
    if new is None or not len(new.ids) or new.vectors.shape[1] != dim:
        return None
    rows = {each: row for row, each in enumerate(new.ids) if np.isfinite(new.vectors[row]).all()}
    every = [each for one in hits for each in one.ids]
    places = [place for place, each in enumerate(every) if each in rows]
    chosen = new.vectors[[rows[every[place]] for place in places]]
    return torch.tensor(places, dtype=torch.int64), torch.from_numpy(chosen)


def _describe(
    request: StoreSearchRequest,
    plan: SearchPlan,
    hits: Sequence[Hits],
    new: Page | None,
    scored: Scored | None,
) -> dict[str, Any]:
    """Return the members of the answer."""
    served = plan.served or plan.bridging
    warnings = [*warnings_about_change(plan.row.encoder, plan.target)]
    warnings += [] if scored is None else scored.warnings
    warnings += [] if plan.bridging is None else plan.bridging.warnings
    if plan.mode == "translate" and request.native:
        warnings.append(NO_CANDIDATES)
    return {
        "results": _results(hits, request.k, scored),
        "mode": plan.mode,
        "side": plan.side,
        "candidates": plan.candidates if plan.scores else None,
        "new_vectors": 0 if new is None else len(new.ids),
        "native": scored and scored.native and scored.native.model_dump(),
        "combined": scored and scored.combined.model_dump(),
        "method": served and served.method,
        "options": dict((served and served.options) or {}),
        "translator": plan.served and plan.served.id,
        "bridge": plan.bridging and plan.bridging.id,
        "flags": [{"query": query, "code": "input-truncated"} for query in plan.truncated],
        "warnings": [each._asdict() for each in {each.code: each for each in warnings}.values()],
    }


def _results(hits: Sequence[Hits], k: int, scored: Scored | None) -> list[dict[str, Any]]:
    """Return the results of each query: the store's own, or its candidates by their scores."""
    results: list[dict[str, Any]] = []
    for query, each in enumerate(hits):
        if scored is None:
            places = list(range(min(k, len(each.ids))))
            scores = [float(score) for score in each.scores[:k]]
            result: dict[str, Any] = {"ids": list(each.ids[:k]), "scores": scores}
        else:
            places = scored.results[query].places.tolist()
            result = scored.results[query].describe(each.ids)
        if each.payloads is not None:
            result["payloads"] = [each.payloads[place] for place in places]
        results.append(result)
    return results
