"""Compares searches by a new encoder with the store's own searches by its old one, live.

A shadow answers a query by the old encoder after its answer was sent, and counts how both differ.
An interleaved answer has hits of both, and clicks say which people prefer. Nothing of a query is
stored: sums go to the database, and the shown ids to Redis for a day.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from anyio import to_thread

from app.errors import (
    AnchorageError,
    ComparisonNotFound,
    EncoderChanged,
    EncoderUnavailable,
    InvalidRequest,
    Later,
    MissingField,
    Unavailable,
)
from app.maths.relevance.live_comparison import (
    draft_teams,
    latency_bucket,
    overlap,
    preferred_team,
    rank_changes,
)
from app.observability import metrics
from app.services.context import Services
from app.services.encoders.encoding import exactly_one
from app.services.request_context import RequestContext
from app.services.stores.search import (
    StoreAnswer,
    StoreResults,
    StoreSearch,
    search_store,
)
from app.services.stores.stores import find_store
from app.services.translators.warnings import AnswerWarning
from app.storage import open_comparisons, tables
from app.storage.open_comparisons import OpenComparison
from app.storage.queries import store_comparisons as queries
from app.storage.queries.store_comparisons import Compared
from app.storage.redis import AWAY_S, RedisAway
from app.stores.base import StoreId
from app.types import EncoderKind

log = logging.getLogger("anchorage.comparison")

#: how much longer than its own search an interleaved answer waits for the old one
OLD_SEARCH_S = 2.0

CompareKind = Literal["shadow", "interleave"]


@dataclass(frozen=True)
class Comparison:
    """How the answer of a search is compared. share: of the queries, chosen by their content."""

    kind: CompareKind
    share: float = 1.0


#: an answer, and a call that queues the rest of the work once the answer is sent
ComparedAnswer = tuple[StoreAnswer, Callable[[], Awaitable[None]]]


async def search_and_compare(
    services: Services, context: RequestContext, request: StoreSearch, comparison: Comparison
) -> ComparedAnswer:
    """Search a store, and compare the answer with the store's own.

    Raises MissingField and InvalidRequest where the store has none, and the errors of
    `search_store`, in an interleaved answer those of both searches.
    """
    request = replace(request, compared=True)
    if comparison.kind == "interleave":
        return await _interleave(services, context, request, comparison)
    began = time.perf_counter()
    answer = await search_store(services, context, request)
    seconds = time.perf_counter() - began
    _require_old(request, answer.row)
    rows = await _choose(context.project, request, comparison.share)
    if not rows:
        return answer, _nothing
    alone = RequestContext(context.project, context.key_id, context.origin)
    old = replace(_old_search(request, rows, answer.row), payload=False)
    share = len(rows) / len(answer.results)
    shadow = _Shadow(
        of=_compared(answer),
        ids=[answer.results[each].ids for each in rows],
        native_texts=0.0 if answer.native is None else answer.native.embedded * share,
        # Of a part of the queries, or without payloads, the old encoder would seem fast.
        seconds=None if share < 1.0 or request.payload else seconds,
        context=alone,
        request=old,
    )
    return answer, partial(_queue_shadow, services, shadow)


async def _nothing() -> None:
    """Nothing is left to do."""


def _require_old(request: StoreSearch, row: tables.StoreRow) -> None:
    """Raises MissingField and InvalidRequest where the store's encoder cannot search."""
    _, count = exactly_one(request.queries, request.inputs, field="queries")
    encoder, old = row.encoder, request.old_queries
    if encoder.name == request.target:
        raise InvalidRequest(
            f"The store holds vectors of {encoder.name!r}, so the search is its own already. "
            "Remove `compare`, or name another `target`.",
            field="compare",
        )
    if old is None and (request.inputs is None or encoder.kind == EncoderKind.external):
        raise MissingField(
            f"`compare` needs `old_queries`, the queries' vectors by the store's encoder "
            f"{encoder.name!r}. Add them, or remove `compare`.",
            field="old_queries",
        )
    if old is not None and len(old) != count:
        raise InvalidRequest(
            f"There are {len(old)} `old_queries` and {count} queries. Send one for each query.",
            field="old_queries",
        )


async def _choose(project: str, request: StoreSearch, share: float) -> list[int]:
    """Return the queries that are compared: the same ones in every request that has them."""
    values: Any = request.queries if request.inputs is None else request.inputs.values
    if share >= 1.0:
        return list(range(len(values)))
    return await to_thread.run_sync(_chosen, project, values, share)


