"""What a translator must be worth to be served: of one request, or agreed for a pair of spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.errors import Conflict, QualityBelowMinimum
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources


def agree(
    services: Services,
    context: RequestContext,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    minimum: Mapping[str, float],
) -> tables.ContractRow:
    """Every translator from source to target must promise this from now on, in place of what was agreed before."""
    try:
        row = _agree(services, context, source, target, minimum)
    except Conflict:  # another request agreed at the same moment; unless a space has gone, there is a row to change now
        row = _agree(services, context, source, target, minimum)
    services.names.forget()
    return row


def _agree(
    services: Services,
    context: RequestContext,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    minimum: Mapping[str, float],
) -> tables.ContractRow:
    with services.db.transaction() as session:
        row = resources.contract(session, source.id, target.id)
        if row is None:
            row = tables.ContractRow(
                project=context.project, source_id=source.id, target_id=target.id
            )
            session.add(row)
        row.min_quality = dict(minimum)
        session.flush()
        session.refresh(row)
        record_audit(session, context, "agree", "contract", _name(row))
    return row


def end(
    services: Services, context: RequestContext, source: tables.SpaceRow, target: tables.SpaceRow
) -> None:
    """Raises ContractNotFound."""
    with services.db.transaction() as session:
        row = resources.require_contract(session, source, target)
        record_audit(session, context, "delete", "contract", _name(row))
        session.delete(row)
    services.names.forget()


def contracts(services: Services, anchor_set: tables.AnchorSetRow) -> Sequence[tables.ContractRow]:
    """Those of all pairs of a set."""
    with services.db.transaction() as session:
        return resources.contracts(session, anchor_set)


def require(
    row: tables.TranslatorRow, minimum: Mapping[str, float], *, field: str = "min_quality"
) -> None:
    """Raises QualityBelowMinimum, with what was found, unless the row's report promises at least the minimum of each measure."""
    report = row.report or {}
    promise = report.get("promise")
    pair = f"{row.source.encoder.name} -> {row.target.encoder.name} at {row.source.anchor_set.name}"
    for measure, least in minimum.items():
        if promise is None:
            raise QualityBelowMinimum(
                f"{pair}: nothing can be promised of so few distinct anchors, and {measure} of {least} is asked for",
                field=field,
            )
        if report["evidence"]["verdict"] == "useless":
            raise QualityBelowMinimum(
                f"{pair}: these anchors say no more of each other than shuffled ones would; {measure} of {least} is asked for",
                field=field,
                found=promise,
            )
        found = promise["measures"][measure]
        if found["value"] < least:
            interval = f"95 %: {found['low']:.3f} to {found['high']:.3f}"
            raise QualityBelowMinimum(
                f"{pair}: {row.method} promises {measure} {found['value']:.3f} ({interval}), and {least} is asked for",
                field=field,
                found=promise,
            )


def _name(row: tables.ContractRow) -> str:
    return f"{row.source.anchor_set.name}: {row.source.encoder.name} -> {row.target.encoder.name}"[
        : tables.NAME_LENGTH
    ]
