"""The least quality that a request, or the contract of two spaces, accepts from a translator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.errors import Conflict, QualityBelowMinimum
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources


def agree_contract(
    services: Services,
    context: RequestContext,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    minimum: Mapping[str, float],
) -> tables.ContractRow:
    """Store the contract of two spaces, in place of an earlier one."""
    try:
        row = _agree(services, context, source, target, minimum)
    except Conflict:  # another request was faster: change its row, unless a space was deleted
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


def end_contract(
    services: Services, context: RequestContext, source: tables.SpaceRow, target: tables.SpaceRow
) -> None:
    """Delete the contract of two spaces. Raises ContractNotFound."""
    with services.db.transaction() as session:
        row = resources.require_contract(session, source, target)
        record_audit(session, context, "delete", "contract", _name(row))
        session.delete(row)
    services.names.forget()


def list_contracts(
    services: Services, anchor_set: tables.AnchorSetRow
) -> Sequence[tables.ContractRow]:
    """The contracts of a set's pairs."""
    with services.db.transaction() as session:
        return resources.contracts(session, anchor_set)


def require_promise(
    row: tables.TranslatorRow, minimum: Mapping[str, float], *, field: str = "min_quality"
) -> None:
    """Raises QualityBelowMinimum unless the report promises the minimum of each measure."""
    report = row.report or {}
    promise = report.get("promise")
    pair = f"{row.source.encoder.name} -> {row.target.encoder.name} at {row.source.anchor_set.name}"
    for measure, least in minimum.items():
        if promise is None:
            raise QualityBelowMinimum(
                f"{pair}: {measure} must be at least {least}, and there are too few distinct "
                "anchors to promise any quality. Add anchors, or lower the minimum.",
                field=field,
            )
        if report["evidence"]["verdict"] == "useless":
            raise QualityBelowMinimum(
                f"{pair}: {measure} must be at least {least}, and the anchors are no more related "
                "than shuffled ones. Check that they are the same items in the same order.",
                field=field,
                found=promise,
            )
        promised = promise["measures"][measure]
        if promised["value"] < least:
            interval = f"95 %: {promised['low']:.3f} to {promised['high']:.3f}"
            raise QualityBelowMinimum(
                f"{pair}: {measure} must be at least {least}, and {row.method} promises "
                f"{promised['value']:.3f} ({interval}). Add anchors, or lower the minimum.",
                field=field,
                found=promise,
            )


def _name(row: tables.ContractRow) -> str:
    return f"{row.source.anchor_set.name}: {row.source.encoder.name} -> {row.target.encoder.name}"[
        : tables.NAME_LENGTH
    ]
