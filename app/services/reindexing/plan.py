"""Plans a reindexing: reads the store, checks it, fits the maps, and says what it is worth.

Nothing is written to the store. The plan is a row, which `run` obeys.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from app.errors import (
    Conflict,
    EncoderNeedsVectors,
    InvalidRequest,
    ReindexingActive,
    WrongSpace,
    blaming,
)
from app.maths.quality.promise import LARGEST_INDEX, SMALLEST_INDEX
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.reindexing import plan_contents
from app.services.reindexing.maps import BuiltMaps, build_maps
from app.services.reindexing.plan_contents import Draft, ReindexingTask
from app.services.reindexing.plan_reading import (
    StoreReading,
    check_reading,
    choose_strategy,
    read_store,
    refuse_lengths,
)
from app.services.request_context import RequestContext
from app.services.stores import stores
from app.services.translators import contracts, translator_reports, translators
from app.services.translators.translators import FitRequest
from app.storage import tables
from app.storage.queries import stores as store_queries
from app.types import EncoderKind, ReindexingState

#: how long the store may take to be read
READING_S = 120.0


def plan_reindexing(
    services: Services, context: RequestContext, task: ReindexingTask
) -> tables.ReindexingRow:
    """Plan a reindexing, and return its row in the state `planned`.

    Raises the not-found and option errors, AnchorsNotEmbedded, WrongSpace, DimensionMismatch,
    ReindexingActive, QualityBelowMinimum, StoreUnsupported, the errors of the store, and
    Overloaded.
    """
    with blaming("store", always=True):
        store, active = _find_store(services, context, task.store)
    if active is not None:
        raise _active_error(store, active)
    _refuse_shared(services, store)
    request = _request(task, store)
    source, target = translators.find_pair(services, context.project, request)
    translators.check_options(request, anchors=source.anchor_set.size)
    text_field = store.options.get("text_field")
    check_re_embedding(task.re_embed, text_field, target.encoder)
    reading = _read(services, store, task.batch, text_field)
    check_reading(reading, store=store.name, encoder=store.encoder.name, dim=source.encoder.dim)
    strategy = choose_strategy(reading, task.strategy)
    found_space = _check_space(services, task, store, target.encoder.name, reading)
    built = build_maps(services, context, request, sample=torch.from_numpy(reading.sample))
    refuse_lengths(reading, str(built.served.method), _keeps_norms(built))
    promise = _promise(services, context, built, request, reading.facts.rows)
    draft = Draft(task, store, request, strategy, reading, found_space, built, promise)
    return _add_row(services, context, draft, plan_contents.make_plan(services, context, draft))


def _find_store(
    services: Services, context: RequestContext, name: str
) -> tuple[tables.StoreRow, tables.ReindexingRow | None]:
    with services.db.transaction() as session:
        return store_queries.moving_store(session, context.project, name)


def _refuse_shared(services: Services, store: tables.StoreRow) -> None:
    """Raises ReindexingActive while another store of the same collection is reindexed.

    A plan of another project does not count until it runs: its owner may forget it.
    """
    url = services.stores.location(store).url
    with services.db.transaction() as session:
        others = store_queries.same_collection(session, store)
    for other, active in others:
        if active.state == ReindexingState.planned and other.project != store.project:
            continue
        address = services.stores.addresses.get(other.address)
        if address is None or address.url != url:
            continue
        if other.project == store.project:
            raise _active_error(other, active)
        raise ReindexingActive(
            f"Another project reindexes the collection of the store {store.name!r}. Wait until it "
            "has finished or abandoned it.",
            field="store",
        )


def _read(
    services: Services, store: tables.StoreRow, batch: int, text_field: str | None
) -> StoreReading:
    """Read the store. One that does not answer at all is given up sooner than a slow one."""
    stores.call_row(services, store, lambda opened: opened.facts())
    return stores.call_row(
        services,
        store,
        lambda opened: read_store(opened, batch=batch, text_field=text_field),
        within_s=READING_S,
    )


def _request(task: ReindexingTask, store: tables.StoreRow) -> FitRequest:
    """Return the fit of the forward map. Raises InvalidRequest for the store's own encoder."""
    source = store.encoder.name
    if task.target == source:
        raise InvalidRequest(
            f"The store {store.name!r} already has vectors of {source!r}. Name another `target`.",
            field="target",
        )
    return FitRequest(
        source,
        task.target,
        task.anchor_set,
        task.method,
        dict(task.options),
        task.prefer,
        dict(task.min_quality),
    )


