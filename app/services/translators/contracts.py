"""The least quality that a request, or the contract of two spaces, accepts from a translator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import Conflict, QualityBelowMinimum
from app.services.access.audit import record_audit
from app.services.anchors import made_pairs
from app.services.anchors.anchor_sets import require_version
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.translators import translator_reports
from app.storage import tables
from app.storage.queries import resources

#: the measure that compares with chance, which no index changes; the report's `evidence` has it
SKILL = "skill"


def agree_contract(
    services: Services,
    context: RequestContext,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    minimum: Mapping[str, float],
    index: int | None,
) -> tables.ContractRow:
    """Store the contract of two spaces, in place of an earlier one."""
    try:
        row = _agree(services, context, source, target, minimum, index)
    except Conflict:  # another request was faster: change its row, unless a space was deleted
        row = _agree(services, context, source, target, minimum, index)
    services.names.forget()
    return row


def _agree(
    services: Services,
    context: RequestContext,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    minimum: Mapping[str, float],
    index: int | None,
) -> tables.ContractRow:
    with services.db.transaction() as session:
        # An append moves the contracts of the version before: none may be added to it.
        require_version(session, context.project, source.anchor_set)
        row = resources.contract(session, source.id, target.id)
        if row is None:
            row = tables.ContractRow(
                project=context.project, source_id=source.id, target_id=target.id
            )
            session.add(row)
        row.min_quality = dict(minimum)
        row.index = index
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


def require_estimate(
    row: tables.TranslatorRow,
    minimum: Mapping[str, float],
    index: int | None = None,
    *,
    field: str = "min_quality",
) -> None:
    """Raises QualityBelowMinimum unless the report's estimate reaches the minimum of each measure.

    The estimate is for an index of that many items; None: the report's own index.

    field  where the minimum comes from; `anchor_set`: the contract of the pair
    """
    if not minimum:
        return
    report = row.report or {}
    estimated = translator_reports.estimate_for(report, index)
    for measure, least in minimum.items():
        reason = _shortfall(row, report, estimated, measure, least)
        if reason is not None:
            pair = f"{row.source.encoder.name} -> {row.target.encoder.name}"
            source = "by contract, " if field == "anchor_set" else ""
            raise QualityBelowMinimum(
                f"{pair} at {row.source.anchor_set.name}: {source}{measure} must be at least "
                f"{least}, and {reason}",
                field=field,
                found=estimated,
            )


def _shortfall(
    row: tables.TranslatorRow,
    report: Mapping[str, Any],
    estimated: Mapping[str, Any] | None,
    measure: str,
    least: float,
) -> str | None:
    """Why a minimum is not reached, and what to do; None if it is."""
    if report.get("alignment"):
        return f"{made_pairs.NOT_MEASURED}; or drop the minimum."
    if estimated is None:
        return (
            "there are too few distinct anchors to estimate any quality. Add anchors, or lower the "
            "minimum."
        )
    if report["evidence"]["verdict"] == "useless":
        return (
            "the anchors are no more related than shuffled ones. Check that they are the same "
            "items in the same order."
        )
    if measure == SKILL:
        skill = report["evidence"]["skill"]
        if skill >= least:
            return None
        return f"{row.method} has a skill of {skill:.3f}. Add anchors, or lower the minimum."
    found = estimated["measures"][measure]
    if found["value"] >= least:
        return None
    return (
        f"{row.method} estimates {found['value']:.3f} (95 %: {found['low']:.3f} to "
        f"{found['high']:.3f}) in an index of {estimated['index']:,} items. Add anchors, lower the "
        "minimum, or name the `index` that you have."
    )


def _name(row: tables.ContractRow) -> str:
    return f"{row.source.anchor_set.name}: {row.source.encoder.name} -> {row.target.encoder.name}"[
        : tables.NAME_LENGTH
    ]
