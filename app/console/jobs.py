"""/console/jobs: jobs while they run, and what came of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.console import wording
from app.console.job_words import describe_jobs
from app.console.pages import render
from app.context import Services
from app.http.admission import CONSOLE
from app.http.deps import Moment, Reads, Svc, WriteContext
from app.jobs import queries as job_queries
from app.jobs import submission
from app.jobs.endpoints import JobId
from app.jobs.schemas import Job, JobSummary
from app.types import Scope

router = APIRouter()

JOBS_PAGE = f"{CONSOLE}/jobs"

#: jobs of one page
JOBS_SHOWN = 30

#: most characters of a job's result on its page
MAX_RESULT_CHARACTERS = 20_000


@router.get(JOBS_PAGE)
def show_jobs(
    request: Request, services: Svc, project: Reads, before: Moment | None = None
) -> Response:
    """Shows the newest jobs; its script asks for them again every 2 seconds."""
    return render(request, "jobs.html", **_state(request, services, project, before))


@router.get(f"{JOBS_PAGE}/live")
def show_live_jobs(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the part of the page that changes."""
    return render(request, "jobs_live.html", **_state(request, services, project, None))


@router.get(f"{JOBS_PAGE}/{{id}}")
def show_job(request: Request, id: JobId, services: Svc, project: Reads) -> Response:
    """Shows one job with its result. Raises NotFound."""
    return render(request, "job.html", **_details(request, services, project, id))


@router.get(f"{JOBS_PAGE}/{{id}}/live")
def show_live_job(request: Request, id: JobId, services: Svc, project: Reads) -> Response:
    """Shows the part of a job's page that changes. Raises NotFound."""
    return render(request, "job_live.html", **_details(request, services, project, id))


@router.post(f"{JOBS_PAGE}/{{id}}/cancel")
def cancel_job(request: Request, id: JobId, services: Svc, context: WriteContext) -> Response:
    """Asks a job to stop, and shows it. Raises NotFound, JobFinished."""
    submission.cancel_job(services, context, id)
    return render(request, "job_live.html", **_details(request, services, context.project, id))


def _state(
    request: Request, services: Services, project: str, before: datetime | None
) -> dict[str, Any]:
    with services.db.transaction() as session:
        rows = job_queries.jobs(
            session, project, state=None, before=before, limit=JOBS_SHOWN + 1, whole=True
        )
    jobs = [JobSummary.model_validate(row) for row in rows]
    return {
        "jobs": jobs[:JOBS_SHOWN],
        "older": jobs[JOBS_SHOWN - 1].created_at if len(jobs) > JOBS_SHOWN else None,
        "before": before,
        "words": describe_jobs(services, project, list(rows)),
        "unfinished": sum(not job.state.finished for job in jobs),
        **_words(request),
    }


def _details(request: Request, services: Services, project: str, id_: str) -> dict[str, Any]:
    with services.db.transaction() as session:
        row = job_queries.job(session, project, id_)
    job = Job.model_validate(row)
    result = orjson.dumps(job.result, option=orjson.OPT_INDENT_2).decode()
    return {
        "job": job,
        "words": describe_jobs(services, project, [row]),
        "result": result[:MAX_RESULT_CHARACTERS],
        "is_cut": len(result) > MAX_RESULT_CHARACTERS,
        **_words(request),
    }


def _words(request: Request) -> dict[str, Any]:
    return {
        "tones": wording.JOB_TONES,
        "may_write": request.state.context.may(Scope.write),
    }
