"""A plan as a document that people edit, and that `run` obeys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from app.errors import Conflict, InvalidRequest, OutOfRange, StoreUnsupported, WrongState, blaming
from app.maths.relevance.re_embedding import RowChoice
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.reindexing import re_embedding
from app.services.reindexing.plan import check_re_embedding
from app.services.reindexing.reindexings import find_reindexing
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import reindexings as queries
from app.types import ReindexingState

#: the member of a document that names its reindexing
DOCUMENT_ID = "reindexing"

#: most rows of a batch
MOST_BATCH_ROWS = 10_000


def plan_document(row: tables.ReindexingRow) -> dict[str, Any]:
    """Return the plan of a reindexing as a document."""
    return {DOCUMENT_ID: row.id, **row.plan}


def change_plan(
    services: Services,
    context: RequestContext,
    reindexing_id: str,
    document: Mapping[str, Any],
) -> tables.ReindexingRow:
    """Take over what an edited document changes, and return the row.

    Members that the document lacks stay as they are.
    Raises ReindexingNotFound, WrongState while it runs or once it is filled, Conflict, and
    InvalidRequest, OutOfRange, StoreUnsupported and EncoderNeedsVectors, which name the member.
    """
    found = find_reindexing(services, context.project, reindexing_id)
    row = found.row
    changes = _changed(row, document)
    if not changes:
        return row
    if found.is_busy or row.state not in (ReindexingState.planned, ReindexingState.paused):
        raise WrongState(
            f"The reindexing is {found.state}, and a plan only changes while it is planned or "
            "paused. Pause it first, or plan another.",
            field=next(iter(changes)),
        )
    for name, value in changes.items():
        with blaming(name):
            CHECKS[name](row, value)
    plan = _with_threshold({**row.plan, **changes})
    _check_rows(row, plan)
    with services.db.transaction() as session:
        if not queries.change(session, row, plan=plan):
            raise Conflict(
                "Another request changed the reindexing at the same time. Read it, and send the "
                "plan again."
            )
        record_audit(session, context, "change", "reindexing", row.id)
    return find_reindexing(services, context.project, reindexing_id).row


def _changed(row: tables.ReindexingRow, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that differ. Raises InvalidRequest for one that must not."""
    changes = {}
    for name, value in document.items():
        if name == DOCUMENT_ID:
            if value not in (None, row.id):
                raise InvalidRequest(
                    f"The document is of reindexing {value!r}, not {row.id!r}.", field=name
                )
        elif name not in row.plan:
            raise InvalidRequest(f"A plan has no member {name!r}. Remove it.", field=name)
        elif value != row.plan[name] or isinstance(value, bool) != isinstance(row.plan[name], bool):
            if name not in CHECKS:
                raise InvalidRequest(
                    f"`{name}` of a plan cannot change. Only {', '.join(CHECKS)} can. Restore it, "
                    "or plan another reindexing.",
                    field=name,
                )
            changes[name] = value
    return changes


def _with_threshold(plan: dict[str, Any]) -> dict[str, Any]:
    quantiles = plan["re_embedding"]["quantiles"]
    if plan["re_embed"] > 0:
        re_embedding.require_choice(quantiles, plan["re_embed_by"])
    below = re_embedding.threshold(quantiles, plan["re_embed_by"], plan["re_embed"])
    return {**plan, "re_embed_below": below}


def _check_rows(row: tables.ReindexingRow, plan: Mapping[str, Any]) -> None:
    check_re_embedding(plan["re_embed"], row.store.options.get("text_field"), row.target)


def _check_strategy(row: tables.ReindexingRow, value: Any) -> None:
    _require_planned(row, "strategy")
    if value not in row.plan["strategies"]:
        raise StoreUnsupported(
            f"The collection does not allow the strategy {value!r}. Use one of: "
            f"{', '.join(row.plan['strategies'])}."
        )


def _check_choice(row: tables.ReindexingRow, value: Any) -> None:
    _require_planned(row, "re_embed_by")
    if value not in get_args(RowChoice):
        raise InvalidRequest(f"Use one of: {', '.join(get_args(RowChoice))}.")


def _check_re_embed(row: tables.ReindexingRow, value: Any) -> None:
    _require_planned(row, "re_embed")
    _require_number(value, "re_embed", 0.0, 1.0)


def _require_planned(row: tables.ReindexingRow, name: str) -> None:
    if row.state != ReindexingState.planned:
        raise WrongState(
            f"`{name}` only changes before the first run: rows were already written by it. "
            "Abandon the reindexing and plan another."
        )


def _require_number(value: Any, name: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise OutOfRange(f"`{name}` must be a number from {low:g} to {high:g}.")


def _check_pace(name: str) -> Callable[[tables.ReindexingRow, Any], None]:
    def check(row: tables.ReindexingRow, value: Any) -> None:
        if value is not None:
            _require_number(value, name, math.ulp(0.0), 1e9)

    return check


def _check_batch(row: tables.ReindexingRow, value: Any) -> None:
    _require_number(value, "batch", 1, MOST_BATCH_ROWS)
    if not isinstance(value, int):
        raise OutOfRange("`batch` must be a whole number of rows.")


#: how each member that may change is checked
CHECKS: dict[str, Callable[[tables.ReindexingRow, Any], None]] = {
    "strategy": _check_strategy,
    "rows_per_second": _check_pace("rows_per_second"),
    "most_latency_ms": _check_pace("most_latency_ms"),
    "re_embed": _check_re_embed,
    "re_embed_by": _check_choice,
    "min_recall": lambda row, value: _require_number(value, "min_recall", 0.0, 1.0),
    "batch": _check_batch,
}
