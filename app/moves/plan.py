"""Plans a migration: reads the store, checks it, fits the maps, and says what it is worth.

Nothing is written to the store. The plan is a row, which `run` obeys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import tables
from app.errors import (
    Conflict,
    EncoderNeedsVectors,
    InvalidRequest,
    MigrationActive,
    QualityBelowMinimum,
    WrongSpace,
    blaming,
)
from app.maths.quality.estimate import LARGEST_INDEX, SMALLEST_INDEX
from app.moves.maps import BuiltMaps, build_maps
from app.moves.reading import (
    StoreReading,
    advice_document,
    check_reading,
    encode_speed,
    estimate_cost,
    read_store,
    refuse_lengths,
    require_migratable,
    translate_speed,
)
from app.moves.schemas import NewMigration
from app.moves.service import possible_calls
from app.search import advice
from app.search.advice import AdviceFacts
from app.stores import queries as store_queries
from app.stores import service as stores
from app.stores.registry import has_cutover
from app.translate import estimate as translator_reports
from app.translate import fit as translators
from app.translate.maps import FitRequest
from app.types import EncoderKind, MigrationState

#: how long the store may take to be read
READING_S = 120.0


def plan_migration(
    services: Services, context: RequestContext, wanted: NewMigration
) -> tables.MigrationRow:
    """Plan a migration, and return its row in the state `planned`.

    Raises the not-found and option errors, AnchorsNotEmbedded, WrongSpace, DimensionMismatch,
    MigrationActive, QualityBelowMinimum, StoreUnsupported, the errors of the store, and
    Overloaded.
    """
    # A repetition would sample the store again, and so need another fit.
    services = replace(services, request_fit_s=None)
    with blaming("store", always=True):
        store, active = _find_store(services, context, wanted.store)
    if active is not None:
        raise _active_error(store, active)
    _refuse_shared(services, store)
    request = _request(wanted, store)
    source, target = translators.find_pair(services, context.project, request)
    translators.check_options(request, anchors=source.anchor_set.size)
    text_field = store.options.get("text_field")
    if wanted.re_embed:
        require_texts(text_field, target.encoder)
    reading = _read(services, store, wanted.batch, text_field)
    check_reading(reading, store=store.name, encoder=store.encoder.name, dim=store.encoder.dim)
    require_migratable(reading.facts)
    space = _check_space(services, store, target.encoder.name, reading, force=wanted.force_space)
    built = build_maps(services, context, request, sample=torch.from_numpy(reading.sample))
    refuse_lengths(reading, (built.served.options or {}).get("keep_norms") is True)
    if not wanted.force_space:
        _refuse_useless(wanted.anchor_set, built)
    estimate = _estimate(services, built, request, reading.facts.rows)
    plan = {
        **_document(services, context, wanted, request, reading, built, estimate),
        "space": space,
        "notes": _notes(store, reading, space, built, estimate),
    }
    return _add_row(services, context, store, built, plan)


def _find_store(
    services: Services, context: RequestContext, name: str
) -> tuple[tables.StoreRow, tables.MigrationRow | None]:
    with services.db.transaction() as session:
        return store_queries.moving_store(session, context.project, name)


def _refuse_shared(services: Services, store: tables.StoreRow) -> None:
    """Raises MigrationActive while another store of the same collection is migrated.

    A plan of another project does not count until it runs: its owner may forget it.
    """
    url = services.stores.location(store).url
    with services.db.transaction() as session:
        others = store_queries.same_collection(session, store)
    for other, active in others:
        if active.state == MigrationState.planned and other.project != store.project:
            continue
        address = services.stores.addresses.get(other.address)
        if address is None or address.url != url:
            continue
        if other.project == store.project:
            raise _active_error(other, active)
        raise MigrationActive(
            f"Another project migrates the collection of the store {store.name!r}. Wait until it "
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


def _request(wanted: NewMigration, store: tables.StoreRow) -> FitRequest:
    """Return the fit from the store's encoder to the target.

    Raises InvalidRequest where they are the same.
    """
    if wanted.target == store.encoder.name:
        raise InvalidRequest(
            f"The store {store.name!r} already has vectors of {wanted.target!r}. Name another "
            "`target`.",
            field="target",
        )
    return FitRequest(
        store.encoder.name,
        wanted.target,
        wanted.anchor_set,
        wanted.method,
        wanted.options.as_dict(),
        wanted.min_quality.as_dict(),
    )


def require_texts(text_field: str | None, target: tables.EncoderRow) -> None:
    """Raises InvalidRequest without texts, and EncoderNeedsVectors for an external target."""
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
    services: Services, store: tables.StoreRow, target: str, reading: StoreReading, *, force: bool
) -> dict[str, Any]:
    """Return what the check found. Raises WrongSpace for another encoder's vectors."""
    match = stores.check_space(services, store.encoder, reading.sample)
    foreign = stores.foreign_ids(match, reading.sample_ids)
    found = {
        **asdict(match),
        "foreign": foreign,
        "mixture": stores.describe_mixture(match, foreign, store.encoder.name),
        "forced": force,
    }
    if match.verdict not in ("another", "mixed") or force:
        return found
    if match.verdict == "mixed":
        raise WrongSpace(
            f"{found['mixture']}. A translation would spoil such rows of the store "
            f"{store.name!r}. Embed them again with {store.encoder.name!r}, or send "
            "`force_space: true` to translate them all the same.",
            field="store",
            more={"space": found},
        )
    if match.likeliest == target:
        advice_text = (
            f"They look like those of the target {target!r}: this migration would go the wrong "
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


def _refuse_useless(anchor_set: str, built: BuiltMaps) -> None:
    """Raises QualityBelowMinimum for anchors that are no more related than shuffled ones."""
    codes = {warning.code for warning in built.warnings}
    if "useless-anchors" not in codes or "made-pairs" in codes:
        return
    raise QualityBelowMinimum(
        f"The anchors of {anchor_set!r} are no more related than shuffled ones, so the "
        "translations would mean nothing. Check that the rows of both encoders are the same items "
        f"in the same order: GET /anchor-sets/{anchor_set}/report says more. Send "
        "`force_space: true` to plan all the same.",
        field="anchor_set",
        more={"found": None},
    )


def _estimate(
    services: Services, built: BuiltMaps, request: FitRequest, rows: int
) -> dict[str, Any] | None:
    """Return the estimate in an index of the store's size; None with too few anchors."""
    row = translator_reports.report_of(services, built.served)
    index = min(max(rows, SMALLEST_INDEX), LARGEST_INDEX)
    translator_reports.require_estimate(row, request.min_quality, index)
    estimated = translator_reports.estimate_for(row.report or {}, index)
    if estimated is None:
        return None
    recall = estimated["measures"]["recall"]
    return {
        "index": estimated["index"],
        "neighbours": estimated["neighbours"],
        "measured": estimated["measured"],
        "recall": recall["value"],
        "low": recall["low"],
        "high": recall["high"],
    }


def _document(
    services: Services,
    context: RequestContext,
    wanted: NewMigration,
    request: FitRequest,
    reading: StoreReading,
    built: BuiltMaps,
    estimate: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return what `run` obeys, and what the plan estimates, as JSON."""
    target, rows = built.target.encoder, reading.facts.rows
    encodes = encode_speed(services, context, target, reading.texts)
    translates = translate_speed(built.maps, reading)
    cost = estimate_cost(
        reading,
        target.dim,
        translates=translates,
        encodes=encodes,
        re_embed=wanted.re_embed,
        rows_per_second=wanted.rows_per_second,
    )
    known = AdviceFacts(
        evaluation=wanted.evaluation,
        corpus_size=rows,
        old_encoder_runs=wanted.old_encoder_runs,
        text_exists=bool(reading.texts) if wanted.text_exists is None else wanted.text_exists,
    )
    advised = advice.advise(services, context, request, known)
    return {
        "store": wanted.store,
        "source": built.source.encoder.name,
        "target": target.name,
        "anchor_set": wanted.anchor_set,
        "method": built.served.method,
        "options": dict(built.served.options or {}),
        "translator": built.served.id,
        "rows": rows,
        "dim": target.dim,
        "estimate": estimate,
        "min_recall": wanted.min_recall,
        "re_embed": wanted.re_embed,
        "rows_per_second": wanted.rows_per_second,
        "batch": wanted.batch,
        "advice": advice_document(
            advised["options"], estimate, reading, translates=translates, encodes=encodes
        ),
        "cost": cost,
    }


def _notes(
    store: tables.StoreRow,
    reading: StoreReading,
    space: Mapping[str, Any],
    built: BuiltMaps,
    estimate: Mapping[str, Any] | None,
) -> list[dict[str, str]]:
    """Return what a person must know before the migration, with codes."""
    notes = [{"code": each.code, "detail": each.detail} for each in reading.facts.notes]
    notes += [{"code": each.code, "detail": each.detail} for each in built.warnings]
    notes.append(
        {
            "code": "search-works",
            "detail": f"POST /stores/{store.name}/search answers queries of the new encoder "
            "now, and writes nothing. A run is not needed for it.",
        }
    )
    if estimate is None:
        notes.append(
            {
                "code": "no-estimate",
                "detail": "There are too few anchors to estimate a recall. Add anchors to the set.",
            }
        )
    if space.get("verdict") == "unknown":
        notes.append(
            {
                "code": "space-unknown",
                "detail": "It is not known whether the store has the source's vectors: there are "
                "too few rows or anchors, or the anchors are of another corpus.",
            }
        )
    if space.get("mixture"):
        notes.append({"code": "mixed-rows", "detail": f"{space['mixture']}."})
    if reading.undirected:
        share = len(reading.undirected) / (len(reading.undirected) + len(reading.sample))
        notes.append(
            {
                "code": "rows-without-direction",
                "detail": f"{share:.1%} of the sampled vectors are zero or not finite. A run skips "
                "and counts such rows.",
            }
        )
    if not has_cutover(store.kind):
        notes.append(
            {
                "code": "stop-writes",
                "detail": "The store does not report writes. Stop the writes of your application "
                "from `run` until it opens the new vectors: this kind of store has no cutover.",
            }
        )
    elif not reading.capabilities.captures_writes:
        notes.append(
            {
                "code": "writes-not-captured",
                "detail": "The store does not report writes of other clients. `sync`, `verify` and "
                "`cutover` find them by comparing both sides. Stop writes during the cutover.",
            }
        )
    return notes


def _add_row(
    services: Services,
    context: RequestContext,
    store: tables.StoreRow,
    built: BuiltMaps,
    plan: dict[str, Any],
) -> tables.MigrationRow:
    """Store the plan. Raises MigrationActive where another request was faster, and Conflict."""
    row = tables.MigrationRow(
        id=tables.new_id(),
        project=context.project,
        store_id=store.id,
        target_id=built.target.encoder_id,
        anchor_set_id=built.source.anchor_set_id,
        state=MigrationState.planned,
        plan=plan,
        maps=built.digest,
    )
    try:
        with services.db.transaction() as session:
            session.add(row)
            session.flush()
            record_audit(session, context, "create", "migration", row.id)
            session.refresh(row)
    except Conflict:
        _, active = _find_store(services, context, store.name)
        if active is not None:
            raise _active_error(store, active) from None
        raise
    return row


def _active_error(store: tables.StoreRow, active: tables.MigrationRow) -> MigrationActive:
    state = MigrationState(active.state)
    steps = [name for name in possible_calls(active, busy=False) if name in ("finish", "abandon")]
    first = f"{' or '.join(steps)} it first" if steps else "wait until it ends"
    return MigrationActive(
        f"Migration {active.id} of the store {store.name!r} is {state}. A store has one at a time: "
        f"{first}.",
        field="store",
        more={"migration": active.id},
    )
