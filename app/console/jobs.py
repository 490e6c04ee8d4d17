"""/console/jobs: jobs and migrations while they run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import Moment, Reads, Svc, WriteContext
from app.api.resources.jobs import JobId
from app.api.schemas.jobs import Job, JobSummary
from app.api.schemas.migrations import MigrationAnswer
from app.console import wording
from app.console.pages import render
from app.services.context import Services
from app.services.jobs import submission
from app.services.store_migrations import records
from app.storage.queries import resources
from app.types import Scope

router = APIRouter()

JOBS_PAGE = f"{CONSOLE}/jobs"

#: jobs of one page, and migrations
JOBS_SHOWN, MIGRATIONS_SHOWN = 30, 20

#: most characters of a job's result on its page
MAX_RESULT_CHARACTERS = 20_000


@router.get(JOBS_PAGE)
def show_jobs(
    request: Request, services: Svc, project: Reads, before: Moment | None = None
) -> Response:
    """Shows the newest jobs and migrations; its script asks for them again every 2 seconds."""
    return render(request, "jobs.html", **_state(request, services, project, before))


@router.get(f"{JOBS_PAGE}/live")
def show_live_jobs(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the part of the page that changes."""
    return render(request, "jobs_live.html", **_state(request, services, project, None))


@router.get(f"{JOBS_PAGE}/{{id}}")
def show_job(request: Request, id: JobId, services: Svc, project: Reads) -> Response:
    """Shows one job with its result. Raises JobNotFound."""
    return render(request, "job.html", **_details(request, services, project, id))


@router.get(f"{JOBS_PAGE}/{{id}}/live")
def show_live_job(request: Request, id: JobId, services: Svc, project: Reads) -> Response:
    """Shows the part of a job's page that changes. Raises JobNotFound."""
    return render(request, "job_live.html", **_details(request, services, project, id))


@router.post(f"{JOBS_PAGE}/{{id}}/cancel")
def cancel_job(request: Request, id: JobId, services: Svc, context: WriteContext) -> Response:
    """Asks a job to stop, and shows it. Raises JobNotFound, JobFinished."""
    submission.cancel_job(services, context, id)
    return render(request, "job_live.html", **_details(request, services, context.project, id))


def _state(
    request: Request, services: Services, project: str, before: datetime | None
) -> dict[str, Any]:
    with services.db.transaction() as session:
        rows = resources.jobs(session, project, state=None, before=before, limit=JOBS_SHOWN + 1)
    jobs = [JobSummary.model_validate(row) for row in rows]
    moves = records.list_migrations(services, project, limit=MIGRATIONS_SHOWN)
    return {
        "jobs": jobs[:JOBS_SHOWN],
        "older": jobs[JOBS_SHOWN - 1].created_at if len(jobs) > JOBS_SHOWN else None,
        "before": before,
        "moves": [MigrationAnswer.of(each) for each in moves],
        "unfinished": sum(not job.state.finished for job in jobs),
        **_words(request),
    }


def _details(request: Request, services: Services, project: str, id_: str) -> dict[str, Any]:
    with services.db.transaction() as session:
        row = resources.job(session, project, id_)
    job, arguments = Job.model_validate(row), row.arguments
    result = orjson.dumps(job.result, option=orjson.OPT_INDENT_2).decode()
    request_of = arguments.get("request", arguments)
    names = ("source", "target", "anchor_set", "name", "encoder", "method", "action")
    return {
        "job": job,
        "about": {
            name: request_of[name] for name in names if isinstance(request_of.get(name), str)
        },
        "result": result[:MAX_RESULT_CHARACTERS],
        "is_cut": len(result) > MAX_RESULT_CHARACTERS,
        "links": _links(job.result or {}),
        **_words(request),
    }


def _links(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns pages about what a job made: a title and a path each."""
    links = []
    if isinstance(result.get("translator"), str):
        links.append(("Report of the translator", f"{CONSOLE}/pairs/{result['translator']}"))
    if isinstance(result.get("anchor_set"), str):
        links.append(("The anchor set", f"{CONSOLE}/spaces/{result['anchor_set']}"))
    return links


def _words(request: Request) -> dict[str, Any]:
    return {
        "kinds": wording.JOB_KINDS,
        "tones": wording.JOB_TONES,
        "states": wording.MIGRATION_STATES,
        "calls": wording.NEXT_CALLS,
        "may_write": request.state.caller.may(Scope.write),
    }
