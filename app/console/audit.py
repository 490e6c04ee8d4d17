"""/console/audit: who changed what, for keys with the scope admin."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import Moment, Reads, Svc
from app.console.job_words import describe_jobs
from app.console.keys import show_refusal
from app.console.pages import render
from app.errors import NotFound
from app.services.context import Services
from app.storage.queries import access, migrations, resources
from app.storage.tables import AuditRow
from app.types import Scope

router = APIRouter()

#: changes of one page
CHANGES_SHOWN = 30


@router.get(f"{CONSOLE}/audit")
def show_audit(
    request: Request, services: Svc, project: Reads, before: Moment | None = None
) -> Response:
    """Shows changes before a moment; without the scope admin, the caller's key alone."""
    if not request.state.caller.may(Scope.admin):
        return show_refusal(request, services, project, "Audit")
    with services.db.transaction() as session:
        rows = access.audit(session, project, before=before, limit=CHANGES_SHOWN)
        keys = {row.id: row.name for row in access.api_keys(session, project)}
    shown = [(row, _about(services, row, keys), _way(row.origin)) for row in rows]
    earlier = rows[-1].created_at if len(rows) == CHANGES_SHOWN else None
    return render(request, "audit.html", changes=shown, keys=keys, earlier=earlier)


def _about(services: Services, row: AuditRow, keys: dict[str, str]) -> str:
    """Returns the name of a changed resource; for one that has an id alone, what it is about."""
    name = row.name
    with suppress(NotFound), services.db.transaction() as session:
        if row.resource == "api-key":
            return keys.get(name, "a deleted key")
        if row.resource == "migration":
            move = migrations.migration(session, row.project, name)
            return f"of {move.store.name} to {move.target.name}"
        if row.resource == "job":
            job = resources.job(session, row.project, name)
            return describe_jobs(services, row.project, [job])[name].title
        if row.resource == "translator":
            found = resources.translator(session, row.project, name)
            return f"{found.source.encoder.name} → {found.target.encoder.name}"
        return name
    return "that is deleted"


def _way(origin: str) -> str:
    """Returns by which way a change came: the command line, a job, or a request."""
    return {"command": "command line", "job": "job"}.get(origin.partition(" ")[0], "request")
