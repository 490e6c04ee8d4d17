"""Runs the jobs that fit what a request needs."""

from __future__ import annotations

from typing import Any

from app.context import Services
from app.db import tables
from app.jobs.progress import Progress
from app.jobs.worker import JobResult
from app.request_context import RequestContext
from app.translate import fit as translators
from app.translate.service import Decoding, Translation, prepare_map


def run_fit(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Fit into the cache what the request's repetition needs.

    Where a minimum applies, the translator is measured too, and its report is stored.
    """
    arguments: dict[str, Any] = {name: job.arguments[name] for name in job.arguments}
    power = arguments.pop("relative_power")
    del arguments["key"]
    request, context = translators.FitRequest(**arguments), RequestContext.of_job(job)
    plan = Translation(request, enforces=False) if power is None else Decoding(request, power)
    pair = translators.resolve(services, plan.name(job.project))
    progress(0, 1)
    served = prepare_map(services, context, plan, pair)
    if served.id is not None and request.min_quality:
        source, target = pair.both
        translators.find_with_report(
            services, job.project, served.id, between=(source.id, target.id)
        )
    progress(1, 1)
    return JobResult({"translator": served.id})