def check_re_embedding(share: float, text_field: str | None, target: tables.EncoderRow) -> None:
    """Raises InvalidRequest without texts, and EncoderNeedsVectors for an external target."""
    if share <= 0:
        return
    if text_field is None:
        raise InvalidRequest(
            "`re_embed` needs the texts of the rows, and the store has no `text_field`. Register "
            "it with one, or remove `re_embed`.",
            field="re_embed",
        )
    if target.kind == EncoderKind.external:
        raise EncoderNeedsVectors(
            f"The service does not run encoder {target.name!r}, so it cannot encode rows again. "
            "Remove `re_embed`, or name an encoder that the service runs.",
            field="re_embed",
        )


def _check_space(
    services: Services,
    task: ReindexingTask,
    store: tables.StoreRow,
    target: str,
    reading: StoreReading,
) -> dict[str, Any]:
    """Return what the check found. Raises WrongSpace for another encoder's vectors."""
    match = stores.check_space(services, store.encoder, reading.sample, anchor_set=task.anchor_set)
    found = {**asdict(match), "forced": task.force_space}
    if match.verdict != "another" or task.force_space:
        return found
    if match.likeliest == target:
        advice_text = (
            f"They look like those of the target {target!r}: this reindexing would go the wrong "
            "way. The store may have been moved before. Register it with its present encoder"
        )
    else:
        advice_text = (
            f"They look more like those of {match.likeliest!r}. Register the store with that "
            "encoder"
        )
    raise WrongSpace(
        f"The vectors of the store {store.name!r} do not look like those of "
        f"{store.encoder.name!r}. {advice_text}, or send `force_space: true` if you know better.",
        field="store",
        more={"space": found},
    )


def _keeps_norms(built: BuiltMaps) -> bool:
    return (built.served.options or {}).get("keep_norms") is True


def _promise(
    services: Services, context: RequestContext, built: BuiltMaps, request: FitRequest, rows: int
) -> dict[str, Any] | None:
    """Return the promise in an index of the store's size; None with too few anchors.

    Raises QualityBelowMinimum below the minimum of the request or of the pair's contract.
    """
    served = built.served
    assert served.id is not None
    assert served.pair is not None
    between = (served.pair[0].id, served.pair[1].id)
    row = translators.find_with_report(services, context.project, served.id, between=between)
    index = min(max(rows, SMALLEST_INDEX), LARGEST_INDEX)
    name = translators.pair_name(
        context.project, request.anchor_set, str(request.source), request.target
    )
    pair = translators.resolve(services, name)
    contracts.require_promise(row, pair.minimum, pair.index, field="anchor_set")
    contracts.require_promise(row, request.min_quality, index)
    promised = translator_reports.promise_for(row.report or {}, index)
    if promised is None:
        return None
    recall = promised["measures"]["recall"]
    return {
        "index": promised["index"],
        "neighbours": promised["neighbours"],
        "measured": promised["measured"],
        "recall": recall["value"],
        "low": recall["low"],
        "high": recall["high"],
        "cosine": promised["measures"]["cosine"]["value"],
    }


def _add_row(
    services: Services, context: RequestContext, draft: Draft, plan: dict[str, Any]
) -> tables.ReindexingRow:
    """Store the plan. Raises ReindexingActive where another request was faster, and Conflict."""
    assert draft.built.served.pair is not None
    source, target = draft.built.served.pair
    row = tables.ReindexingRow(
        project=context.project,
        store_id=draft.store.id,
        target_id=target.encoder_id,
        anchor_set_id=source.anchor_set_id,
        state=ReindexingState.planned,
        plan=plan,
        maps=draft.built.digest,
    )
    row.id = tables.new_id()
    try:
        with services.db.transaction() as session:
            session.add(row)
            session.flush()
            record_audit(session, context, "create", "reindexing", row.id, row)
            session.refresh(row)
    except Conflict:
        _, active = _find_store(services, context, draft.store.name)
        if active is not None:
            raise _active_error(draft.store, active) from None
        raise
    return row


def _active_error(store: tables.StoreRow, active: tables.ReindexingRow) -> ReindexingActive:
    return ReindexingActive(
        f"Reindexing {active.id} of the store {store.name!r} is {active.state}. A store has one "
        "at a time: finish or abandon it first.",
        field="store",
        more={"reindexing": active.id},
    )
