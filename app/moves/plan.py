"""Plans a migration: reads the store, checks it, fits the maps, and says what it is worth.

Nothing is written to the store. The plan is a row, which `run` obeys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from sqlalchemy import update

from app.access.audit import record_audit
from app.anchors import likeness
from app.anchors.store_texts import require_text_field, way_to_texts
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders import encoding
from app.errors import (
    Conflict,
    EncoderNeedsVectors,
    InvalidRequest,
    MigrationActive,
    MissingField,
    QualityBelowMinimum,
    WrongSpace,
    blaming,
)
from app.maths.quality.estimate import LARGEST_INDEX, SMALLEST_INDEX
from app.maths.relevance.advice import usual_change
from app.moves.embedding import runs_here
from app.moves.maps import BuiltMaps, build_maps
from app.moves.price import with_limits
from app.moves.reading import (
    StoreReading,
    check_reading,
    disk_bytes,
    embedding_cost,
    index_seconds,
    read_store,
    refuse_lengths,
    require_migratable,
    seconds_to_translate,
)
from app.moves.schemas import MigrationLimits, NewMigration
from app.moves.service import possible_calls, require_price
from app.search.compare import compare_once
from app.stores import queries as store_queries
from app.stores import service as stores
from app.stores.registry import SWITCHES, has_cutover
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
    require_price(limits := {name: getattr(wanted, name) for name in MigrationLimits.model_fields})
    target = _find_target(services, context, store, wanted.target)
    text_field = store.options.get("text_field")
    fill = wanted.fill or ("embed" if text_field and runs_here(target) else "translate")
    if fill == "embed":
        _require_texts(services, store, target)
    elif wanted.anchor_set is None:
        way = f"register the model of {target.name!r} by another name: POST /encoders"
        if text_field is None:
            way = way_to_texts(services, store)
        raise MissingField(
            "`fill: translate` needs an `anchor_set` that the store's encoder and `target` share. "
            f"To embed every row instead, {way}.",
            field="anchor_set",
        )
    request = None if wanted.anchor_set is None else _request(wanted, store)
    if request is not None:
        source, _ = translators.find_pair(services, context.project, request)
        translators.check_options(request, anchors=source.anchor_set.size)
    reading = _read(services, store, wanted.batch, text_field, target.dim)
    # Its index may be newer than its registration.
    store.options = {**store.options, "metric": reading.facts.metric}
    request = request and _request(wanted, store)
    check_reading(reading, store=store.name, encoder=store.encoder.name, dim=store.encoder.dim)
    require_migratable(reading.facts)
    space = _check_space(services, store, target.name, reading, force=wanted.force_space)
    asks = bool(reading.texts) and not compare_once(services, context, store.encoder, target, store)
    plan: dict[str, Any] = {
        "store": wanted.store,
        "switch": SWITCHES.get(store.kind),
        "source": store.encoder.name,
        "target": target.name,
        "fill": fill,
        "anchor_set": wanted.anchor_set,
        "rows": reading.facts.rows,
        "dim": target.dim,
        "min_recall": wanted.min_recall,
        "batch": wanted.batch,
        "space": space,
    }
    built = None
    if request is not None:
        sample = torch.from_numpy(reading.sample)
        built = build_maps(services, context, request, sample=sample)
        refuse_lengths(reading, (built.served.options or {}).get("keep_norms") is True)
        if not wanted.force_space:
            _refuse_useless(request.anchor_set, built)
        plan |= {
            "method": built.served.method,
            "options": dict(built.served.options or {}),
            "translator": built.served.id,
        }
    if fill == "embed":
        plan["cost"] = embedding_cost(services, context, target, reading)
    else:
        assert request is not None
        assert built is not None
        plan["estimate"] = _estimate(services, built, request, reading.facts.rows)
        plan["cost"] = {
            "translate_s": round(seconds_to_translate(built.maps, reading), 3),
            "disk_bytes": disk_bytes(reading, target.dim),
        }
    plan["cost"]["index_s"] = index_seconds(store.kind, reading.facts)
    plan["notes"] = _notes(store, reading, plan, target, built, asks=asks)
    return _add_row(services, context, store, target, built, with_limits(plan, limits, target))


def _find_target(
    services: Services, context: RequestContext, store: tables.StoreRow, name: str
) -> tables.EncoderRow:
    """Return the target. Raises NotFound, and InvalidRequest for the store's own encoder."""
    with services.db.transaction() as session:
        target = resources.by_name(
            session, tables.EncoderRow, context.project, name, field="target"
        )
    if target.id == store.encoder_id:
        raise InvalidRequest(
            f"The store {store.name!r} already has vectors of {name!r}. Name another `target`.",
            field="target",
        )
    return target


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
    services: Services, store: tables.StoreRow, batch: int, text_field: str | None, dim: int
) -> StoreReading:
    """Read the store. One that does not answer at all is given up sooner than a slow one."""
    stores.call_row(services, store, lambda opened: opened.facts())
    return stores.call_row(
        services,
        store,
        lambda opened: read_store(opened, batch=batch, text_field=text_field, dim=dim),
        within_s=READING_S,
    )


