"""Evaluations: of a translation on items, or of all options on judged queries."""

from __future__ import annotations

from dataclasses import asdict

from app.context import RequestContext, Services
from app.db import tables
from app.errors import InvalidRequest
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.search.decide_schemas import EvaluateRequest, JudgedFields
from app.search.judged import JudgedTask, check_judged, judged_of_job
from app.translate.evaluate import EvaluationTask, check_evaluation
from app.translate.maps import FitRequest
from app.types import JobKind

#: fields of vectors without judgements, and what else only applies without them
ITEMS = ("vectors", "native", "corpus")
UNJUDGED = (*ITEMS, "k", "min_quality", "index")


def check(services: Services, project: str, body: EvaluateRequest) -> EvaluationTask | JudgedTask:
    """Check the request before anything is fitted. Raises as `check_evaluation`, `check_judged`."""
    judged = body.judgements is not None
    for field in UNJUDGED if judged else set(JudgedFields.model_fields) & body.model_fields_set:
        if field in body.model_fields_set and getattr(body, field) is not None:
            rule = "does not apply" if judged else "only applies"
            raise InvalidRequest(
                f"`{field}` {rule} with `judgements`. Remove it"
                f"{', or `judgements`' if judged else ', or add `judgements`'}.",
                field=field,
            )
    if judged:
        return check_judged(services, project, body)
    sent = {name: getattr(body, name) for name in ITEMS}
    items = {name: rows for name, rows in sent.items() if rows is not None}
    return check_evaluation(services, project, body.translator_request(), items, body.k)


def evaluate_later(
    services: Services, context: RequestContext, task: EvaluationTask | JudgedTask
) -> tables.JobRow:
    """Store the items, and queue a job. Raises StorageUnavailable, TooManyJobs, QueueFull."""
    arguments = {
        "request": asdict(task.request),
        **task.arguments,
        "blobs": {"items": services.blobs.put(task.tensors)},
    }
    return submit_job(services, context, JobKind.evaluate, arguments)


def run_evaluation(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job. Its result is the answer of a request."""
    arguments, context = job.arguments, RequestContext.of_job(job)
    request = FitRequest(**arguments["request"])
    tensors = services.blobs.get(arguments["blobs"]["items"])
    task: EvaluationTask | JudgedTask
    if "judged" in arguments:
        task = judged_of_job(services, job.project, request, tensors, **arguments["judged"])
    else:
        task = check_evaluation(services, job.project, request, tensors, arguments["k"])
    result = task.measure(services, context, progress)
    progress(task.steps, task.steps)
    return JobResult(result)