def _chosen(project: str, values: Any, share: float) -> list[int]:
    chosen = []
    for row, each in enumerate(values):
        content = each if isinstance(each, str | bytes) else each.tolist()
        digest = hashlib.sha256(repr((project, content)).encode()).digest()
        if int.from_bytes(digest[:8]) < share * 2**64:
            chosen.append(row)
    return chosen


def _old_search(request: StoreSearch, rows: list[int], row: tables.StoreRow) -> StoreSearch:
    """Return the store's own search for these queries."""
    old, inputs = request.old_queries, request.inputs
    if inputs is not None:
        inputs = replace(inputs, values=[inputs.values[each] for each in rows])
    return StoreSearch(
        request.store,
        row.encoder.name,
        queries=None if old is None else old[rows],
        inputs=inputs if old is None else None,
        k=request.k,
        filter=request.filter,
        payload=request.payload,
        exact=request.exact,
    )


def _compared(answer: StoreAnswer) -> Compared:
    return Compared(answer.row.id, answer.target.id, answer.mode)


@dataclass(frozen=True, eq=False)
class _Shadow:
    """A search by the store's encoder, after the answer to the whole request.

    ids           the hits of each query that it repeats
    native_texts  that were embedded for these queries
    seconds       the time that the answer took; None if both times cannot be compared
    """

    of: Compared
    ids: Sequence[Sequence[StoreId]]
    native_texts: float
    seconds: float | None
    context: RequestContext
    request: StoreSearch

    def count(self, services: Services, outcome: str, sums: Mapping[str, float]) -> None:
        metrics.COMPARISONS.labels(outcome).inc(len(self.ids))
        services.shadows.add(self.of, {outcome: len(self.ids), **sums})


async def _queue_shadow(services: Services, shadow: _Shadow) -> None:
    run = partial(_run_shadow, services, shadow)
    if not services.shadows.offer(run, shadow.context.project):
        shadow.count(services, "dropped", {})


async def _run_shadow(services: Services, shadow: _Shadow) -> None:
    began = time.perf_counter()
    try:
        old = await search_store(services, shadow.context, shadow.request)
    except AnchorageError as error:
        log.info("a shadow search failed: %s", error.detail)
        shadow.count(services, "failed", {})
    else:
        shadow.count(services, "shadowed", _differences(shadow, old, time.perf_counter() - began))
    await _store_sums(services)


def _differences(shadow: _Shadow, old: StoreAnswer, seconds: float) -> dict[str, float]:
    """Return what is summed of both answers."""
    pairs = list(zip(shadow.ids, (each.ids for each in old.results), strict=True))
    changes = [change for pair in pairs for change in rank_changes(*pair)]
    sums = {
        "overlap": sum(overlap(*pair) for pair in pairs),
        "rank_change": sum(changes),
        "rank_changes": len(changes),
        "native_texts": shadow.native_texts,
    }
    if shadow.seconds is not None:
        sums |= {
            f"latency:{latency_bucket(shadow.seconds)}": 1,
            f"old_latency:{latency_bucket(seconds)}": 1,
        }
    return sums


async def _store_sums(services: Services) -> None:
    """Store what was counted. What the database does not take is kept for the next time."""
    for of, sums in services.shadows.take_sums().items():
        try:
            await to_thread.run_sync(add_sums, services, of, sums)
        except Unavailable:
            services.shadows.add(of, sums)
        except AnchorageError as error:  # the store or the encoder was deleted
            log.info("counts of compared searches were not stored: %s", error.detail)


def add_sums(services: Services, of: Compared, sums: Mapping[str, float]) -> None:
    """Add to today's sums. Raises Conflict if the store or the encoder is gone."""
    with services.db.transaction() as session:
        queries.add_sums(session, of, sums)


async def _interleave(
    services: Services, context: RequestContext, request: StoreSearch, comparison: Comparison
) -> ComparedAnswer:
    row = await to_thread.run_sync(find_store, services, context.project, request.store)
    _require_old(request, row)
    rows = await _choose(context.project, request, comparison.share)
    if not rows:
        return await search_store(services, context, request), _nothing
    alone = RequestContext(context.project, context.key_id, context.origin)
    asked = asyncio.create_task(search_store(services, alone, _old_search(request, rows, row)))
    asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps too late
    answer = await search_store(services, context, request)
    if not (await asyncio.wait({asked}, timeout=OLD_SEARCH_S))[0]:
        why = f"The old search took {OLD_SEARCH_S:g} s longer."
        return _skipped(answer, len(rows), why)
    try:
        old = asked.result()
    except (Later, EncoderUnavailable, EncoderChanged) as error:
        return _skipped(answer, len(rows), f"The old search did not answer: {error.detail}")
    of, results = _compared(answer), list(answer.results)
    opened: dict[str, OpenComparison] = {}
    for row_number, theirs in zip(rows, old.results, strict=True):
        mixed, teams = _mix(results[row_number], theirs, request.k)
        if mixed.comparison is not None:
            ids = [str(each) for each in mixed.ids]
            opened[mixed.comparison] = OpenComparison(of, ids, teams)
            results[row_number] = mixed
    try:
        await to_thread.run_sync(_open, services, opened)
    except RedisAway:
        why = "Interleaved answers need Redis, which does not answer or is not configured."
        return _skipped(answer, len(rows), why)
    sums = {"interleaved": float(len(opened)), "same": float(len(rows) - len(opened))}
    for outcome, count in sums.items():
        metrics.COMPARISONS.labels(outcome).inc(count)
    return replace(answer, results=results), partial(_queue_sums, services, of, sums)


