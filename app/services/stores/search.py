"""Searches a store with queries of a new encoder, before, during and after a reindexing.

Nothing is written. Vectors of two encoders are never compared: a bridge compares old vectors with
queries translated into the old space, and every other mode compares vectors of the new space.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from anyio import to_thread
from torch import Tensor

from app.errors import Invalid, StoreChanged
from app.services.context import Services
from app.services.relevance import rescoring
from app.services.relevance.rescoring import Rescored, Rescoring, WeightSource
from app.services.request_context import RequestContext
from app.services.serving.apply import ServedMap, Translation
from app.services.stores.connections import ask_row
from app.services.stores.search_preparation import (
    PreparedSearch,
    StoreSearch,
    StoreSearchMode,
    prepare_search,
    refuse_if_finished,
)
from app.services.translators.warnings import AnswerWarning
from app.stores.base import Hits, Page, Side, Store, StoreId


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
    InvalidRequest, WrongState, TooManyVectors, StoreChanged, and the errors of `ask_row` and
    `encode`.
    """
    began = time.perf_counter()
    ready = await to_thread.run_sync(prepare_search, services, context, request)
    bridged = time.perf_counter()
    hits, new = await ask_row(services, ready.row, lambda store: _ask(store, request, ready))
    if ready.cut_over and ready.side == "old":
        await to_thread.run_sync(refuse_if_finished, services, context, request, ready)
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


def _ask(
    store: Store, request: StoreSearch, ready: PreparedSearch
) -> tuple[Sequence[Hits], Page | None]:
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
    ready: PreparedSearch,
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