def _request(wanted: NewMigration, store: tables.StoreRow) -> FitRequest:
    """Return the fit from the store's encoder to the target."""
    assert wanted.anchor_set is not None
    return FitRequest(
        store.encoder.name,
        wanted.target,
        wanted.anchor_set,
        wanted.method,
        store.map_options(wanted.options.as_dict()),
        wanted.min_quality.as_dict(),
    )


def _require_texts(services: Services, store: tables.StoreRow, target: tables.EncoderRow) -> None:
    """Raises StoreUnsupported without texts, and the errors of a target that does not run."""
    otherwise = "send `fill: translate` with an `anchor_set`."
    with blaming("fill", always=True):
        require_text_field(services, store, otherwise=f" Or {otherwise}")
    if target.kind == EncoderKind.external:
        raise EncoderNeedsVectors(
            f"The service does not run encoder {target.name!r}, so it cannot embed rows. Register "
            f"its model by another name (POST /encoders), or {otherwise}",
            field="fill",
        )
    with blaming("target", always=True):
        encoding.require_same_vectors(target)


def _check_space(
    services: Services, store: tables.StoreRow, target: str, reading: StoreReading, *, force: bool
) -> dict[str, Any]:
    """Return what the check found. Raises WrongSpace for another encoder's vectors."""
    match = likeness.check_space(services, store.encoder, reading.sample)
    foreign = likeness.foreign_ids(match, reading.sample_ids)
    found = {
        **asdict(match),
        "foreign": foreign,
        "mixture": likeness.describe_mixture(match, foreign, store.encoder.name),
        "forced": force,
    }
    if match.verdict not in ("another", "mixed") or force:
        return found
    advice = "Register the store with that encoder"
    if match.verdict == "mixed":
        problem = f"{found['mixture']}. A translation would spoil such rows"
        advice = f"Embed them again with {store.encoder.name!r}"
    elif match.likeliest == target:
        problem = f"They look like those of the target {target!r}: this would go the wrong way"
        advice = "The store may have been moved before: register it with its present encoder"
    else:
        problem = f"They look more like those of {match.likeliest!r}"
    raise WrongSpace(
        f"The vectors of the store {store.name!r} do not all look like those of "
        f"{store.encoder.name!r}. {problem}. {advice}, or send `force_space: true` if you know "
        "better.",
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
        **{name: estimated[name] for name in ("index", "neighbours", "measured", "comparison")},
        "recall": recall["value"],
        "low": recall["low"],
        "high": recall["high"],
    }