async def _queue_sums(services: Services, of: Compared, sums: Mapping[str, float]) -> None:
    services.shadows.add(of, sums)
    # If too much waits, that stores them.
    services.shadows.offer(partial(_store_sums, services), "")


def _open(services: Services, opened: dict[str, OpenComparison]) -> None:
    """Raises RedisAway."""
    if services.cache.store is None:
        raise RedisAway
    if opened:
        open_comparisons.open_all(services.cache.store, opened)


def _skipped(answer: StoreAnswer, count: int, why: str) -> ComparedAnswer:
    """Return the answer as it is, with a warning."""
    metrics.COMPARISONS.labels("skipped").inc(count)
    warning = AnswerWarning("comparison-skipped", f"The answer was not compared. {why}")
    return replace(answer, notices=[warning]), _nothing


def _mix(ours: StoreResults, theirs: StoreResults, k: int) -> tuple[StoreResults, Sequence[Any]]:
    """Return an interleaved result, without a comparison where both searches answer the same.

    Scores of two encoders cannot be compared, and would name the teams: hits get 1 / rank.
    """
    ids, teams = draft_teams(ours.ids, theirs.ids, k, lambda: secrets.randbits(1) == 1)
    if not any(team is not None for team in teams):
        return ours, teams
    payloads = None
    if ours.payloads is not None and theirs.payloads is not None:
        by_id = dict(zip(theirs.ids, theirs.payloads, strict=True))
        by_id |= dict(zip(ours.ids, ours.payloads, strict=True))
        payloads = [by_id[each] for each in ids]
    scores = [1 / rank for rank in range(1, len(ids) + 1)]
    return StoreResults(ids, scores, payloads, (), secrets.token_hex(16)), teams


def add_clicks(
    services: Services,
    context: RequestContext,
    store: str,
    comparison: str,
    ids: Sequence[int | str],
) -> bool:
    """Credit the search that placed the clicked hits; return whether this decided the comparison.

    Once one has more clicks, the comparison is counted, and later clicks change nothing.
    Raises StoreNotFound, ComparisonNotFound, InvalidRequest, and Unavailable without Redis.
    """
    row = find_store(services, context.project, store)
    try:
        return _add_clicks(services, row, comparison, ids)
    except RedisAway:
        raise Unavailable(
            "Redis, which holds open comparisons, does not answer. Send the clicks again.",
            retry_after_s=int(AWAY_S) + 1,
        ) from None


def _add_clicks(
    services: Services, row: tables.StoreRow, comparison: str, ids: Sequence[int | str]
) -> bool:
    """Raises RedisAway too."""
    redis = services.cache.store
    found = None if redis is None else open_comparisons.find(redis, comparison)
    if redis is None or found is None or found.of.store_id != row.id:
        raise ComparisonNotFound(
            f"The store {row.name!r} has no open comparison of this id: it is wrong, or a day old.",
            field="comparison",
        )
    places = {id: place for place, id in enumerate(found.ids)}
    if unknown := [number for number, id in enumerate(ids) if str(id) not in places]:
        raise InvalidRequest(
            "The answer of this comparison did not have all of `ids`. Send ids that were shown.",
            field="ids",
            rows=unknown,
        )
    first, clicked = open_comparisons.click(redis, comparison, [places[str(id)] for id in ids])
    team = preferred_team([found.teams[place] for place in clicked])
    sums = {"clicked": 1.0} if first else {}
    decided = team is not None and open_comparisons.decide(redis, comparison)
    if decided:
        outcome = "lost" if team else "won"
        metrics.COMPARISONS.labels(outcome).inc()
        sums[outcome] = 1.0
    if sums:
        try:
            add_sums(services, found.of, sums)
        except Unavailable:  # the client sends the clicks again
            open_comparisons.undo(redis, comparison, clicked if first else (), decided=decided)
            raise
    return decided