def _notes(
    store: tables.StoreRow,
    reading: StoreReading,
    plan: Mapping[str, Any],
    target: tables.EncoderRow,
    built: BuiltMaps | None,
    *,
    asks: bool,
) -> list[dict[str, str]]:
    """Return what a person must know before the migration, with codes."""
    notes: dict[str, str] = {}
    space, cost = plan["space"], plan["cost"]
    if plan["fill"] == "embed" and cost["rows_without_text"]:
        notes["rows-without-text"] = (
            f"About {cost['rows_without_text']:,} of {cost['rows']:,} rows have no text. Their "
            "vectors are translated, by a map made of the first 1,000 rows."
        )
    if plan["fill"] == "embed" and cost["truncated"]:
        notes["texts-truncated"] = (
            f"About {cost['truncated']:,} texts are longer than the target reads: their ends do "
            "not count. Split them first if they matter."
        )
    when = "now" if plan["anchor_set"] else "once the run has embedded its first 1,000 rows"
    notes["search-works"] = (
        f"You need not wait for the cutover: {when}, POST /stores/{store.name}/search finds rows "
        f"by queries of {plan['target']} among the old vectors. It writes nothing to the store."
    )
    if asks:
        notes["not-compared"] = (
            f"Nothing tells whether {plan['target']} finds more here than {plan['source']}, so "
            "searches weigh both with care. POST /compare tells: it embeds 250 texts with each, "
            "for which an endpoint may charge."
        )
    estimate = plan.get("estimate")
    if estimate and estimate["recall"] < 0.5:  # wrong pairs are likely
        notes["low-estimate"] = (
            f"Translated vectors find {estimate['recall']:.0%} only. If the texts and vectors of "
            "the anchors are not in the same order, make them again; else more anchors help."
        )
    elif built and plan["fill"] == "translate" and not built.warnings:
        notes["search-works"] += f" {usual_change(built.source.anchor_set.size)}".rstrip()
    if plan["fill"] == "translate" and reading.texts and runs_here(target):
        notes["embed-instead"] = (
            f"The rows have texts and the service runs {plan['target']}: `fill: embed` gives each "
            "row its own vector. Where its plan costs at most 20 and an hour, do that."
        )
    if space.get("verdict") == "unknown" and plan["fill"] == "translate":
        notes["space-unknown"] = (
            f"Nothing shows whether {plan['source']} made these vectors: that takes some hundred "
            "rows, and anchors of the same kind of content. If you are sure, go on."
        )
    if space.get("mixture"):
        notes["mixed-rows"] = f"{space['mixture']}."
    if reading.undirected:
        share = len(reading.undirected) / (len(reading.undirected) + len(reading.sample))
        notes["rows-without-direction"] = (
            f"{share:.1%} of the sampled vectors are zero or not finite. A run skips and counts "
            "such rows."
        )
    if not has_cutover(store.kind):
        notes["stop-writes"] = (
            "The store does not report writes. Stop the writes of your application from `run` "
            "until it opens the new vectors: this kind of store has no cutover."
        )
    found = [(each.code, each.detail) for each in reading.facts.notes]
    found += [(each.code, each.detail) for each in (built.warnings if built else ())]
    return [{"code": code, "detail": detail} for code, detail in (*found, *notes.items())]


def _add_row(
    services: Services,
    context: RequestContext,
    store: tables.StoreRow,
    target: tables.EncoderRow,
    built: BuiltMaps | None,
    plan: dict[str, Any],
) -> tables.MigrationRow:
    """Store the plan. Raises MigrationActive where another request was faster, and Conflict."""
    row = tables.MigrationRow(
        id=tables.new_id(),
        project=context.project,
        store_id=store.id,
        target_id=target.id,
        anchor_set_id=None if built is None else built.source.anchor_set_id,
        state=MigrationState.planned,
        plan=plan,
        maps=None if built is None else built.digest,
    )
    try:
        with services.db.transaction() as session:
            session.add(row)
            session.flush()
            metric = update(tables.StoreRow).where(tables.StoreRow.id == store.id)
            session.execute(metric.values(options=store.options))
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
        f"Migration {active.id} of the store {store.name!r} is {state}. A table has one at a time: "
        f"{first}.",
        field="store",
        more={"migration": active.id},
    )
